"""What an adapter is for: heads and pooling."""
