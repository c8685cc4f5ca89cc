"""All Triton. Only `activations`, `operators` and `shared` can be imported where there is none."""
