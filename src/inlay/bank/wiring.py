"""How deltas get into a Hugging Face model: `forward` is overridden on instances, nothing else.

No class is replaced, no modelling code is copied, and the state dict keeps its keys. A projection becomes
dense, deltas of the projection, dropout, deltas of the sublayer; the model's own dropout module there becomes
an identity, because it would run after the deltas. Removing the wiring restores the model bit for bit.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.activations import GELUActivation

from inlay.bank.compiled import Call, compiled_layer
from inlay.bank.delta import Delta, Signal, Tensors
from inlay.bank.gelu import half_gelu
from inlay.bank.joined import FusedProduct
from inlay.bank.noise import number
from inlay.bank.passes import PROBABILITIES, LayerActions, Pass
from inlay.bank.route import Route
from inlay.bank.weights import call_with
from inlay.base.attention import attention
from inlay.base.joint import joint
from inlay.base.leaf import Leaf
from inlay.base.load import IN_USE, refuse_in_use
from inlay.base.products import LinearBackend
from inlay.base.sites import Site, Sites, config_of

_OPENS = {"attn.v": "attn", "ffn.in": "ffn"}
"""Projections whose input is the input of their sublayer."""


class Wiring:
    """The overrides in one model. `current` is the pass under way; without one the model is as it was."""

    def __init__(
        self, model: nn.Module, sites: Sites, fuse: bool = False, products: Mapping[str, LinearBackend] | None = None
    ):
        """
        Args:
            fuse: compute queries, keys and values in one product, where they are three.
            products: path of a projection -> the base's own product there, if it has one (int8).
        """
        self.model = model
        self.sites = sites
        self._outside = [site for site in sites if site.layer is None]
        self.current: Pass | None = None
        self.checkpointing = False
        """Recompute each layer in the backward pass instead of keeping its activations."""
        self.leaves: dict[str, Leaf] = {}
        """Site name -> the frozen module there."""
        self._undo: list[Callable[[], None]] = []
        refuse_in_use(model)
        model.__dict__[IN_USE] = True
        products = products or {}
        self._fused = dict(self._fuse(products)) if fuse else {}
        self._install(products)

    @contextmanager
    def running(self, state: Pass) -> Iterator[None]:
        """Let the model run under a pass."""
        state.leaves = self.leaves
        state.outside = state.layer_actions(self._outside, self._places.get(("", 0), {}))
        before, self.current = self.current, state
        try:
            yield
        finally:
            self.current = before

    def remove(self) -> bool:
        """Remove every override; False if that has been done before."""
        if not self._undo:
            return False
        while self._undo:
            self._undo.pop()()
        del self.model.__dict__[IN_USE]
        return True

    @property
    def head_place(self) -> Tensor:
        """The number of the dropout in front of a head."""
        return self._places["", 0]["head"]

    @property
    def removed(self) -> bool:
        """Whether the model is as it was."""
        return not self._undo

    def override(self, module: nn.Module, wrap: Callable[[Call], Call], name: str = "forward") -> None:
        """Replace a module's forward, or another function, by `wrap(forward)`, on this instance, until removed."""
        before = module.__dict__.get(name)
        plain = getattr(module, name)
        setattr(module, name, functools.wraps(plain)(wrap(plain)))

        def undo() -> None:
            delattr(module, name)
            if before is not None:
                setattr(module, name, before)

        self._undo.append(undo)

    def _install(self, products: Mapping[str, LinearBackend]) -> None:
        by_path: dict[str, list[Site]] = defaultdict(list)
        for site in self.sites:
            by_path[site.path].append(site)
        for path, sites in by_path.items():
            module = self.model.get_submodule(path)
            form = products[path].kind if path in products else ""
            self.leaves |= {site.name: Leaf(site, module, module.forward, form) for site in sites}
            self.override(module, functools.partial(self._leaf, sites))
        moved = {site.dropout for site in self.sites if site.dropout is not None}
        silent = tuple(self.sites.arch.attention_dropouts)
        paths = ["head", *moved, *(f"{layer}.{PROBABILITIES}" for layer in self.sites.layer_paths)]
        for path, module in self.model.named_modules():
            if path in moved:
                self.override(module, lambda plain: lambda x: x)
            elif isinstance(module, nn.Dropout) and path.endswith(silent):
                self.override(module, self._attention_dropout)
            elif isinstance(module, nn.Dropout):
                paths.append(path)
                self.override(module, functools.partial(self._dropout, path, module))
            elif isinstance(module, GELUActivation):
                self.override(module, self._gelu)
        for index, path in enumerate(self.sites.layer_paths):
            module = self.model.get_submodule(path)
            self.override(module, functools.partial(self._layer, index, path, module))
        self._install_attention()
        site = self.sites.output
        module = self.model.get_submodule(site.path)
        self.leaves[site.name] = Leaf(site, module, module.forward)
        self.override(module, functools.partial(self._output, site))
        self._places = _number_places(paths, self.sites, next(self.model.parameters()).device)

    def _install_attention(self) -> None:
        """Packed rows for a model that computes attention itself."""
        arch = self.sites.arch
        for index, path in enumerate(self.sites.layer_paths if arch.own_attention is not None else ()):
            sites = [self.sites.at(kind, index) for kind in ("attn.q", "attn.k", "attn.v", "attn.out")]
            projections = [self.model.get_submodule(site.path) for site in sites if site is not None]
            module = self.model.get_submodule(f"{path}.{arch.own_attention}")
            self.override(module, functools.partial(self._own_attention, module, projections))
        if arch.position_bias is not None:
            owner, _, name = arch.position_bias.rpartition(".")
            self.override(self.model.get_submodule(owner), self._position_bias, name)

    def _own_attention(self, module: nn.Module, projections: list[nn.Module], plain: Call) -> Call:
        """
        Args:
            projections: those to queries, keys and values, and that of the result.
        """
        heads = config_of(self.model).num_attention_heads

        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            rows = None if self.current is None else self.current.rows
            if rows is None:
                return plain(x, *args, **kwargs)
            q, k, v = (project(x).unflatten(2, (heads, -1)).transpose(1, 2) for project in projections[:3])
            return (projections[3](attention(module, q, k, v, None, inlay_rows=rows)[0].flatten(2)),)

        return forward

    def _position_bias(self, plain: Call) -> Call:
        def compute(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            rows = None if self.current is None else self.current.rows
            if rows is None:
                return plain(x, *args, **kwargs)
            with x.device:  # transformers 5.17 counts positions on the CPU, and a copy from there cannot be recorded
                rows.add_bias(plain(x.new_empty(1, rows.longest, 0))[0])
            return None

        return compute

    def _fuse(
        self, products: Mapping[str, LinearBackend]
    ) -> Iterator[tuple[str, Callable[[Tensor, dict[str, Any]], Tensor]]]:
        for modules in joint(self.model, self.sites):
            product = FusedProduct(modules, products.get(next(iter(modules))))
            self._undo.append(product.undo)
            yield from ((path, functools.partial(product, kind)) for kind, path in enumerate(modules))

    def _leaf(self, sites: list[Site], plain: Call) -> Call:
        """The forward of a projection or norm; a fused projection has several sites."""
        path = sites[0].dropout
        dropout = None if path is None else self.model.get_submodule(path)
        inside = sites[0].layer is not None
        fused = self._fused.get(sites[0].path)
        place = None if path is None else self._within(path)
        # attn.v, not attn.q: DeBERTa calls q and k on its relative embeddings too
        opens = next((_OPENS[site.kind] for site in sites if site.kind in _OPENS), None)

        def forward(x: Tensor) -> Tensor:
            state = self.current
            if state is None:
                y: Tensor = plain(x)
                return y if dropout is None else F.dropout(y, _p(dropout), dropout.training)
            here = state.here if inside else state.outside
            for site in sites:
                if any(delta.stage == "input" for delta, *_ in here.actions.get(site.kind, ())):
                    x = change(state, here, site, "input", plain(x), x)
            y = plain(x) if fused is None or state.weights else fused(x, state.fused)
            if opens is not None and "sublayer_input" in state.wants:
                state.sublayer_input[opens] = x
            for site in sites:
                y = change(state, here, site, "projection", x, y)
            if dropout is not None:
                assert place is not None
                y = state.drop(here, place, _p(dropout), dropout.training, y)
            for site in sites:
                y = change(state, here, site, "sublayer", x, y)
            if state.observer is not None:
                for site in sites:
                    state.observer.leaf(site, y)
            return y

        return forward

    def _dropout(self, path: str, module: nn.Dropout, plain: Call) -> Call:
        place = self._within(path)
        inside = place != path

        def forward(x: Tensor) -> Tensor:
            state = self.current
            if state is None:
                return plain(x)  # type: ignore[no-any-return]
            here = state.here if inside else state.outside
            return state.drop(here, place, module.p, module.training, x)

        return forward

    def _within(self, path: str) -> str:
        """A path within its layer; outside the layers the path itself."""
        layer = next((layer for layer in self.sites.layer_paths if path.startswith(f"{layer}.")), None)
        return path if layer is None else path[len(layer) + 1 :]

    def _attention_dropout(self, plain: Call) -> Call:
        def forward(x: Tensor) -> Tensor:
            return plain(x) if self.current is None else self.current.drop_attention(x, plain)

        return forward

    def _gelu(self, plain: Call) -> Call:
        def forward(x: Tensor) -> Tensor:
            fast = self.current is not None and self.current.compiled and x.element_size() == 2
            return half_gelu(x) if fast else plain(x)

        return forward

    def _layer(self, index: int, path: str, module: nn.Module, plain: Call) -> Call:
        """The forward of a layer: counts depth, keeps the input if a delta wants it, and checkpoints if asked to."""
        sites = [site for site in self.sites if site.layer == index]

        def forward(*args: Any, **kwargs: Any) -> Any:
            state = self.current
            if state is None:
                return plain(*args, **kwargs)
            depth, state.depth = state.depth, state.depth + 1
            if state.begin is not None and depth <= state.begin[0]:
                if depth < state.begin[0]:
                    states = args[0] if args else kwargs["hidden_states"]
                    return (states,) if self.sites.arch.layer_gives == "tuple" else states
                if args:
                    args = (state.begin[1], *args[1:])
                else:
                    kwargs["hidden_states"] = state.begin[1]
            states = args[0] if args else kwargs["hidden_states"]
            if "hidden" in state.wants:
                state.hidden.append(states)
            if state.observer is not None:
                state.observer.layer(depth, states)
            state.here = state.layer_actions(sites, self._places.get((path, depth), {}))
            if state.compiled:
                return compiled_layer(plain, args, kwargs)
            if not (self.checkpointing and torch.is_grad_enabled()):
                return plain(*args, **kwargs)
            return checkpoint(self.again(path, module, state, plain), *args, use_reentrant=False, **kwargs)

        return forward

    def again(self, path: str, module: nn.Module, state: Pass, run: Call) -> Call:
        """A layer's call that can be repeated later under the same pass, weights and actions."""
        weights = {n.removeprefix(f"{path}."): w for n, w in state.weights.items() if n.startswith(f"{path}.")}
        here = state.here

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.running(state):
                before, state.here = state.here, here
                try:
                    return call_with(weights, module, run, args, kwargs)
                finally:
                    state.here = before

        return call

    def _output(self, site: Site, plain: Call) -> Call:
        """The forward of the module that gives the last hidden state, as a tensor or first in a structure."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            out = plain(*args, **kwargs)
            state = self.current
            if state is None or not ("hidden" in state.wants or state.observer is not None):
                return out
            last = out if isinstance(out, Tensor) else out[0]
            mixed = last
            if "hidden" in state.wants:
                state.hidden.append(last)
                mixed = change(state, state.layer_actions([site], {}), site, "projection", last, last)
            if state.observer is not None:
                state.observer.layer(state.depth, mixed)
            if isinstance(out, Tensor):
                return mixed
            if isinstance(out, tuple):
                return (mixed, *out[1:])
            out.last_hidden_state = mixed
            if out.get("hidden_states") is not None:  # DeBERTa reads its result from here
                out.hidden_states = (*out.hidden_states[:-1], mixed)
            return out

        return forward


def change(state: Pass, here: LayerActions, site: Site, stage: str, x: Tensor, y: Tensor) -> Tensor:
    """Add every delta of a stage at a site."""
    for delta, tensors, route in here.actions.get(site.kind, ()):
        if delta.stage == stage:
            y = _add(state, site, delta, tensors, route, x, y)
    return y


def _add(state: Pass, site: Site, delta: Delta, tensors: Tensors, route: Route, x: Tensor, y: Tensor) -> Tensor:
    flat = y.reshape(-1, y.shape[-1])
    start, end = route.span or (0, flat.shape[0])
    first, last = site.columns or (0, flat.shape[1])

    def of_route(t: Tensor) -> Tensor:
        flat = t.reshape(-1, t.shape[-1])
        return flat if route.span is None else flat[start:end]

    wants = delta.wants
    below = state.sublayer_input.get(site.kind.split(".")[0]) if "sublayer_input" in wants else None
    hidden = [of_route(h) for h in state.hidden] if "hidden" in wants else []
    here = flat if route.span is None and site.columns is None else flat[start:end, first:last]
    base = state.leaves[site.name] if "base" in wants or "weight" in wants else None
    signal = Signal(site, of_route(x), here, None if below is None else of_route(below), hidden, base)
    if state.observer is not None:
        state.observer.delta(state.depth - 1, delta, route, tensors, signal)
    added = here + delta.difference(route, tensors, signal)
    if here is flat or added.shape == flat.shape:
        flat = added
    elif torch.is_grad_enabled():
        rows = added if last - first == flat.shape[1] else flat[start:end].slice_scatter(added, 1, first, last)
        flat = flat.slice_scatter(rows, 0, start, end)
    else:
        flat[start:end, first:last] = added
    return flat.view(y.shape)


def _p(dropout: nn.Module) -> float:
    """ModernBERT puts an Identity where it has no dropout."""
    return float(getattr(dropout, "p", 0.0))


def _number_places(
    paths: Iterable[str], sites: Sites, device: torch.device
) -> dict[tuple[str, int], dict[str, Tensor]]:
    """(layer, depth) -> path within the layer -> the number of the dropout there; ("", 0) is outside the layers."""
    names: list[tuple[tuple[str, int], str, int]] = []
    for path in sorted(paths):
        layer = next((i for i, layer in enumerate(sites.layer_paths) if path.startswith(f"{layer}.")), None)
        if layer is None:
            names.append((("", 0), path, number("dropout", path)))
            continue
        prefix = sites.layer_paths[layer]
        depths = [layer] if sites.depth == sites.layers else range(sites.depth)
        names += [((prefix, d), path[len(prefix) + 1 :], number("dropout", path, d)) for d in depths]
    numbers = torch.tensor([n for _, _, n in names], dtype=torch.int32).to(device)
    places: dict[tuple[str, int], dict[str, Tensor]] = defaultdict(dict)
    for (where, path, _), place_number in zip(names, numbers.unbind(), strict=True):
        places[where][path] = place_number
    return places
