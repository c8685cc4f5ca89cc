"""Two adapters side by side: their cards field by field, their weights place by place.

A place is a part with its own parameters: `layers.0.attn.out`, `head`. Sparse tensors (`name#index`, `name#value`) are
compared as the dense ones they stand for, without being made dense if both are sparse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inlay.errors import AdapterError

if TYPE_CHECKING:
    from torch import Tensor

_INDEX, _VALUE = "#index", "#value"
_OWN = frozenset("name version sha256 digest bytes created seconds history".split())
"""Fields of a card that say nothing about the adapter itself."""
_TWICE = frozenset(f"config.{key}" for key in ("name", "method", "seed", "head", "pool"))
"""Settings that a card repeats elsewhere."""


@dataclass(frozen=True)
class Place:
    """One place's parameters in both adapters."""

    name: str
    norm_a: float | None
    """None if A has nothing there."""
    norm_b: float | None
    difference: float | None
    """The norm of B - A, relative to that of A; None if they cannot be compared."""
    cosine: float | None
    note: str = ""
    """Why they cannot be compared."""


@dataclass(frozen=True)
class Diff:
    """What is different, and how much."""

    fields: dict[str, tuple[Any, Any]]
    """Path in the card -> (in A, in B), for fields that differ; None if one has no such field."""
    places: list[Place]
    total: Place
    """All places that both have in the same shape, as one."""
    same_weights: bool
    """Equal names, shapes and values, whatever the dtype."""


