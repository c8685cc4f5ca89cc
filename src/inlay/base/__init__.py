"""The frozen model: the architecture table, sites, loading, packed attention."""
