"""Sweeps: many settings of one task side by side, with every result in a SQLite file, ranked by validation."""
