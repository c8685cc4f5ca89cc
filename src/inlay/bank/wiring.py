"""How deltas get into a Hugging Face model: `forward` is overridden on instances, nothing else.

No class is replaced, no modelling code is copied, and the state dict keeps its keys. A projection becomes
dense, deltas of the projection, dropout, deltas of the sublayer; the model's own dropout module there becomes
an identity, because it would run after the deltas. Removing the wiring restores the model bit for bit.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from inlay.bank.delta import Delta, Signal, Tensors
from inlay.bank.passes import Pass, Reached
from inlay.bank.route import Route
from inlay.bank.weights import call_with
from inlay.base.load import IN_USE, refuse_in_use
from inlay.base.sites import Site, Sites

Call = Callable[..., Any]
_OPENS = {"attn.v": "attn", "ffn.in": "ffn"}
"""Projections whose input is the input of their sublayer."""


class Wiring:
    """The overrides in one model. `current` is the pass under way; without one the model is as it was."""

    def __init__(self, model: nn.Module, sites: Sites):
        self.model = model
        self.sites = sites
        self.current: Pass | None = None
        self.checkpointing = False
        """Recompute each layer in the backward pass instead of keeping its activations."""
        self._undo: list[Callable[[], None]] = []
        refuse_in_use(model)
        model.__dict__[IN_USE] = True
        self._install()

    @contextmanager
    def running(self, state: Pass) -> Iterator[None]:
        """Let the model run under a pass."""
        before, self.current = self.current, state
        try:
            yield
        finally:
            self.current = before

    def remove(self) -> bool:
        """Take every override out again; False if that has been done before."""
        if not self._undo:
            return False
        while self._undo:
            self._undo.pop()()
        del self.model.__dict__[IN_USE]
        return True

    @property
    def removed(self) -> bool:
        """Whether the model is as it was."""
        return not self._undo

    def override(self, module: nn.Module, wrap: Callable[[Call], Call]) -> None:
        """Replace a module's forward by `wrap(forward)`, on this instance, until removed."""
        before = module.__dict__.get("forward")
        plain = module.forward
        module.forward = functools.wraps(plain)(wrap(plain))

        def undo() -> None:
            del module.forward
            if before is not None:
                module.forward = before

        self._undo.append(undo)

    def _install(self) -> None:
        leaves: dict[str, list[Site]] = defaultdict(list)
        for site in self.sites:
            leaves[site.path].append(site)
        for path, sites in leaves.items():
            self.override(self.model.get_submodule(path), functools.partial(self._leaf, sites))
        moved = {site.dropout for site in self.sites if site.dropout is not None}
        silent = tuple(self.sites.arch.attention_dropouts)
        for path, module in self.model.named_modules():
            if path in moved:
                self.override(module, lambda plain: lambda x: x)
            elif isinstance(module, nn.Dropout):
                wrap = (
                    self._attention_dropout if path.endswith(silent) else functools.partial(self._dropout, path, module)
                )
                self.override(module, wrap)
        for path in self.sites.layer_paths:
            self.override(module := self.model.get_submodule(path), functools.partial(self._layer, path, module))
        site = self.sites.output
        self.override(self.model.get_submodule(site.path), functools.partial(self._output, site))

    def _leaf(self, sites: list[Site], plain: Call) -> Call:
        """A projection or norm; several sites if it is fused."""
        path = sites[0].dropout
        dropout = None if path is None else self.model.get_submodule(path)
        # attn.v, not attn.q: DeBERTa calls q and k on its relative embeddings too
        opens = next((_OPENS[site.kind] for site in sites if site.kind in _OPENS), None)
        is_pooler = sites[0].kind == "pooler"

        def forward(x: Tensor) -> Tensor:
            state = self.current
            y: Tensor = plain(x)
            if state is None:
                return y if dropout is None else F.dropout(y, _p(dropout), dropout.training)
            if opens is not None and "sublayer_input" in state.wants:
                state.sublayer_input[opens] = x
            for site in sites:
                y = change(state, site, "projection", x, y, optional=is_pooler)
            if dropout is not None:
                assert path is not None
                y = state.drop(path, _p(dropout), dropout.training, y)
            for site in sites:
                y = change(state, site, "sublayer", x, y, optional=is_pooler)
            return y

        return forward

    def _dropout(self, path: str, module: nn.Dropout, plain: Call) -> Call:
        def forward(x: Tensor) -> Tensor:
            if self.current is None:
                return plain(x)  # type: ignore[no-any-return]
            return self.current.drop(path, module.p, module.training, x)

        return forward

    def _attention_dropout(self, plain: Call) -> Call:
        def forward(x: Tensor) -> Tensor:
            off = self.current is not None and not self.current.attention_dropout
            return x if off else plain(x)

        return forward

    def _layer(self, path: str, module: nn.Module, plain: Call) -> Call:
        """A layer: counts depth, keeps its input if wanted, and checkpoints if asked to."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            state = self.current
            if state is None:
                return plain(*args, **kwargs)
            depth, state.depth = state.depth, state.depth + 1
            if state.stop == depth:
                raise Reached(args[0] if args else kwargs["hidden_states"])
            if state.begin is not None and depth <= state.begin[0]:
                if depth < state.begin[0]:
                    return args[0] if args else kwargs["hidden_states"]
                if args:
                    args = (state.begin[1], *args[1:])
                else:
                    kwargs["hidden_states"] = state.begin[1]
            if "hidden" in state.wants:
                state.hidden.append(args[0] if args else kwargs["hidden_states"])
            if not (self.checkpointing and torch.is_grad_enabled()):
                return plain(*args, **kwargs)
            call = self.again(path, module, state, plain, depth + 1)
            return checkpoint(call, *args, use_reentrant=False, **kwargs)

        return forward

    def again(self, path: str, module: nn.Module, state: Pass, run: Call, depth: int | None = None) -> Call:
        """A layer's call that can be run again later, as it was: under its pass, its weights, and at its depth."""
        own = {n.removeprefix(f"{path}."): w for n, w in state.weights.items() if n.startswith(f"{path}.")}

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.running(state):
                now, state.depth = state.depth, state.depth if depth is None else depth
                try:
                    return call_with(own, module, run, args, kwargs)
                finally:
                    state.depth = now

        return call

    def _output(self, site: Site, plain: Call) -> Call:
        """The module that gives the last hidden state: a tensor, or a structure whose first part it is."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            out = plain(*args, **kwargs)
            state = self.current
            if state is None or "hidden" not in state.wants:
                return out
            last = out if isinstance(out, Tensor) else out[0]
            state.hidden.append(last)
            mixed = change(state, site, "projection", last, last)
            if isinstance(out, Tensor):
                return mixed
            if isinstance(out, tuple):
                return (mixed, *out[1:])
            out.last_hidden_state = mixed
            if out.get("hidden_states") is not None:  # DeBERTa reads its result from here
                out.hidden_states = (*out.hidden_states[:-1], mixed)
            return out

        return forward


def change(state: Pass, site: Site, stage: str, x: Tensor, y: Tensor, optional: bool = False) -> Tensor:
    """Add every delta of a stage at a site.

    An `optional` site is left alone when it is called on something other than the batch's tokens: the model's
    own pooler call, where rows are pooled again afterwards.
    """
    for delta, tensors, route in state.at(site):
        if delta.stage != stage:
            continue
        if optional and not route.is_uniform and x.shape[:-1].numel() < route.start + route.tokens:
            continue
        y = _add(state, site, delta, tensors, route, x, y)
    return y


def _add(state: Pass, site: Site, delta: Delta, tensors: Tensors, route: Route, x: Tensor, y: Tensor) -> Tensor:
    flat = y.reshape(-1, y.shape[-1])
    start, end = (0, flat.shape[0]) if route.is_uniform else (route.start, route.start + route.tokens)
    first, last = site.columns or (0, flat.shape[1])

    def mine(t: Tensor) -> Tensor:
        return t.reshape(-1, t.shape[-1])[start:end]

    below = state.sublayer_input.get(site.kind.split(".")[0]) if "sublayer_input" in delta.wants else None
    hidden = [mine(h) for h in state.hidden] if "hidden" in delta.wants else []
    here = flat[start:end, first:last]
    signal = Signal(site, mine(x), here, None if below is None else mine(below), hidden)
    added = here + delta.difference(route, tensors, signal)
    if added.shape == flat.shape:
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
