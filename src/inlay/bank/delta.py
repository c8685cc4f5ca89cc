"""The contract of a method.

A *delta* is one kind of change at a site, written against the two routed primitives; it returns the
*difference* from what the frozen model computes. A *method* is a set of options (a frozen dataclass) that says
which deltas go to which sites and which of them share parameters. Deltas with equal static options form one
group and share stacks, whatever their true sizes: sizes are padded to a bucket.

Weight-level methods change the base's own matrices instead; they cannot share a batch with others, but have
the same surface.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import config
from inlay.bank.noise import generator
from inlay.bank.route import Route
from inlay.base.leaf import Leaf
from inlay.base.sites import Site, Sites
from inlay.config import option
from inlay.errors import SpecError
from inlay.registry import methods

Tensors = Mapping[str, Tensor]
DeltaStage = Literal["projection", "sublayer", "input"]
Uniform = Callable[[str, Tensor], Tensor]
"""(tensor name, tensor) -> uniform noise of the tensor's shape."""


@dataclass(frozen=True)
class Param:
    """One tensor of an adapter."""

    shape: tuple[int, ...]
    role: Literal["trained", "gate", "constant", "shared"] = "trained"
    """A gate is trained but dropped at the end; a constant follows from the options and is never trained. A shared one
    is a constant that follows from the bucketed delta alone, not from the adapter's seed: a group has one copy,
    [1, ...], for all its adapters."""

    @property
    def is_fixed(self) -> bool:
        """Whether it follows from the spec: it is not trained, not stored, and made again when an adapter is loaded."""
        return self.role in ("constant", "shared")

    @property
    def numel(self) -> int:
        """How many numbers it holds."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Signal:
    """What a delta sees at its site, for the tokens of its route."""

    site: Site
    x: Tensor
    """[n, d_in] the input of the projection or norm."""
    y: Tensor
    """[n, d_out] its output; at a sublayer's output after dropout, before the residual."""
    sublayer_input: Tensor | None = None
    """[n, d] the input of the sublayer's first projection; only for deltas that ask for it."""
    hidden: Sequence[Tensor] = ()
    """The hidden states so far, each [n, d]; only for deltas that ask for them."""
    base: Leaf | None = None
    """The frozen projection itself: its product with another input, its weight and bias; only for deltas that ask for
    `base` or `weight`."""

    def normalised(self) -> Tensor:
        """At a norm: its value before scale and shift."""
        d = (self.site.d_in,)
        if self.site.norm == "rms":
            return F.rms_norm(self.x.float(), d, eps=self.site.eps).to(self.x.dtype)
        return F.layer_norm(self.x, d, eps=self.site.eps)


