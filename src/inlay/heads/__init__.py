"""From hidden states to answers: pooling and heads."""
