"""Ensembles on a host: every member has a slot of its own, and a request becomes rows once.

In a batch a row is there once for each member, with other slots: an ensemble needs no pass of its own. Each member's
logits become its answer, calibrated as it was trained; the task then makes one answer of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from inlay.engine.translate import Translator, some_of
from inlay.errors import SlotError
from inlay.library.cards import one_instead
from inlay.library.ensemble import Ensemble
from inlay.tasks import parse as parse_task

if TYPE_CHECKING:
    from inlay.engine.host import Host


def load(host: Host, ensemble: Ensemble, name: str) -> Translator:
    """Give every member a slot, or none of them; how the ensemble is asked then."""
    slots = [f"{name}#{i}" for i in range(1, len(ensemble.members) + 1)]
    fitted = [host.fitted(member) for member in ensemble.members]
    entered: list[str] = []
    try:
        for slot, (record, tensors) in zip(slots, fitted, strict=True):
            host.enter(slot, record, tensors)
            entered.append(slot)
    except BaseException:
        for slot in entered:
            host.unload(slot)
        raise
    specs = [member.task for member in ensemble.members]
    return asked_as(name, ensemble.task, ensemble.labels, ensemble.columns, slots, specs, ensemble.weights)


def asked_as(
    name: str,
    task: str,
    labels: Sequence[str],
    columns: Any,
    slots: Sequence[str],
    specs: Sequence[str],
    weights: Sequence[int],
) -> Translator:
    """How an ensemble is asked.

    Args:
        slots, specs: the members' names in the host, and their tasks.
    """
    whole = Translator(name, parse_task(task), tuple(labels), columns)
    members = tuple(replace(whole, name=slot, task=parse_task(spec)) for slot, spec in zip(slots, specs, strict=True))
    return replace(whole, members=members, weights=tuple(weights))


def repeated(translators: Sequence[Translator], *each: Sequence[Any]) -> tuple[list[Translator], list[Any], list[int]]:
    """The translators of all members, what belongs to each example once for every member of it, and how many these are.

    An adapter is its own only member.
    """
    members = [one.members or (one,) for one in translators]
    counts = [len(own) for own in members]
    numbers = [i for i, count in enumerate(counts) for _ in range(count)]
    return [member for own in members for member in own], [some_of(items, numbers) for items in each], counts


def parts(outputs: Sequence[Sequence[Tensor]], counts: Sequence[int]) -> list[Sequence[Tensor]]:
    """The outputs of every member, of those of its example, which are one member's after the other's."""
    found: list[Sequence[Tensor]] = []
    for own, count in zip(outputs, counts, strict=True):
        rows = len(own) // count
        found += [own[i * rows : (i + 1) * rows] for i in range(count)]
    return found


def refuse(name: str, known: Mapping[str, Translator]) -> None:
    """An error if a name, of which something is wanted that only an adapter can do, is an ensemble."""
    if name in known:
        raise SlotError(f"{name!r} is an ensemble of {len(known[name].members)} adapters: {one_instead(name)}")
