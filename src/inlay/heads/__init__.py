"""From hidden states to answers: pooling and heads."""

HEADS = ("linear", "tanh2", "mlp", "relu2")
"""The heads a run may choose; they need no torch here, for help and early errors."""
POOLS = ("auto", "cls", "mean", "last", "pooler")
