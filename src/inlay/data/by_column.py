"""Many dictionaries with the same keys, kept by column: each is made when it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class ByColumn(Sequence[dict[str, Any]]):
    """A list of dictionaries to those who read it as one; columns to those who are faster with them."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]):
        """
        Args:
            columns: at least one, all of the same length. One may be `ByColumn` itself: a dictionary in each row.
        """
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i: Any) -> Any:
        """An index gives a dictionary, a slice gives another `ByColumn`."""
        cells = {name: column[i] for name, column in self.columns.items()}
        return ByColumn(cells) if isinstance(i, slice) else cells

    def __iter__(self) -> Iterator[dict[str, Any]]:
        named = functools.partial(zip, self.columns)
        return map(dict, map(named, zip(*self.columns.values(), strict=True)))
