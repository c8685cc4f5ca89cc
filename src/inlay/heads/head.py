"""Heads: from a pooled row (or every token) to one number per label.

    linear   W h + b
    tanh2    W2 tanh(W1 h + b1) + b2    W1 [d, d]; two layers, as in the third and fourth papers
    mlp      W2 gelu(W1 h + b1) + b2    W1 [d, d]
    relu2    W2 relu(W1 h + b1) + b2    W1 [d, d]; DistilBERT's own
    transform   LN(gelu(W h + b))       as wide as the word embeddings, which it is compared with (tasks/mlm.py)
    states      h                       the pooled states, without parameters (tasks/_contrast.py)

A head is a delta at the pseudo-site `head`, so heads of all kinds and label counts stack in the bank like
everything else: labels are padded to a bucket, and padded labels are cut off again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.bank.delta import Delta, Param, Part, Signal, Tensors, bucket
from inlay.bank.route import Route
from inlay.base.sites import Site
from inlay.errors import SpecError, suggest
from inlay.heads import HEADS

ROWS, TOKENS = "head", "head.tokens"
"""The pseudo-sites: one vector per row, or one per token."""

_INNER: dict[str, Callable[[Tensor], Tensor] | None] = {
    "linear": None,
    "tanh2": torch.tanh,
    "mlp": F.gelu,
    "relu2": F.relu,
}
_OWN_WIDTH = ("transform", "states")
"""Heads whose width is the base's, not the number of labels."""
KINDS = (*HEADS, *_OWN_WIDTH)


@dataclass(frozen=True)
class Head(Delta):
    """A head of one kind."""

    kind: str
    labels: int

    def params(self, site: Site) -> dict[str, Param]:
        """weight [d, labels], bias [labels]; with an inner layer dense [d, d] and its bias [d]."""
        d = site.d_in
        if self.kind == "states":
            return {}
        if self.kind == "transform":
            vectors = {name: Param((self.labels,)) for name in ("dense_bias", "scale", "shift")}
            return {"dense": Param((d, self.labels)), **vectors}
        inner = {"dense": Param((d, d)), "dense_bias": Param((d,))} if _INNER[self.kind] else {}
        return inner | {"weight": Param((d, self.labels)), "bias": Param((self.labels,))}

    def initial(self, name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """Normal with standard deviation 0.02, like BERT's own head."""
        values = torch.zeros(shape, dtype=torch.float32)
        return values if len(shape) == 1 else values.normal_(0, 0.02, generator=random)

    def bucketed(self) -> Head:
        """Labels padded to a bucket; a transform keeps its width, because its norm would see the padding."""
        return self if self.kind in _OWN_WIDTH else replace(self, labels=bucket(self.labels))

    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """The logits themselves: a head has nothing to add to."""
        if self.kind == "states":
            return at.x
        if self.kind == "transform":
            h = F.gelu(route.linear(at.x, p["dense"], p["dense_bias"]))
            n = F.layer_norm(h, h.shape[-1:], eps=1e-12)
            return n + n * route.vector(p["scale"], n) + route.vector(p["shift"], n)  # scale is a difference from 1
        h, inner = at.x, _INNER[self.kind]
        if inner is not None:
            h = inner(route.linear(h, p["dense"], p["dense_bias"]))
        return route.linear(h, p["weight"], p["bias"])


def head_part(kind: str, labels: int, hidden: int, tokens: bool = False) -> Part:
    """A head as a part of an adapter."""
    if kind not in KINDS:
        raise SpecError(f"unknown head {kind!r}. {suggest(kind, KINDS)}")
    if labels < 1:
        raise SpecError(f"a head needs at least one label, not {labels}")
    place = TOKENS if tokens else ROWS
    return Part(Site(place, place, None, "", hidden, labels), Head(kind, labels), "head")
