"""Comparisons: methods on equal terms, on one or several datasets, beside baselines that need no transformer."""
