"""Adapters as bytes and cards on disk; knows no method."""
