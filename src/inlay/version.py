"""The version, in a module of its own so that anyone may import it."""

__version__ = "0.1.0"
