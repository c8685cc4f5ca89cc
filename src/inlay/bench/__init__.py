"""Inlay against its peers: the same work, the same weights, interleaved in one run on one machine."""
