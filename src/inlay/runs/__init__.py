"""What a run is, and its data made ready: settings, manifests, splits, rows of token ids, results."""
