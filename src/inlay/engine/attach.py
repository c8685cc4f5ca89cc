"""`attach`: one adapter in a Hugging Face model, for people with their own training loop or HF's Trainer.

The base is frozen, the model's own head stays trainable, and the adapter's tensors are ordinary parameters of
the model (under `inlay_adapter`), so optimisers, Trainer and checkpointing find them. `detach` takes everything
out and restores what was trainable before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from inlay.bank.delta import SlotMethod, Tensors, WeightMethod, parse
from inlay.bank.mixout import keep_mask, mix
from inlay.bank.noise import Keys
from inlay.bank.passes import Action, UniformPass
from inlay.bank.route import Route
from inlay.bank.weights import WeightSlot, call_with
from inlay.bank.wiring import Forward, Wiring
from inlay.base import arch
from inlay.base.load import ATTACHED, Base, fingerprint
from inlay.base.sites import resolve
from inlay.errors import BaseError, SlotError
from inlay.library.adapter import Adapter

_SLOT = 1


class Attached:
    """An adapter inside a model. `detach()` undoes it."""

    def __init__(self, model: nn.Module, spec: str, seed: int = 0):
        if not hasattr(model, "config"):
            raise BaseError(f"{type(model).__name__} is not a Hugging Face model: it has no config")
        if hasattr(model, ATTACHED):
            raise SlotError("this model has an adapter attached already; detach it first")
        encoder: Any = getattr(model, "base_model", model)
        self.model = model
        self.method = parse(spec)
        self.seed = seed
        self.base = Base(encoder, resolve(encoder, arch.find(encoder.config.model_type)), type(model).__name__, "")
        start = self.method.initial(self.base.sites, seed)
        params = self.method.params(self.base.sites)
        device = self.base.device
        self.tensors: dict[str, Tensor] = {
            name: tensor.to(device) if params[name].role == "constant" else nn.Parameter(tensor.to(device))
            for name, tensor in start.items()
        }
        mixed = [name for name, param in params.items() if param.role == "trained" and self.method.mixout]
        self._start = {name: start[name].clone().to(device) for name in mixed}
        self._was_trainable = {name: p.requires_grad for name, p in model.named_parameters()}
        encoder.requires_grad_(False)
        trained = {n.replace(".", "/"): t for n, t in self.tensors.items() if isinstance(t, nn.Parameter)}
        model.add_module(ATTACHED, nn.ParameterDict(trained))
        self.wiring = Wiring(encoder, self.base.sites)
        self._probabilities = self._silence() if self.method.mixout else {}
        self.wiring.override(encoder, self._run)

    def detach(self) -> None:
        """Take the adapter out; the model then computes what it did before, bit for bit."""
        self.wiring.remove()
        for module, p in self._probabilities.items():
            module.p = p
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
        return Adapter(self.method.spec, fingerprint(self.base.model), stored, self.seed)

    def penalty(self) -> Tensor | None:
        """What gates add to the loss; None without gates."""
        if isinstance(self.method, WeightMethod):
            return self.method.penalty(self.tensors)
        assert isinstance(self.method, SlotMethod)
        found: dict[str, Tensor] = {}
        for part in self.method.parts(self.base.sites):
            value = part.delta.penalty({n: self.tensors[f].unsqueeze(0) for n, f in part.names().items()})
            if value is not None:
                found[part.names()["gate"]] = value[0]
        return torch.stack(list(found.values())).sum() if found else None

    def _run(self, plain: Forward) -> Forward:
        """The encoder's forward: a new pass, with its own draw of noise when training."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            training = self.base.model.training
            seed = int(torch.randint(2**31, ())) if training and self._is_noisy else 0
            keys = Keys({_SLOT: (seed, 0)}) if training else None
            if isinstance(self.method, SlotMethod):
                self.wiring.current = UniformPass(*self._actions(self.method, keys))
                return plain(*args, **kwargs)
            assert isinstance(self.method, WeightMethod)
            state = self.wiring.current = UniformPass({}, not self.method.mixout, ())
            state.weights = WeightSlot(self.method, self.tensors).effective(self.base, _SLOT, keys)
            return call_with(state.weights, self.base.model, plain, args, kwargs)

        return forward

    @property
    def _is_noisy(self) -> bool:
        roles = {p.role for p in self.method.params(self.base.sites).values()}
        return bool(self.method.mixout) or "gate" in roles

    def _actions(self, method: SlotMethod, keys: Keys | None) -> tuple[dict[str, list[Action]], bool, set[str]]:
        tensors = {name: self._mixed(name, t, keys) for name, t in self.tensors.items()}
        actions: dict[str, list[Action]] = {}
        wants: set[str] = set()
        for part in method.parts(self.base.sites):
            names = part.names()

            def uniform(name: str, like: Tensor, names: dict[str, str] = names) -> Tensor:
                assert keys is not None
                return keys.uniform(_SLOT, f"gate {names[name]}", tuple(like.shape), like.device)

            stacked: Tensors = {n: tensors[full].unsqueeze(0) for n, full in names.items()}
            stacked = part.delta.effective(stacked, None if keys is None else uniform)
            actions.setdefault(part.site.name, []).append((part.delta, stacked, Route.uniform(0)))
            wants |= part.delta.wants
        return actions, not method.mixout, wants

    def _mixed(self, name: str, tensor: Tensor, keys: Keys | None) -> Tensor:
        p = self.method.mixout
        if keys is None or name not in self._start:
            return tensor
        unit = self.method.mixout_unit
        keep = keep_mask(keys, _SLOT, name, tuple(tensor.shape), p, unit, 0, tensor.device)
        return mix(tensor, self._start[name], keep)

    def _silence(self) -> dict[nn.Dropout, float]:
        """Mixout takes the place of all dropout, attention's too."""
        endings = self.base.sites.arch.attention_dropouts
        found = [m for n, m in self.base.model.named_modules() if isinstance(m, nn.Dropout) and n.endswith(endings)]
        before = {module: module.p for module in found}
        for module in found:
            module.p = 0.0
        return before


def attach(model: nn.Module, spec: str, seed: int = 0) -> Attached:
    """Put one adapter into a Hugging Face model and freeze the rest; the model's own head stays trainable."""
    return Attached(model, spec, seed)
