"""Who uses which entry: segments of a batch, and the route a method sees.

`Segments` knows the batch: rows sorted by slot, so every slot owns one run of tokens. `Route` is what one
group of adapters sees of it: the same tokens, with entries of its own stacks in place of slots. A method gets
a `Route` and the two primitives on it, and never learns about slots.

On CUDA the same is said in tensors (`kernel_route.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Literal

import torch
from torch import Tensor

from inlay.bank import ops
from inlay.bank.ops import Segment
from inlay.data.batch import repeated

Act = Callable[[Tensor], Tensor]


class Route:
    """The entry of each token in one group's stacks."""

    def __init__(self, segments: Sequence[Segment], tokens: int, start: int = 0):
        self.segments = list(segments)
        self.tokens = tokens
        self.span: tuple[int, int] | None = (start, start + tokens)
        """The tokens of the batch that the route is about; None for all."""
        self._tiles: ops.Tiles | None = None
        self._chopped: ops.Chopped | Literal[False] | None = False
        """False until it is known whether it pays."""

    @classmethod
    def uniform(cls, entry: int) -> Route:
        """Every token of any batch uses this entry, which may be entry 0 of a stack without a zero entry."""
        route = cls([(0, -1, entry)], tokens=-1)
        route.span = None
        return route

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Every token times its own entry's matrix: x [n, in], weight [E, in, out], bias [E, out] -> [n, out]."""
        if self.span is None:
            entry = self.segments[0][2]
            out = x @ weight[entry].to(x.dtype)
            return out if bias is None else out + bias[entry].to(x.dtype)
        segments = self._cover(x.shape[0])
        if _takes_grouped(x, weight):
            return ops.linear_grouped(x, weight, bias, self._tiled(x.device))
        if not torch.is_grad_enabled() and (chopped := self._chops(x.device)) is not None:
            return ops.linear_chopped(x, weight, bias, chopped)
        return ops.SegmentLinear.apply(x, weight, bias, segments)  # type: ignore[no-untyped-call, no-any-return]

    def vector(self, p: Tensor, like: Tensor) -> Tensor:
        """Every token's own entry's vector, in the dtype of `like` [n, ...]: p [E, d] -> [n, d] or [1, d]."""
        if self.span is None:
            return p[self.segments[0][2]].to(like.dtype).unsqueeze(0)
        segments = self._cover(like.shape[0])
        if p.is_cuda:
            return ops.vector_grouped(p, self._tiled(p.device), like.dtype)
        if not torch.is_grad_enabled() and (chopped := self._chops(p.device)) is not None:
            return ops.vector_chopped(p, chopped, like.dtype)
        return ops.SegmentVector.apply(p, segments, like.shape[0], like.dtype)  # type: ignore[no-untyped-call, no-any-return]

    def bottleneck(self, x: Tensor, down: Layer, up: Layer, act: Act, name: str, scale: Tensor | None = None) -> Tensor:
        """Linear, activation, linear.

        Args:
            name: the activation's, for back ends that do all three at once.
            scale: [E, 1] a constant that what goes into the activation is multiplied with.
        """
        h = self.linear(x, *down)
        return self.linear(act(h if scale is None else h * self.vector(scale, x)), *up)

    def _tiled(self, device: torch.device) -> ops.Tiles:
        if self._tiles is None or self._tiles.entry.device != device:
            self._tiles = ops.Tiles(self.segments, self.tokens, device)
        return self._tiles

    def _chops(self, device: torch.device) -> ops.Chopped | None:
        if self._chopped is False:
            pays = ops.Chopped.pays(self.segments)
            self._chopped = ops.Chopped(self.segments, self.tokens, device) if pays else None
        return self._chopped

    def _cover(self, tokens: int) -> Sequence[Segment]:
        assert tokens == self.tokens, f"the route has {self.tokens} tokens, the tensor {tokens}"
        return self.segments


Layer = tuple[Tensor, Tensor | None]
"""weight [E, in, out] and bias [E, out], if there is one."""


class Segments:
    """A batch sorted by slot: which tokens belong to which slot."""

    def __init__(self, slots: Sequence[int], lengths: Sequence[int]):
        if len(slots) != len(lengths):
            raise ValueError(f"there are {len(slots)} slots for {len(lengths)} rows")
        runs: list[tuple[int, int, int]] = []
        ends = list(accumulate(lengths, initial=0))
        row = 0
        for slot, some in groupby(slots):
            start, row = ends[row], row + len(list(some))
            if ends[row] > start and runs and runs[-1][2] == slot:  # nothing but empty rows between
                runs[-1] = (runs[-1][0], ends[row], slot)
            elif ends[row] > start:
                runs.append((start, ends[row], slot))
        self.runs = runs
        """(start, end, slot), in order."""
        self.tokens = ends[-1]

    def route(self, entry_of: Mapping[int, int]) -> Route | None:
        """The route of a group whose slots have these entries; None if none of them is in the batch.

        The route spans only the tokens from the group's first to its last member.
        """
        mine = [(start, end, entry_of[slot]) for start, end, slot in self.runs if slot in entry_of]
        if not mine:
            return None
        first, last = mine[0][0], mine[-1][1]
        return Route([(s - first, e - first, entry) for s, e, entry in mine], last - first, first)

    def entries(self, entry_of: Mapping[int, int], places: int) -> Tensor | None:
        """[places] the entry of every run's slot, 0 for strangers and for places beyond; None if all are strangers."""
        found = [entry_of.get(slot, 0) for _, _, slot in self.runs]
        if not any(found):
            return None
        return torch.tensor(found + [0] * (places - len(found)), dtype=torch.int32)

    def tables(self, size: int, places: int, block: int) -> dict[str, Tensor]:
        """The runs as a `Spread` wants them, with room for more: `size` tokens and `places` runs."""
        ends = torch.tensor([0] + [end for _, end, _ in self.runs])
        counts, at = ends.diff(), torch.arange(len(self.runs))
        bounds = torch.full((places + 1,), self.tokens)
        bounds[: len(ends)] = ends
        place = torch.full((size,), -1)
        place[: self.tokens] = repeated(at, counts)
        pieces = (counts + block - 1) // block
        tiles = torch.zeros(size // block + places, 3, dtype=torch.long)
        owner = repeated(at, pieces)
        first = ends[owner] + (torch.arange(len(owner)) - (pieces.cumsum(0) - pieces)[owner]) * block
        tiles[: len(owner)] = torch.stack([first, (ends[owner + 1] - first).clamp(max=block), owner], 1)
        return {"bounds": bounds, "tiles": tiles, "place": place}


def _takes_grouped(x: Tensor, weight: Tensor) -> bool:
    """grouped_mm wants CUDA, half precision, and rows in multiples of 16 bytes."""
    return x.is_cuda and x.dtype == torch.bfloat16 and weight.shape[1] % 8 == 0
