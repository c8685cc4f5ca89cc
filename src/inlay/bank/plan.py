"""The plan of a forward pass: which rows go where, as records. `planning.py` makes them, `forward.py` runs them.

A record holds arrays on the host, and tensors once it is on the device (`records.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from inlay.bank.noise import Keys
from inlay.bank.records import A, Record, host
from inlay.base.attention import BackEnd
from inlay.data.batch import Array


@dataclass(frozen=True, eq=False)
class Tokens(Record, Generic[A]):
    """The model's input: packed tokens [tokens], or padded rows [rows * longest]."""

    ids: A
    positions: A
    types: A | None
    """None where the model has no token types."""
    ends: A | None
    """[rows + 1] packed: where rows end, including rows of padding."""
    mask: A | None
    valid: A | None
    """Padded: where the true tokens are."""
    size: int
    """How many tokens the model sees, padding included."""
    rows: int
    """The rows of the model's arguments: 1 where tokens are packed."""
    longest: int
    back_end: BackEnd
    lengths: Array = host()
    """Of all rows, including rows of padding."""


@dataclass(frozen=True, eq=False)
class Tiles(Record, Generic[A]):
    """Runs as kernels want them, with room for more: slots are the places 0, 1, 2 ... of a batch."""

    bounds: A
    """[places + 1] place s owns the tokens from bounds[s] up to bounds[s + 1]."""
    tiles: A
    """[n, 3] (first token, how many, place): at most `block` tokens of one place; tiles of 0 tokens are padding."""
    place: A
    """[tokens] the place of every token; -1 for padding."""
    entries: A
    """[groups, places] every group's entry for every place; 0 for a slot that is not in the group."""
    block: int


@dataclass(frozen=True, eq=False)
class Runs(Record, Generic[A]):
    """Which slot owns what: one run of tokens (or of pooled rows), and an entry in each of its groups."""

    groups: tuple[tuple[int, int], ...]
    """The `Group.state` of every group that acts."""
    tiles: Tiles[A] | None
    """None where routes are segments."""
    slots: list[int] = host()
    bounds: Array = host()
    """[runs + 1]"""
    entries: Array = host()
    """[groups, runs]"""


@dataclass(frozen=True, eq=False)
class Noise(Record, Generic[A]):
    """What dropout is keyed by, for every token."""

    key: A
    """The seed and step of the token's slot, as one number."""
    local: A
    """The token's number among its slot's; -1 where nothing is dropped."""


@dataclass(frozen=True, eq=False)
class Owners:
    """The slots of a batch whose rows are sorted by slot."""

    slots: list[int]
    bounds: Array
    """[runs + 1] where the rows of each slot begin and end."""
    entries: Array
    """[rows of groups, runs] as `Bank.entries` has them."""


@dataclass(frozen=True, eq=False)
class PassPlan(Record, Generic[A]):
    """One pass over some rows of a batch."""

    tokens: Tokens[A]
    runs: Runs[A]
    noise: Noise[A] | None
    """None where nothing is dropped."""
    alone: int | None
    """The slot that has the pass for itself."""
    is_fixed: bool
    """Whether it depends only on arrays and modes, so that it can be recorded."""
    attention_dropout: float
    """Dropout of attention probabilities; only padded rows have any."""
    rows: Array = host()
    """Which rows of the batch, in the order they run."""
    lengths: Array = host()
    owners: Owners = host()
    keys: Keys | None = host()
    """The slots in it train; None trains no slot."""
    begin: tuple[int, Tensor] | None = host()
    """A layer and its input, where the layers below it are left out."""
