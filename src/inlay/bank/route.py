"""The route a method sees: every token's entry in one group's stacks, and the two primitives on it.

A method never learns about slots. On the CPU a route is segments of tokens, one product each; on CUDA it is tensors for
kernels of our own (`kernel_route.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
from torch import Tensor

from inlay.bank import ops
from inlay.bank.ops import Segment

Act = Callable[[Tensor], Tensor]
Layer = tuple[Tensor, Tensor | None]
"""weight [E, in, out] and bias [E, out], if there is one."""


class Route(ABC):
    """The entry of each token in one group's stacks."""

    span: tuple[int, int] | None = None
    """The tokens of the batch that the route covers; None for all."""

    @abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Every token times its own entry's matrix: x [n, in], weight [E, in, out], bias [E, out] -> [n, out]."""

    @abstractmethod
    def vector(self, p: Tensor, like: Tensor) -> Tensor:
        """Every token's own entry's vector, in the dtype of `like` [n, ...]: p [E, d] -> [n, d] or [1, d]."""

    def bottleneck(self, x: Tensor, down: Layer, up: Layer, act: Act, name: str, scale: Tensor | None = None) -> Tensor:
        """Linear, activation, linear.

        Args:
            name: the activation's, for routes that do all three at once.
            scale: [E, 1] a constant factor of the activation's input.
        """
        return self._apart(x, down, up, act, scale)

    def _apart(self, x: Tensor, down: Layer, up: Layer, act: Act, scale: Tensor | None) -> Tensor:
        h = self.linear(x, *down)
        return self.linear(act(h if scale is None else h * self.vector(scale, x)), *up)


@final
class UniformRoute(Route):
    """Every token of any batch uses one entry, which may be entry 0 of a stack without a zero entry."""

    def __init__(self, entry: int):
        self.entry = entry

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A plain product."""
        out = x @ weight[self.entry].to(x.dtype)
        return out if bias is None else out + bias[self.entry].to(x.dtype)

    def vector(self, p: Tensor, like: Tensor) -> Tensor:
        """[1, d]."""
        return p[self.entry].to(like.dtype).unsqueeze(0)


@final
class SegmentRoute(Route):
    """Stretches of tokens, each with one entry."""

    def __init__(self, segments: Sequence[Segment], tokens: int, start: int = 0):
        self.segments = list(segments)
        self.tokens = tokens
        self.span = (start, start + tokens)
        self._tiles: ops.GroupedSegments | None = None
        self._chopped: ops.Chopped | Literal[False] | None = False
        """False until it is known whether it pays."""

    @classmethod
    def of(cls, bounds: Sequence[int], entries: Sequence[int]) -> SegmentRoute:
        """From the first run of a group to its last; `entries` has 0 for runs of slots that are not in the group."""
        first = bounds[next(i for i, entry in enumerate(entries) if entry)]
        runs = zip(bounds[:-1], bounds[1:], entries, strict=True)
        segments = [(start - first, end - first, entry) for start, end, entry in runs if entry]
        return cls(segments, segments[-1][1], first)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One product per segment; few batched ones where segments are many and short."""
        self._refuse_other(x.shape[0])
        if _takes_grouped(x, weight):
            return ops.linear_grouped(x, weight, bias, self._tiled(x.device))
        if not torch.is_grad_enabled() and ops.gather_pays(self.segments, self.tokens, weight):
            return ops.linear_gathered(x, weight, bias, self.segments)
        if not torch.is_grad_enabled() and (chopped := self._chops(x.device)) is not None:
            return ops.linear_chopped(x, weight, bias, chopped)
        return ops.SegmentLinear.apply(x, weight, bias, self.segments)  # type: ignore[no-untyped-call, no-any-return]

    def vector(self, p: Tensor, like: Tensor) -> Tensor:
        """[n, d]."""
        self._refuse_other(like.shape[0])
        if p.is_cuda:
            return ops.vector_grouped(p, self._tiled(p.device), like.dtype)
        if not torch.is_grad_enabled() and (chopped := self._chops(p.device)) is not None:
            return ops.vector_chopped(p, chopped, like.dtype)
        return ops.SegmentVector.apply(p, self.segments, like.shape[0], like.dtype)  # type: ignore[no-untyped-call, no-any-return]

    def _tiled(self, device: torch.device) -> ops.GroupedSegments:
        if self._tiles is None or self._tiles.entry.device != device:
            self._tiles = ops.GroupedSegments(self.segments, self.tokens, device)
        return self._tiles

    def _chops(self, device: torch.device) -> ops.Chopped | None:
        if self._chopped is False:
            pays = ops.Chopped.pays(self.segments)
            self._chopped = ops.Chopped(self.segments, self.tokens, device) if pays else None
        return self._chopped

    def _refuse_other(self, tokens: int) -> None:
        assert tokens == self.tokens, f"the route has {self.tokens} tokens, the tensor {tokens}"


def _takes_grouped(x: Tensor, weight: Tensor) -> bool:
    """grouped_mm wants CUDA, half precision, and rows in multiples of 16 bytes."""
    return x.is_cuda and x.dtype == torch.bfloat16 and weight.shape[1] % 8 == 0
