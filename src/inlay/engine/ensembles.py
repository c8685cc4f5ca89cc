"""Ensembles on a host: every member has a slot of its own, and a request becomes rows once.

A batch holds every row once for each member, with the member's slot: an ensemble needs no pass of its own. Each
member's logits become its answer, with its own calibration; the task then combines the answers.
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
    """Give every member a slot, or none of them if one fails; return the ensemble's translator."""
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
    """The translator of an ensemble.

    Args:
        slots, specs: the members' names in the host, and their tasks.
    """
    translator = Translator(name, parse_task(task), tuple(labels), columns)
    tasks = map(parse_task, specs)
    members = tuple(replace(translator, name=slot, task=task) for slot, task in zip(slots, tasks, strict=True))
    return replace(translator, members=members, weights=tuple(weights))


def repeated(translators: Sequence[Translator], *lists: Sequence[Any]) -> tuple[list[Translator], list[Any], list[int]]:
    """The translators of all members, the items of each example once per member, and the number of members.

    An adapter is its own only member.
    """
    members = [translator.members or (translator,) for translator in translators]
    counts = [len(group) for group in members]
    numbers = [i for i, count in enumerate(counts) for _ in range(count)]
    return [member for group in members for member in group], [some_of(items, numbers) for items in lists], counts


def parts(outputs: Sequence[Sequence[Tensor]], counts: Sequence[int]) -> list[Sequence[Tensor]]:
    """The outputs of every member; those of an example's members come one after the other."""
    outputs_of_member: list[Sequence[Tensor]] = []
    for example_outputs, count in zip(outputs, counts, strict=True):
        rows = len(example_outputs) // count
        outputs_of_member += [example_outputs[i * rows : (i + 1) * rows] for i in range(count)]
    return outputs_of_member


def refuse(name: str, ensembles: Mapping[str, Translator]) -> None:
    """Raise if a name is an ensemble's, where only an adapter will do."""
    if name in ensembles:
        raise SlotError(f"{name!r} is an ensemble of {len(ensembles[name].members)} adapters: {one_instead(name)}")
