"""What adapters learn: the papers' figures for any adapter, one file each."""
