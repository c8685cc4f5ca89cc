"""Many dictionaries with the same keys, kept by column: one of them is made when somebody asks for it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class ByColumn(Sequence[dict[str, Any]]):
    """A list of dictionaries for who reads it as one; columns for who is faster with them."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]):
        """
        Args:
            columns: at least one, all of the same length. One may be `ByColumn` itself: a dictionary in each row.
        """
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i: Any) -> Any:
        """One as an index gives it; those of a slice by column, too."""
        own = {name: column[i] for name, column in self.columns.items()}
        return ByColumn(own) if isinstance(i, slice) else own

    def __iter__(self) -> Iterator[dict[str, Any]]:
        named = functools.partial(zip, self.columns)
        return map(dict, map(named, zip(*self.columns.values(), strict=True)))
