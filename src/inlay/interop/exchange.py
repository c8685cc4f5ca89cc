"""Both ends of every conversion: make an adapter from tensors, and take one apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from inlay.bank.delta import Method, parse
from inlay.base.load import Base
from inlay.engine.class_heads import HeadParts
from inlay.engine.loaded import Loaded
from inlay.errors import AdapterError, InlayError
from inlay.heads.pool import choose
from inlay.library.adapter import Adapter
from inlay.tasks import Task
from inlay.tasks import parse as parse_task


def assemble(
    base: Base, spec: str, tensors: Mapping[str, Tensor], head: HeadParts | None, name: str, about: dict[str, Any]
) -> Adapter:
    """An adapter of this base; every tensor is checked as loading it into a host would."""
    full = dict(tensors)
    fields: dict[str, Any] = {}
    if head is not None:
        full |= {f"head.{key}": tensor for key, tensor in head.tensors.items()}
        fields = {"head": head.kind, "pool": head.pool, "labels": head.labels, "task": head.task}
    uses_pooler = fields.get("pool") == "pooler" or any(key.startswith("pooler") for key in full)
    adapter = Adapter(spec, base.identity(uses_pooler), full, name=name, about=about, **fields)
    _record_of(adapter, base).fit(base, full)
    return adapter


def imported(library: str, version: object, base: object) -> dict[str, Any]:
    """Where an adapter is from, for its `about`."""
    return {"imported": {"from": library, "version": str(version or ""), "base": str(base or "")}}


def model_prefix(base: Base) -> str:
    """The name of the base inside transformers' classes with a head."""
    return str(getattr(base.model, "base_model_prefix", ""))


@dataclass(frozen=True)
class Opened:
    """An adapter to be written for another library."""

    method: Method
    tensors: dict[str, Tensor]
    """In float32, dense, and without those of the head."""
    head: HeadParts | None
    """As the other library decodes it: calibration and a regression's scale are in its weights."""
    dtype: torch.dtype

    def stored(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors in the adapter's dtype, each with memory of its own, since some may be shared."""
        copies = {name: t.to(self.dtype).clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
        large = next((name for name, t in copies.items() if not torch.isfinite(t).all()), None)
        if large is not None:
            raise AdapterError(f"{large} has numbers too large for {self.dtype}; export the adapter in float32")
        return copies


def open_adapter(adapter: Adapter, base: Base) -> Opened:
    """Take an adapter apart; an error if it belongs to another base."""
    identity = base.identity("+pooler:" in adapter.base)
    if adapter.base != identity:
        raise AdapterError(f"this adapter belongs to the base {adapter.base}, not to {base.name} ({identity})")
    record = _record_of(adapter, base)
    fitted = {name: tensor.detach().cpu().float() for name, tensor in record.fit(base, adapter.tensors).items()}
    of_head = {name.removeprefix("head."): fitted.pop(name) for name in list(fitted) if name.startswith("head.")}
    head = None
    if adapter.head is not None:
        weights = as_answered(record.task, of_head)
        head = HeadParts(adapter.head, record.pool, adapter.task, tuple(adapter.labels), weights)
    dtypes = {tensor.dtype for tensor in adapter.tensors.values() if tensor.is_floating_point()}
    return Opened(record.method, fitted, head, dtypes.pop() if len(dtypes) == 1 else torch.float32)


def without_head(adapter: Adapter) -> Adapter:
    """The same adapter without its head, for a library that has no such head."""
    tensors = {name: tensor for name, tensor in adapter.tensors.items() if not name.startswith("head.")}
    return replace(adapter, tensors=tensors, head=None, pool="auto", labels=(), task="")


def layers_text(layers: Sequence[int], count: int) -> str:
    """A `layers=` option: `all`, `0+2-3`."""
    if len(layers) == count or not layers:
        return "all"
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _record_of(adapter: Adapter, base: Base) -> Loaded:
    try:
        method = parse(adapter.method)
        pool = adapter.pool if adapter.head is None else choose(adapter.pool, base)
        task = parse_task(adapter.task) if adapter.task else None
        method.params(base.sites)
    except InlayError as error:
        raise AdapterError(f"this adapter does not fit {base.name}: {error}") from None
    return Loaded(0, method.finished(), adapter.method, adapter.seed, adapter.head, pool, tuple(adapter.labels), task)


def answered(task: Task | None) -> tuple[float, float]:
    """Factor and shift of the logits, after which a plain softmax, sigmoid or value is Inlay's answer."""
    return getattr(task, "scale", 1.0) / getattr(task, "temperature", 1.0), getattr(task, "mean", 0.0)


def as_answered(task: Task | None, head: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A head's tensors with that factor and shift in them."""
    factor, shift = answered(task)
    tensors = dict(head)
    if "weight" in head and (factor != 1 or shift != 0):
        tensors |= {"weight": head["weight"] * factor, "bias": head["bias"] * factor + shift}
    return tensors
