"""What a host knows of a loaded adapter apart from its tensors, and which tensors it must have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from inlay.bank import sparse
from inlay.bank.delta import Method, Param, Part, WeightMethod, initial_of, params_of
from inlay.base.load import Base
from inlay.base.words import own_head, words_of
from inlay.errors import AdapterError, SpecError
from inlay.heads.head import head_part
from inlay.tasks import Task


@dataclass(frozen=True)
class Loaded:
    """One adapter in a host."""

    slot: int
    method: Method
    spec: str
    seed: int
    head: str | None
    pool: str
    labels: tuple[str, ...]
    task: Task | None = None
    sparse: frozenset[str] = frozenset()
    """Tensors that were loaded sparse, and are saved sparse again."""
    about: Mapping[str, Any] = field(default_factory=dict)
    width: int = 0
    """How many outputs its head has."""

    def head_parts(self, base: Base) -> list[Part]:
        """Its head as a part of the bank; none without labels."""
        if self.head is None:
            return []
        return [head_part(self.head, self.outputs(base), base.sites.hidden, self.pool == "tokens")]

    def outputs(self, base: Base) -> int:
        """The width of the head: a transform is as wide as the word embeddings it is compared with."""
        if self.head == "states":
            return base.sites.hidden
        return words_of(base)[0].shape[1] if self.head == "transform" else len(self.labels)

    def params(self, base: Base) -> dict[str, Param]:
        """Every tensor, the head's too."""
        return self.method.params(base.sites) | params_of(self.head_parts(base))

    def initial(self, base: Base) -> dict[str, Tensor]:
        """Fresh tensors; a transform starts as the checkpoint's own head, if it has one."""
        tensors = self.method.initial(base.sites, self.seed) | initial_of(self.head_parts(base), self.seed)
        if self.head == "transform":
            own_tensors = own_head(base)
            tensors |= {f"head.{name}": tensor for name, tensor in own_tensors.items() if name != "words"}
            if "scale" in own_tensors:
                tensors["head.scale"] = own_tensors["scale"] - 1
        return tensors

    def fit(self, base: Base, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors a slot needs, from those an adapter stores; an error names the first that does not fit."""
        needed = self.params(base)
        constants = [n for n, p in needed.items() if p.is_fixed]
        valid = set(needed) | {n + suffix for n in needed for suffix in (sparse.INDEX, sparse.VALUE)}
        extra = sorted(set(tensors) - valid)
        if extra:
            raise AdapterError(f"the adapter has a tensor that {self.spec} does not: {extra[0]}")
        full = sum(math.prod(p.shape) for n, p in needed.items() if n + sparse.INDEX in tensors)
        if full > base.sites.size:  # a few bytes may stand for any number of zeros
            raise AdapterError(f"the adapter would unpack to {full:,} numbers; the whole base has {base.sites.size:,}")
        fitted: dict[str, Tensor] = {}
        for name, param in needed.items():
            if name in constants:
                continue
            is_sparse = name + sparse.INDEX in tensors
            dense = sparse.decode(tensors, name, param.shape)
            if dense is None and param.role == "gate" and isinstance(self.method, WeightMethod):
                continue
            if dense is None:
                raise AdapterError(f"the adapter lacks the tensor {name} of {self.spec}")
            if tuple(dense.shape) != param.shape:
                raise AdapterError(f"{name} is {tuple(dense.shape)} in the adapter, {param.shape} in this base")
            if not torch.isfinite(dense).all():
                raise AdapterError(f"{name} in the adapter has numbers that are not finite")
            if is_sparse and isinstance(self.method, WeightMethod):
                fitted |= {name + s: tensors[name + s] for s in (sparse.INDEX, sparse.VALUE)}
            else:
                fitted[name] = dense
        # last, when everything fits: a spec alone may need more memory than there is
        fresh = self.method.initial(base.sites, self.seed) if constants else {}
        return fitted | {name: fresh[name] for name in constants}


def label_names(labels: Sequence[str] | int) -> tuple[str, ...]:
    """Label names, from names or from their number; empty for no head."""
    if isinstance(labels, int) and not isinstance(labels, bool) and labels >= 0:
        return tuple(str(i) for i in range(labels))
    if labels is None or isinstance(labels, int | str) or not all(isinstance(label, str) and label for label in labels):
        raise SpecError(f"labels must be a list of names or how many there are, not {labels!r}")
    if len(set(labels)) < len(labels):
        raise SpecError(f"labels must differ from one another: {', '.join(labels)}")
    return tuple(labels)
