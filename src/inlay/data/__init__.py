"""From files to packed batches of token ids."""
