"""Slots: the route, the two primitives, the contract of a method, the bank, the forward pass."""
