"""Serving: every task from one frozen base, in one batch. The engine needs no web framework."""
