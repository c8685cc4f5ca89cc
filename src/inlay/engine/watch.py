"""Observe the usual forward pass: the states of all layers, or what an observer notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from inlay.bank.bank import BASE
from inlay.bank.forward import Forward
from inlay.bank.passes import Observer
from inlay.bank.plan import PassPlan
from inlay.bank.records import on_device
from inlay.data.batch import Array, Batch
from inlay.engine.run import in_order, refuse_closed, slots_of
from inlay.errors import InlayError

if TYPE_CHECKING:
    from inlay.engine.host import Host


class Watcher(Observer, ABC):
    """An observer that notes numbers about every token."""

    @abstractmethod
    def noted(self) -> Tensor:
        """[k, tokens, ...]: k numbers about every token that the model has seen."""


@torch.no_grad()
def watch(host: Host, batch: Batch, names: Sequence[str | None], watcher: Callable[[int], Watcher]) -> list[Tensor]:
    """[k, tokens, ...] of every row: what a watcher has noted about it.

    Args:
        names: the adapter of every row, None for the bare base.
        watcher: number of tokens -> a watcher for a pass over them.
    """
    with host.lock:
        refuse_closed(host)
        forward = host.forward
        rows: list[Tensor] = []
        order: list[int] = []
        for plan in forward.plan(batch, slots_of(host, names), None):
            watching = watcher(plan.tokens.size)
            here: PassPlan[Tensor] = on_device(plan, host.base.device)
            forward.run(here, watching)
            noted = watching.noted()
            noted = noted if here.tokens.valid is None else noted[:, here.tokens.valid]
            rows += torch.split(noted[:, : int(plan.lengths.sum())], plan.lengths.tolist(), dim=1)
            order += plan.rows.tolist()
        return in_order(rows, order)


def layer_states(host: Host, batch: Batch, names: Sequence[str | None]) -> list[Tensor]:
    """[depth + 1, tokens, d] of every row, on the base's device: the embedding's output, then every layer's.

    The last one is the model's own last hidden state: after the final norm, where there is one.

    Args:
        names: the adapter of every row, None for the bare base.
    """
    return watch(host, batch, names, lambda tokens: _States())


@final
class _States(Watcher):
    def __init__(self) -> None:
        self.states: list[Tensor] = []

    def layer(self, depth: int, states: Tensor) -> None:
        self.states.append(states.flatten(0, -2))

    def noted(self) -> Tensor:
        return torch.stack(self.states)


@torch.no_grad()
def states_below(forward: Forward, batch: Batch, layer: int) -> Tensor:
    """[tokens, d]: the input of a layer when nothing below it is adapted; see `Batch.states`."""
    (plan,) = forward.plan(batch, _bare(batch), None, True)
    try:
        forward.run(on_device(plan, forward.base.device), _Stop(layer))
    except _Reached as reached:
        return reached.states[0][: len(batch.ids)]
    raise InlayError(f"{forward.base.name} has no layer {layer}")


class _Reached(Exception):  # noqa: N818 - not an error: it stops a model that need not run to its end
    def __init__(self, states: Tensor):
        super().__init__()
        self.states = states


@final
class _Stop(Observer):
    """Stops the model at the input of a layer."""

    def __init__(self, at: int):
        self.at = at

    def layer(self, depth: int, states: Tensor) -> None:
        if depth == self.at:
            raise _Reached(states)


def _bare(batch: Batch) -> Array:
    return batch.lengths * 0 + BASE
