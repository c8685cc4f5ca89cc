"""From hidden states to answers: pooling and heads."""

HEADS = ("linear", "tanh2", "mlp", "relu2")
"""What a run may choose; without torch, for help and early errors."""
POOLS = ("auto", "cls", "mean", "last", "pooler")
