"""All Triton. Only `activations` and `shared` can be imported where there is none."""
