"""Sites: a model's row of the architecture table, checked against the model itself.

A `Site` is plain data (no module), so parameter counts need only a model on the meta device. Surprising:
ALBERT has one layer that is called many times, so it has one layer of sites here, and an adapter in it acts
at every call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from inlay.base.arch import Arch
from inlay.errors import ArchError, SpecError, suggest

_PATH = re.compile(r"^(?P<path>[^\[]+)(?:\[(?P<index>\d+)/(?P<count>\d+)\])?$")


@dataclass(frozen=True)
class Site:
    """A place where a layer can be changed."""

    name: str
    """`layers.3.attn.out`, or the kind itself outside the layers."""
    kind: str
    layer: int | None
    path: str
    """Path of the leaf module in the base model."""
    d_in: int
    d_out: int
    columns: tuple[int, int] | None = None
    """The slice of a fused projection's output that is this site."""
    bias: bool = False
    norm: Literal["layer", "rms"] | None = None
    eps: float = 0.0
    dropout: str | None = None
    """Path of the dropout between this projection and the residual."""


@dataclass(frozen=True)
class Sites:
    """All sites of a model, and other facts about its shape that methods need."""

    arch: Arch
    hidden: int
    layers: int
    depth: int
    """How many hidden states follow the embedding: `layers`, unless one layer is called several times."""
    items: tuple[Site, ...]
    layer_paths: tuple[str, ...]
    parameters: dict[str, tuple[int, ...]]
    """Every parameter of the base and its shape."""
    single_slot: frozenset[str]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.items)

    @property
    def kinds(self) -> list[str]:
        """The kinds of sites this model has."""
        return sorted({site.kind for site in self.items})

    @property
    def size(self) -> int:
        """How many parameters the base has."""
        return sum(torch.Size(shape).numel() for shape in self.parameters.values())

    @property
    def output(self) -> Site:
        """The pseudo-site of the last hidden state, where all hidden states are known."""
        return Site("output", "output", None, self.arch.output, self.hidden, self.hidden)

    def at(self, kind: str, layer: int | None = None) -> Site | None:
        """The site of this kind in this layer, if the model has it."""
        return next((s for s in self.items if s.kind == kind and s.layer == layer), None)

    def select(self, kinds: tuple[str, ...], layers: tuple[int, ...]) -> list[Site]:
        """The sites of these kinds in these layers; a kind the model lacks altogether is an error."""
        for kind in kinds:
            if kind not in self.kinds:
                raise SpecError(f"{self.arch.model_type} has no site {kind!r}. {suggest(kind, self.kinds)}")
        return [s for s in self.items if s.kind in kinds and (s.layer is None or s.layer in layers)]

    def projections(self, kinds: str, layers: str) -> list[Site]:
        """Read a `sites=` option: kinds of projections joined by `+`, in the layers that a `layers=` option chooses."""
        chosen = self.read_kinds(kinds)
        norm = next((kind for kind in chosen if kind.endswith("norm")), None)
        if norm is not None:
            valid = ", ".join(kind for kind in self.kinds if not kind.endswith("norm"))
            raise SpecError(f"sites={kinds}: {norm} is a norm, not a projection. Valid: {valid}")
        return self.select(chosen, self.choose_layers(layers))

    def read_kinds(self, text: str) -> tuple[str, ...]:
        """Kinds joined by `+`, each once."""
        chosen = tuple(kind.strip() for kind in text.split("+"))
        if len(set(chosen)) < len(chosen):
            raise SpecError(f"sites={text} names a site twice")
        return chosen

    def choose_layers(self, text: str) -> tuple[int, ...]:
        """Read a `layers=` option: `all`, `3`, `4-11`, `top3`, or several joined by `+`."""
        if text == "all":
            return tuple(range(self.layers))
        chosen: set[int] = set()
        for part in text.split("+"):
            chosen |= set(self._layer_range(part.strip(), text))
        return tuple(sorted(chosen))

    def _layer_range(self, part: str, text: str) -> range:
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)|top(\d+)", part)
        if match is None:
            raise SpecError(f"layers={text} is not valid: expected all, 3, 4-11, top3, or several joined by +")
        first, last, top = (int(g) if g is not None else None for g in match.groups())
        if top is not None:
            span = range(self.layers - top, self.layers)
        else:
            assert last is not None
            span = range(last if first is None else first, last + 1)
        if len(span) == 0 or span.start < 0 or span.stop > self.layers:
            raise SpecError(f"layers={text} is out of range: this model has layers 0 to {self.layers - 1}")
        return span