def cards(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields in which two cards differ, by path: `metrics.validation.accuracy`, `members.1.method`."""
    both = bool(a.get("members") and b.get("members"))
    flat_a, flat_b = _fields(a, both), _fields(b, both)
    paths = dict.fromkeys([*flat_a, *flat_b])
    return {path: (flat_a.get(path), flat_b.get(path)) for path in paths if flat_a.get(path) != flat_b.get(path)}


def weights(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[list[Place], Place, bool]:
    """Every place, all places as one, and whether the weights are equal."""
    grouped: dict[str, list[str]] = {}
    for name in sorted({*_names(a), *_names(b)}, key=_in_order):
        grouped.setdefault(name.rpartition(".")[0] or name, []).append(name)
    sums: dict[str, _Sums] = {place: _place_sums(a, b, names) for place, names in grouped.items()}
    places = [s.place(place) for place, s in sums.items()]
    shared = _total([s for s in sums.values() if s.comparable])
    same = all(s.comparable and s.dd == 0 for s in sums.values())
    return places, shared.place("all"), same


def compare(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], card_a: Mapping[str, Any], card_b: Mapping[str, Any]
) -> Diff:
    """Compare two adapters: their tensors and cards."""
    return Diff(cards(card_a, card_b), *weights(a, b))


@dataclass(frozen=True)
class _Sums:
    """Sums of squares and products; they add up over tensors."""

    aa: float | None = None
    """None if A has nothing."""
    bb: float | None = None
    ab: float = 0.0
    dd: float = 0.0
    note: str = ""

    @property
    def comparable(self) -> bool:
        return self.aa is not None and self.bb is not None and not self.note

    def place(self, name: str) -> Place:
        norm_a, norm_b = (None if squares is None else squares**0.5 for squares in (self.aa, self.bb))
        difference = cosine = None
        if self.aa is not None and self.bb is not None and not self.note:
            difference = 0.0 if self.dd == 0 else (self.dd / self.aa) ** 0.5 if self.aa else float("inf")
            cosine = max(-1.0, min(1.0, self.ab / (self.aa * self.bb) ** 0.5)) if self.aa and self.bb else None
        return Place(name, norm_a, norm_b, difference, cosine, self.note)


def _total(parts: Sequence[_Sums]) -> _Sums:
    squares_a, squares_b = [p.aa for p in parts if p.aa is not None], [p.bb for p in parts if p.bb is not None]
    return _Sums(
        sum(squares_a) if squares_a else None,
        sum(squares_b) if squares_b else None,
        sum(part.ab for part in parts),
        sum(part.dd for part in parts),
        next((part.note for part in parts if part.note), ""),
    )


def _place_sums(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: list[str]) -> _Sums:
    pairs = {name.rpartition(".")[2]: (_Stored.of(a, name), _Stored.of(b, name)) for name in names}
    total = _total([_tensor_sums(*pair) for pair in pairs.values()])
    lacking = [name for name, pair in pairs.items() if None in pair]
    if total.comparable and lacking:
        others = len(lacking) == len(names)
        return replace(total, note="other weights" if others else f"only one has {', '.join(lacking)}")
    return total


def _tensor_sums(a: _Stored | None, b: _Stored | None) -> _Sums:
    aa, bb = (None if stored is None else _dot(stored.value, stored.value) for stored in (a, b))
    if a is None or b is None:
        return _Sums(aa, bb)
    pair = _aligned(a, b)
    if pair is None:
        return _Sums(aa, bb, note=f"shapes {_shape(a.value)} and {_shape(b.value)}")
    x, y = pair
    return _Sums(aa, bb, _dot(x, y), _dot(x - y, x - y))


@dataclass(frozen=True)
class _Stored:
    """A tensor as it is stored: dense, or values at positions of the flattened one."""

    value: Tensor
    index: Tensor | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], name: str) -> _Stored | None:
        if name in tensors:
            return cls(tensors[name].double())
        if name + _INDEX not in tensors or name + _VALUE not in tensors:
            return None
        index, value = tensors[name + _INDEX], tensors[name + _VALUE]
        if index.shape != value.shape or index.dim() != 1 or (len(index) and int(index.min()) < 0):
            raise AdapterError(f"the sparse tensor {name} needs as many positions as values")
        return cls(value.double(), index.long())


def _aligned(a: _Stored, b: _Stored) -> tuple[Tensor, Tensor] | None:
    """Both as vectors over the same positions; None if their shapes differ."""
    import torch

    if a.index is None and b.index is None:
        return (a.value, b.value) if a.value.shape == b.value.shape else None
    if a.index is not None and b.index is not None:
        where, at = torch.unique(torch.cat([a.index, b.index]), return_inverse=True)
        x, y = a.value.new_zeros(len(where)), a.value.new_zeros(len(where))
        x[at[: len(a.index)]], y[at[len(a.index) :]] = a.value, b.value
        return x, y
    return (_dense(a, b), b.value.flatten()) if a.index is not None else (a.value.flatten(), _dense(b, a))


def _dense(sparse: _Stored, like: _Stored) -> Tensor:
    flat, index = like.value.new_zeros(like.value.numel()), sparse.index
    assert index is not None
    if len(index) and int(index.max()) >= len(flat):
        raise AdapterError(f"a sparse tensor has positions outside its {len(flat)} elements")
    flat[index] = sparse.value
    return flat


def _dot(a: Tensor, b: Tensor) -> float:
    return float(a.flatten().dot(b.flatten()))


def _names(tensors: Mapping[str, Tensor]) -> list[str]:
    return list(dict.fromkeys(name.removesuffix(_INDEX).removesuffix(_VALUE) for name in tensors))


def _in_order(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """Layer 2 before layer 10, and the head last."""
    return name.startswith("head"), [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "1"


def _fields(card: Mapping[str, Any], each: bool) -> dict[str, Any]:
    """A card's fields about the adapter, by path; for an ensemble with its members' names, or each member's fields."""
    flat = _flat({key: value for key, value in card.items() if key not in {*_OWN, "members"}})
    fields = {path: value for path, value in flat.items() if path not in _TWICE}
    members = card.get("members") or ()
    if members and not each:
        fields["members"] = [member.get("ref") or member["name"] for member in members]
    for number, member in enumerate(members if each else (), 1):
        fields |= {f"members.{number}.{path}": value for path, value in _fields(member, each).items()}
    return fields


def _flat(card: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in card.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat
