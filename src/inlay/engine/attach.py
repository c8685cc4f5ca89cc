"""`attach`: one adapter in a Hugging Face model, for people with their own training loop or HF's Trainer.

The base is frozen, the model's own head stays trainable, and the adapter's tensors are ordinary parameters of
the model (under `inlay_adapter`), so optimisers, Trainer and checkpointing find them. `detach` takes everything
out and restores what was trainable before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from inlay.bank.compiled import Call
from inlay.bank.delta import Method, SlotMethod, WeightMethod, parse, penalty_of
from inlay.bank.noise import Keys
from inlay.bank.passes import Action, UniformPass, drawn
from inlay.bank.route import Route
from inlay.bank.weights import WeightSlot, call_with
from inlay.bank.wiring import Wiring
from inlay.base import arch
from inlay.base.fingerprint import ATTACHED, fingerprints, identity
from inlay.base.load import Base
from inlay.base.sites import resolve
from inlay.errors import BaseError
from inlay.library.adapter import Adapter

_SLOT = 1


class Attached:
    """An adapter inside a model. `detach()` undoes it."""

    def __init__(self, model: nn.Module, spec: str, seed: int = 0):
        if not hasattr(model, "config"):
            raise BaseError(f"{type(model).__name__} is not a Hugging Face model: it has no config")
        encoder: Any = getattr(model, "base_model", model)
        self.model = model
        self.method = parse(spec)
        _refuse_tied(model, encoder, self.method)
        self.seed = seed
        self.base = Base(encoder, resolve(encoder, arch.find(encoder.config.model_type)), type(model).__name__, "")
        start = self.method.initial(self.base.sites, seed)
        params = self.method.params(self.base.sites)
        self.wiring = Wiring(encoder, self.base.sites)  # refuses a model that is in use
        device = self.base.device
        self.tensors: dict[str, Tensor] = {
            name: tensor.to(device) if params[name].role == "constant" else nn.Parameter(tensor.to(device))
            for name, tensor in start.items()
        }
        self._start = self.method.start(self.base.sites, seed) if isinstance(self.method, SlotMethod) else {}
        self._was_trainable = {name: p.requires_grad for name, p in model.named_parameters()}
        encoder.requires_grad_(False)
        trained = {n.replace(".", "/"): t for n, t in self.tensors.items() if isinstance(t, nn.Parameter)}
        model.add_module(ATTACHED, nn.ParameterDict(trained))
        self._unsilence = self._silence() if self.method.mixout else lambda: None
        self.wiring.override(encoder, self._run)

    def __repr__(self) -> str:
        count = sum(t.numel() for t in self.tensors.values() if isinstance(t, nn.Parameter))
        return f"<Attached {self.method.spec} ({count:,} parameters) to {self.base.described}>"

    def detach(self) -> None:
        """Take the adapter out; the model then computes what it did before, bit for bit."""
        if not self.wiring.remove():
            return
        self._unsilence()
        delattr(self.model, ATTACHED)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(self._was_trainable.get(name, parameter.requires_grad))

    def adapter(self, finish: bool = False) -> Adapter:
        """A snapshot of the adapter; the model's own head is not part of it."""
        params = self.method.params(self.base.sites)
        tensors = {n: t.detach().cpu().clone() for n, t in self.tensors.items()}
        if finish:
            tensors = self.method.finish(tensors)
        stored = {n: t for n, t in tensors.items() if n not in params or params[n].role != "constant"}
        uses_pooler = any(n.startswith("pooler") for n in stored)
        return Adapter(self.method.spec, identity(fingerprints(self.base.model), uses_pooler), stored, self.seed)

    def penalty(self) -> Tensor | None:
        """What gates add to the loss; None without gates."""
        if isinstance(self.method, WeightMethod):
            return self.method.penalty(self.tensors)
        assert isinstance(self.method, SlotMethod)
        return penalty_of(self.method.parts(self.base.sites), self.tensors)

    def _run(self, plain: Call) -> Call:
        """The encoder's forward: a new pass, with its own draw of noise when training."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            training = self.base.model.training
            seed = int(torch.randint(2**31, ())) if training and self._is_noisy else 0
            keys = Keys({_SLOT: (seed, 0)}) if training else None
            if isinstance(self.method, SlotMethod):
                state = UniformPass(*self._actions(self.method, keys))
            else:
                assert isinstance(self.method, WeightMethod)
                state = UniformPass({}, not self.method.mixout, ())
                state.weights = WeightSlot(self.method, self.tensors).effective(self.base, _SLOT, keys)
            with self.wiring.running(state), self._bound(state):
                return call_with(state.weights, self.base.model, plain, args, kwargs)

        return forward

    @contextmanager
    def _bound(self, state: UniformPass) -> Iterator[None]:
        """Transformers' gradient checkpointing runs layers again later; tie what it will run to this pass."""
        paths: dict[str, Any] = {path: self.base.model.get_submodule(path) for path in self.base.sites.layer_paths}
        before = {
            p: m._gradient_checkpointing_func for p, m in paths.items() if getattr(m, "gradient_checkpointing", 0)
        }
        for path in before:
            tie = functools.partial(self.wiring.again, path, paths[path], state)
            paths[path]._gradient_checkpointing_func = functools.partial(_checkpoint, before[path], tie)
        try:
            yield
        finally:
            for path, func in before.items():
                paths[path]._gradient_checkpointing_func = func

    @property
    def _is_noisy(self) -> bool:
        roles = {p.role for p in self.method.params(self.base.sites).values()}
        return bool(self.method.mixout) or "gate" in roles

    def _actions(self, method: SlotMethod, keys: Keys | None) -> tuple[dict[str, list[Action]], bool, set[str]]:
        # constants do not move with the model, so they are brought along here
        tensors = {name: t.to(self.base.device).unsqueeze(0) for name, t in self.tensors.items()}
        actions: dict[str, list[Action]] = {}
        wants: set[str] = set()
        for part in method.parts(self.base.sites):
            names = part.names()
            own = {n: tensors[full] for n, full in names.items()}
            stacked = drawn(part.delta, names, own, method, self._start, keys, _SLOT)
            actions.setdefault(part.site.name, []).append((part.delta, stacked, Route.uniform(0)))
            wants |= part.delta.wants
        return actions, not method.mixout, wants

    def _silence(self) -> Callable[[], None]:
        """Mixout takes the place of all dropout, attention's too: a module's or a plain number."""
        endings = self.base.sites.arch.attention_dropouts
        found: list[tuple[Any, str, float]] = []
        for name, module in self.base.model.named_modules():
            if isinstance(module, nn.Dropout) and name.endswith(endings):
                found.append((module, "p", module.p))
            elif isinstance(p := getattr(module, "attention_dropout", None), float):
                found.append((module, "attention_dropout", p))
        for owner, attribute, _ in found:
            setattr(owner, attribute, 0.0)

        def restore() -> None:
            for owner, attribute, p in found:
                setattr(owner, attribute, p)

        return restore


def _checkpoint(checkpoint: Any, tie: Any, call: Any, *args: Any) -> Any:
    """Checkpoint a layer's call, tied to its pass."""
    return checkpoint(tie(call), *args)


def _refuse_tied(model: nn.Module, encoder: nn.Module, method: Method) -> None:
    """A weight that the model's head shares with the base would change in one of the two places only."""
    if model is encoder or not isinstance(method, WeightMethod):
        return
    inside = {id(p): name for name, p in encoder.named_parameters()}
    within = {id(module) for module in encoder.modules()}
    for module in (m for m in model.modules() if id(m) not in within):
        for p in (p for p in module.parameters(recurse=False) if id(p) in inside):
            raise BaseError(
                f"{type(model).__name__} ties its head to {inside[id(p)]}; {method.name} cannot change both"
            )


def attach(model: nn.Module, spec: str, seed: int = 0) -> Attached:
    """Put one adapter into a Hugging Face model and freeze the rest; the model's own head stays trainable."""
    return Attached(model, spec, seed)