def resolve(model: nn.Module, arch: Arch) -> Sites:
    """Check a row against a model and list its sites; an error names the path that is missing."""
    config = config_of(model)
    if getattr(config, "chunk_size_feed_forward", 0):
        raise ArchError(f"{arch.model_type}: chunk_size_feed_forward must be 0; a chunk is not the whole batch")
    layer_paths = tuple(_layer_paths(model, arch))
    items: list[Site] = []
    for index, prefix in enumerate(layer_paths):
        for kind, path in arch.sites.items():
            items += _site(model, arch, kind, f"{prefix}.{path}", index, prefix)
    for kind, path in arch.outside.items():
        if kind in arch.optional and _get(model, path) is None:
            continue
        items += _site(model, arch, kind, path, None, "")
    _check_attention(model, arch, layer_paths)
    if _get(model, arch.output) is None:
        raise ArchError(f"{arch.model_type}: this model has no {arch.output!r} (output)")
    special = arch.single_slot_if is not None and bool(getattr(config, arch.single_slot_if, False))
    return Sites(
        arch=arch,
        hidden=config.hidden_size,
        layers=len(layer_paths),
        depth=config.num_hidden_layers * getattr(config, "inner_group_num", 1),
        items=tuple(items),
        layer_paths=layer_paths,
        parameters={name: tuple(p.shape) for name, p in model.named_parameters()},
        single_slot=frozenset(arch.single_slot if special else ()),
    )


def _check_attention(model: nn.Module, arch: Arch, layer_paths: tuple[str, ...]) -> None:
    for path in (f"{prefix}.{arch.own_attention}" for prefix in layer_paths if arch.own_attention is not None):
        if _get(model, path) is None:
            raise ArchError(f"{arch.model_type}: this model has no {path!r} (own_attention)")
    if arch.position_bias is not None:
        owner, _, name = arch.position_bias.rpartition(".")
        if not callable(getattr(_get(model, owner), name, None)):
            raise ArchError(f"{arch.model_type}: this model has no function {arch.position_bias!r} (position_bias)")


def config_of(model: nn.Module) -> Any:
    """A Hugging Face model's config."""
    return model.config


def _layer_paths(model: nn.Module, arch: Arch) -> Iterator[str]:
    """`a.*.b` -> a.0.b.0, a.0.b.1, a.1.b.0 ..."""
    prefixes = [""]
    for part in arch.layers.split(".*."):
        paths = [f"{prefix}.{part}" if prefix else part for prefix in prefixes]
        prefixes = []
        for path in paths:
            layers = _get(model, path)
            if not isinstance(layers, nn.ModuleList):
                raise ArchError(f"{arch.model_type}: this model has no list of layers at {path!r}")
            prefixes += [f"{path}.{i}" for i in range(len(layers))]
    yield from prefixes


def _get(model: nn.Module, path: str) -> nn.Module | None:
    module: object = model
    for part in path.split("."):
        module = getattr(module, part, None)
    return module if isinstance(module, nn.Module) else None


def _site(model: nn.Module, arch: Arch, kind: str, path: str, layer: int | None, prefix: str) -> list[Site]:
    match = _PATH.match(path)
    if match is None or (match["index"] is not None and int(match["index"]) >= int(match["count"])):
        raise ArchError(f"{arch.model_type}: {path!r} (site {kind}) is not a path, or path[i/n] with i below n")
    leaf_path = match["path"]
    leaf = _get(model, leaf_path)
    if leaf is None:
        raise ArchError(f"{arch.model_type}: this model has no {leaf_path!r} (site {kind})")
    weight = getattr(leaf, "weight", None)
    if kind.endswith("norm") and isinstance(leaf, nn.Identity):  # ModernBERT's first layer
        return []
    if weight is None:
        raise ArchError(f"{arch.model_type}: {leaf_path!r} (site {kind}) has no weight")
    name = kind if layer is None else f"layers.{layer}.{kind}"
    bias = getattr(leaf, "bias", None) is not None
    if kind.endswith("norm"):
        eps = getattr(leaf, "eps", None) or getattr(leaf, "variance_epsilon", None)
        if weight.dim() != 1 or eps is None:
            raise ArchError(f"{arch.model_type}: {leaf_path!r} (site {kind}) is not a norm")
        d = weight.shape[0]
        return [Site(name, kind, layer, leaf_path, d, d, None, bias, arch.norm_kind, float(eps))]
    if weight.dim() != 2:
        raise ArchError(f"{arch.model_type}: {leaf_path!r} (site {kind}) is not a projection")
    d_in, d_out = weight.shape if stores_in_out(leaf) else reversed(weight.shape)
    columns = None
    if match["index"] is not None:
        if d_out % int(match["count"]):
            raise ArchError(f"{arch.model_type}: {path!r} (site {kind}): {d_out} outputs do not divide so")
        d_out //= int(match["count"])
        columns = (int(match["index"]) * d_out, (int(match["index"]) + 1) * d_out)
    dropout = arch.dropouts.get(kind)
    if dropout is not None:
        dropout = f"{prefix}.{dropout}"
        if _get(model, dropout) is None:
            raise ArchError(f"{arch.model_type}: this model has no {dropout!r} (dropout of {kind})")
    return [Site(name, kind, layer, leaf_path, d_in, d_out, columns, bias, dropout=dropout)]


def stores_in_out(leaf: nn.Module) -> bool:
    """GPT-2's Conv1D keeps its weight as [in, out]; nn.Linear as [out, in]."""
    return type(leaf).__name__ == "Conv1D"
