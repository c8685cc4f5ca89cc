"""`inlay analyze ablation | landscape | rsa`: what an adapter does in which layer, and how it got there."""
