"""`attach`: one adapter in a Hugging Face model, for people with their own training loop or HF's Trainer.

The base is frozen, the model's own head stays trainable, and the adapter's tensors are ordinary parameters of
the model (under `inlay_adapter`), so optimisers, Trainer and checkpointing find them. What `save_pretrained` and
Trainer's checkpoints hold is what trains: the adapter and the model's own head, not the base. `detach` takes everything
out again, and restores which parameters train and which are saved.

    attached = inlay.attach(model, "houlsby:size=64")
    Trainer(model, ...).train()
    inlay.Library().put(attached.adapter(name="spam", labels=["ham", "spam"]))
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from inlay.bank.compiled import Call
from inlay.bank.delta import Method, SlotMethod, WeightMethod, parse, penalty_of
from inlay.bank.noise import Keys
from inlay.bank.passes import Action, UniformPass, drawn
from inlay.bank.route import UniformRoute
from inlay.bank.weights import WeightSlot, call_with
from inlay.bank.wiring import Wiring
from inlay.base import arch
from inlay.base.fingerprint import ATTACHED, fingerprints, identity
from inlay.base.load import Base
from inlay.base.sites import resolve
from inlay.engine.class_heads import HeadParts, read_head
from inlay.engine.loaded import label_names
from inlay.errors import AdapterError, BaseError
from inlay.library.adapter import Adapter
from inlay.tasks import parse as parse_task

_SLOT = 1
_LEFT_OUT = "_keys_to_ignore_on_save"
"""The tensors that `save_pretrained` leaves out, and that Trainer does not miss when it resumes."""


class Attached:
    """An adapter inside a model. `detach()` undoes it."""

    def __init__(self, model: nn.Module, spec: str, seed: int = 0):
        if not hasattr(model, "config"):
            raise BaseError(f"{type(model).__name__} is not a Hugging Face model: it has no config")
        encoder: Any = getattr(model, "base_model", model)
        self.model: Any = model
        self.method = parse(spec)
        _refuse_tied(model, encoder, self.method)
        self.seed = seed
        self.base = Base(encoder, resolve(encoder, arch.find(encoder.config.model_type)), type(model).__name__, "")
        start = self.method.initial(self.base.sites, seed)
        params = self.method.params(self.base.sites)
        self.wiring = Wiring(encoder, self.base.sites)  # refuses a model that is in use
        device = self.base.device
        self.tensors: dict[str, Tensor] = {
            name: tensor.to(device) if params[name].is_fixed else nn.Parameter(tensor.to(device))
            for name, tensor in start.items()
        }
        self._start = self.method.start(self.base.sites, seed) if isinstance(self.method, SlotMethod) else {}
        self._was_trainable = {name: p.requires_grad for name, p in model.named_parameters()}
        encoder.requires_grad_(False)
        trained = {n.replace(".", "/"): t for n, t in self.tensors.items() if isinstance(t, nn.Parameter)}
        model.add_module(ATTACHED, nn.ParameterDict(trained))
        self._unsilence = self._silence() if self.method.mixout else lambda: None
        self.wiring.override(encoder, self._run)
        self._was_left_out = getattr(model, _LEFT_OUT, None)
        setattr(model, _LEFT_OUT, {*(self._was_left_out or ()), *self._base_keys()})

    def __repr__(self) -> str:
        count = sum(t.numel() for t in self.tensors.values() if isinstance(t, nn.Parameter))
        return f"<Attached {self.method.spec} ({count:,} parameters) to {self.base.described}>"

    def detach(self) -> None:
        """Take the adapter out; the model then computes what it did before, bit for bit."""
        if not self.wiring.remove():
            return
        self._unsilence()
        delattr(self.model, ATTACHED)
        setattr(self.model, _LEFT_OUT, self._was_left_out)
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(self._was_trainable.get(name, parameter.requires_grad))

    def adapter(
        self,
        finish: bool = False,
        *,
        name: str = "",
        task: str | None = None,
        labels: Sequence[str] | None = None,
        head: bool | None = None,
    ) -> Adapter:
        """A snapshot of the adapter, with the model's own head: a library takes it, and a host serves it.

        Args:
            finish: also apply and drop what only training needs (gates).
            task: what the answers mean; by default as the model's class and config say.
            labels: the names of the outputs; by default those in the model's config.
            head: False leaves it out. None keeps it if Inlay has such a head, and warns if not.
        """
        params = self.method.params(self.base.sites)
        tensors = {n: t.detach().cpu().clone() for n, t in self.tensors.items()}
        if finish:
            tensors = self.method.finish(tensors)
        stored = {n: t for n, t in tensors.items() if n not in params or not params[n].is_fixed}
        head_parts = self._head(task, labels, head)
        uses_pooler = any(n.startswith("pooler") for n in stored)
        uses_pooler |= head_parts is not None and head_parts.pool == "pooler"
        base = identity(fingerprints(self.base.model), uses_pooler)
        base_name = str(getattr(self.model.config, "_name_or_path", "") or "")
        if head_parts is None:
            return Adapter(self.method.spec, base, stored, self.seed, name=name, base_name=base_name)
        stored |= {f"head.{n}": t.detach().float().cpu().clone() for n, t in head_parts.tensors.items()}
        fields = (head_parts.kind, head_parts.pool, head_parts.labels, name, head_parts.task)
        return Adapter(self.method.spec, base, stored, self.seed, *fields, base_name=base_name)

    def _head(self, task: str | None, labels: Sequence[str] | None, keep: bool | None) -> HeadParts | None:
        """The model's own head in Inlay's form; None if there is none, or it is not to be kept."""
        inside = self._base_keys()
        tensors = {n: t for n, t in self.model.state_dict().items() if n not in inside and not n.startswith(ATTACHED)}
        if keep is False or not tensors:
            if labels is not None or task is not None or keep:
                raise AdapterError(f"{type(self.model).__name__} has no head to keep")
            return None
        auto = type(self.model).__name__.rpartition("For")[2]
        try:
            parts = read_head(tensors, auto, self.base, self.model.config.to_dict(), type(self.model).__name__)
        except AdapterError as error:
            if keep or labels is not None or task is not None:
                raise
            warnings.warn(f"the head is left out: {error}", stacklevel=3)
            return None
        names = parts.labels if labels is None else label_names(labels)
        if len(names) != len(parts.labels):
            raise AdapterError(f"{len(names)} labels were given, and the head has {len(parts.labels)} outputs")
        task_spec = parts.task if task is None else parse_task(task).spec
        if parse_task(task_spec).per_token != parse_task(parts.task).per_token:
            raise AdapterError(f"{type(self.model).__name__} is for {parts.task}, not for {task}")
        return replace(parts, labels=names, task=task_spec)

    def _base_keys(self) -> set[str]:
        """The base's own tensors by their names in the model."""
        encoder, prefix = self.base.model, ""
        if encoder is not self.model:
            prefix = next(name for name, module in self.model.named_modules() if module is encoder) + "."
        return {prefix + name for name in encoder.state_dict() if not name.startswith(ATTACHED)}

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
        """Transformers' gradient checkpointing runs layers again later; tie those calls to this pass."""
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
        # constants do not move with the model, so they are moved here
        tensors = {name: t.to(self.base.device).unsqueeze(0) for name, t in self.tensors.items()}
        actions: dict[str, list[Action]] = {}
        wants: set[str] = set()
        for part in method.parts(self.base.sites):
            names = part.names()
            tensors_of_part = {n: tensors[full] for n, full in names.items()}
            stacked = drawn(part.delta, names, tensors_of_part, method, self._start, keys, _SLOT)
            actions.setdefault(part.site.name, []).append((part.delta, stacked, UniformRoute(0)))
            wants |= part.delta.wants
        return actions, not method.mixout, wants

    def _silence(self) -> Callable[[], None]:
        """Turn off dropout in attention, be it a module or a plain number: mixout replaces all dropout."""
        endings = self.base.sites.arch.attention_dropouts
        rates: list[tuple[Any, str, float]] = []
        for name, module in self.base.model.named_modules():
            if isinstance(module, nn.Dropout) and name.endswith(endings):
                rates.append((module, "p", module.p))
            elif isinstance(p := getattr(module, "attention_dropout", None), float):
                rates.append((module, "attention_dropout", p))
        for owner, attribute, _ in rates:
            setattr(owner, attribute, 0.0)

        def restore() -> None:
            for owner, attribute, p in rates:
                setattr(owner, attribute, p)

        return restore


def _checkpoint(checkpoint: Any, tie: Any, call: Any, *args: Any) -> Any:
    """Checkpoint a layer's call, tied to its pass."""
    return checkpoint(tie(call), *args)


def _refuse_tied(model: nn.Module, encoder: nn.Module, method: Method) -> None:
    """Refuse a weight that the model's head shares with the base: it would change in only one of the two."""
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