class Delta(ABC):
    """One kind of change at a site. Subclasses are frozen dataclasses: their fields are the static options."""

    stage: ClassVar[DeltaStage] = "projection"
    """`projection`: part of the projection, before its dropout. `sublayer`: after it, before the residual. `input`, at
    a norm: added to the norm's input; the signal's y is that input, its x what the norm would make of it.
    """

    def __init_subclass__(cls) -> None:
        if {"difference", "derived", "effective"} & cls.__dict__.keys() and "merged" not in cls.__dict__:
            cls.merged = Delta.merged  # type: ignore[method-assign] # what its parent merges is not what it computes

    @property
    def wants(self) -> frozenset[str]:
        """Which optional parts of the signal it reads: `sublayer_input`, `hidden`, `base`, or `weight`, the base's own
        weights, which only a base with plain weights has (not int8, fp8 or prepack)."""
        return frozenset()

    @abstractmethod
    def params(self, site: Site) -> dict[str, Param]:
        """Its tensors at this site, at their true sizes."""

    def initial(self, name: str, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        """The starting value of one tensor; zero unless the method says otherwise."""
        return torch.zeros(shape, dtype=torch.float32)

    def bucketed(self) -> Delta:
        """The same delta with its sizes rounded up to a bucket: the key of its group."""
        return self

    def derived(self, p: Tensors, base: Leaf) -> Tensors:
        """Tensors [E, ...] computed from the parameters once for a pass: `difference` finds them in its `p`.

        They are computed for all entries at a site at once; `base` is the frozen projection there.
        """
        return {}

    @abstractmethod
    def difference(self, route: Route, p: Tensors, at: Signal) -> Tensor:
        """What to add to `at.y`: [n, d_out]. Tensors in `p` are stacked: [E, ...]; with all zeros it adds nothing."""

    def merged(self, p: Tensors, base: Leaf) -> Tensors | str:
        """What to add to the base's `weight` [d_in, d_out] and `bias` for the same result, or why that cannot be done.

        Args:
            p: one adapter's tensors [1, ...], and what is derived from them.
        """
        return f"has a part that merging does not know ({type(self).__name__})"

    @property
    def gated(self) -> bool:
        """Whether `effective` does anything."""
        return False

    def effective(self, p: Tensors, uniform: Uniform | None) -> Tensors:
        """The parameters with gates applied: sampled while training, settled otherwise."""
        return p

    def penalty(self, p: Tensors) -> Tensor | None:
        """What gates add to the loss of each entry: [E]."""
        return None


def bucket(size: int) -> int:
    """The bucket of a size: 8, 16, 32, 64 ... An adapter is padded to its own bucket, never to a neighbour's size."""
    return max(8, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Part:
    """A delta at one site, and where each of its tensors lives.

    `rows` names the row of every tensor (or of all of them); two parts that name the same row share it.
    """

    site: Site
    delta: Delta
    rows: str | Mapping[str, str]

    def names(self) -> Mapping[str, str]:
        """The delta's tensor name -> the adapter's: `down` -> `layers.0.attn.out.down`."""
        return self._names

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        rows = self.rows if isinstance(self.rows, Mapping) else dict.fromkeys(self.params, self.rows)
        return {name: f"{rows[name]}.{name}" for name in self.params}

    @functools.cached_property
    def params(self) -> dict[str, Param]:
        """The delta's tensors at its site."""
        return self.delta.params(self.site)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """The options every method has."""

    name: ClassVar[str] = ""
    identity_at_start: ClassVar[bool] = True
    """Whether a fresh adapter leaves the base's outputs exactly as they are."""
    learning_rate: ClassVar[float] = 1e-3
    """The default of a run."""
    retunes: ClassVar[bool] = False
    """Whether what `finish` keeps is trained a little more."""

    layers: str = option("all", "which layers to adapt: all, 3, 4-11, top3, or several joined by +")
    mixout: float = option(
        0.0, "reset values to their initial ones with this probability; turns dropout off", at_least=0, below=1
    )
    mixout_unit: Literal["neuron", "element"] = option("neuron", "what mixout drops at once")

    def __post_init__(self) -> None:
        config.refuse_out_of_range(self.name, self)
        self.check()
        for field in fields(self):
            if field.name in self.moot:
                object.__setattr__(self, field.name, field.default)

    @property
    def moot(self) -> Collection[str]:
        """Options without effect, given the others: they keep their defaults, so they make no two methods differ."""
        return ()

    def check(self) -> None:  # noqa: B027 - most methods have nothing to refuse
        """Refuse options that make no sense, with a SpecError."""

    @property
    def spec(self) -> str:
        """The shortest text that gives this method again."""
        return config.canonical(self.name, self)

    @abstractmethod
    def params(self, sites: Sites) -> dict[str, Param]:
        """Every tensor of an adapter by its full name, at its true size."""

    @abstractmethod
    def initial(self, sites: Sites, seed: int) -> dict[str, Tensor]:
        """A fresh adapter's tensors: a pure function of the options, the shape and the seed."""

    @abstractmethod
    def by_site(self, sites: Sites) -> dict[str, int]:
        """How many parameters are trained at each kind of site; gates are not counted."""

    def finish(self, tensors: Tensors) -> dict[str, Tensor]:
        """What is kept after training: gates applied and dropped. Called only for adapters with gates."""
        return dict(tensors)

    @property
    def gate_rate(self) -> float | None:
        """The peak learning rate of gates, where they have one of their own."""
        return None

    def gates_left(self, tensors: Tensors) -> dict[str, dict[str, float]]:
        """Gates by row: of `of` gates `left` are not exactly shut when settled; `expected` is E[L0]."""
        return {}

    def finished(self) -> Method:
        """The method that a finished adapter is served with: this one, without gates."""
        return self

    @abstractmethod
    def needs_weights(self, sites: Sites) -> bool:
        """Whether it works with the base's own weights, which only a base with plain weights has."""

    def count(self, sites: Sites) -> int:
        """How many parameters are trained, without the head and without gates."""
        return sum(self.by_site(sites).values())


class SlotMethod(Method):
    """A method whose adapters stack in the bank and share batches."""

    @abstractmethod
    def parts(self, sites: Sites) -> list[Part]:
        """Which delta goes where."""

    def params(self, sites: Sites) -> dict[str, Param]:
        """Every tensor by its full name; a row shared by several sites appears once."""
        return params_of(self.parts(sites))

    def initial(self, sites: Sites, seed: int) -> dict[str, Tensor]:
        """Fresh tensors, each drawn from its own generator."""
        return initial_of(self.parts(sites), seed)

    def start(self, sites: Sites, seed: int) -> dict[str, Tensor]:
        """Where mixout falls back to: the initial value of everything that trains; {} without mixout."""
        if not self.mixout:
            return {}
        roles = {name: param.role for name, param in self.params(sites).items()}
        return {name: t for name, t in self.initial(sites, seed).items() if roles[name] == "trained"}

    def needs_weights(self, sites: Sites) -> bool:
        """Whether a delta asks for them."""
        return any("weight" in part.delta.wants for part in self.parts(sites))

    def by_site(self, sites: Sites) -> dict[str, int]:
        """Counts by kind of site; a row shared by several kinds is listed under all of them together."""
        kinds: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        for part in self.parts(sites):
            params = part.delta.params(part.site)
            for name, full in part.names().items():
                if params[name].role != "trained":
                    continue
                sizes[full] = params[name].numel
                if part.site.kind not in kinds.setdefault(full, []):
                    kinds[full].append(part.site.kind)
        total: Counter[str] = Counter()
        for full, size in sizes.items():
            total["+".join(kinds[full])] += size
        return dict(total)


class WeightMethod(Method):
    """A method that changes the base's own parameters, in a pass of its own."""

    learning_rate: ClassVar[float] = 5e-5

    def needs_weights(self, sites: Sites) -> bool:
        """It changes them."""
        return True

    @abstractmethod
    def targets(self, sites: Sites) -> list[str]:
        """The base parameters it changes."""

    @abstractmethod
    def difference(self, name: str, tensors: Tensors, like: Tensor, uniform: Uniform | None) -> Tensor:
        """What to add to the base parameter `name`, which has the shape and place of `like`."""

    def penalty(self, tensors: Tensors) -> Tensor | None:
        """What gates add to the loss."""
        return None

    def draws(self, tensors: Tensors) -> bool:
        """Whether a pass in training draws numbers for its weights, and so differs from any other."""
        return bool(self.mixout)


def params_of(parts: Sequence[Part]) -> dict[str, Param]:
    """Every tensor of these parts by its full name; parts that share a row must agree on its shape."""
    params_of_name: dict[str, Param] = {}
    for part in parts:
        params = part.params
        for name, full in part.names().items():
            if params_of_name.setdefault(full, params[name]) != params[name]:
                shapes = f"{params_of_name[full].shape} and {params[name].shape}"
                raise SpecError(f"{full} is shared by sites of different widths: {shapes}")
    return params_of_name


def initial_of(parts: Sequence[Part], seed: int) -> dict[str, Tensor]:
    """Fresh tensors of these parts."""
    tensors: dict[str, Tensor] = {}
    for part in parts:
        params = part.delta.params(part.site)
        for name, full in part.names().items():
            if full not in tensors:
                param_seed = 0 if params[name].role == "shared" else seed
                tensors[full] = part.delta.initial(name, params[name].shape, generator(param_seed, full))
    return tensors


def penalty_of(parts: Sequence[Part], tensors: Tensors) -> Tensor | None:
    """What the gates among one adapter's tensors add to its loss; shared gates count once. None without gates."""
    penalties: dict[tuple[str, ...], Tensor] = {}
    for part in parts:
        if part.delta.gated:
            names, params = part.names(), part.delta.params(part.site)
            value = part.delta.penalty({name: tensors[full].unsqueeze(0) for name, full in names.items()})
            if value is not None:
                penalties[tuple(names[n] for n, p in params.items() if p.role == "gate")] = value[0]
    return torch.stack(list(penalties.values())).sum() if penalties else None


def parse(spec: str | Method) -> Method:
    """Read a spec; a method object passes through."""
    if isinstance(spec, Method):
        return spec
    if not isinstance(spec, str):
        raise SpecError(f"a method is a spec such as 'houlsby:size=64', not {spec!r}")
    name, options = config.split_spec(spec)
    method: Method = config.build(methods.find(name), name, options)
    return method


def parse_list(text: str) -> list[Method]:
    """Read a comma-separated list of specs."""
    return [parse(spec) for spec in config.split_list(text, methods.names())]
