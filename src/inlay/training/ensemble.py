"""`--ensemble N`: runs that differ in their seed and in the part of the rows they leave out, answering as one.

Member K of N leaves out part K of N, and its card says so (`fold`). Without validation rows of its own a member is
validated on that part, and the ensemble on all of them, each row by the member that has not seen it. The parts follow
from the rows alone, so every seed has the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from inlay.engine.evaluate import answers_to
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.library.ensemble import Ensemble
from inlay.runs.prepare import Prepared, Split
from inlay.runs.result import Result
from inlay.runs.run import Run
from inlay.tasks import Task

_NAME = "ensemble#"
"""The ensemble's name in the host while it is measured."""


def refuse(task: Task) -> None:
    """An error if a task's answers cannot be joined into one."""
    if not task.joins_answers:
        raise RunError(f"{task.name} cannot be answered by an ensemble (--ensemble)")


def as_one(host: Host, run: Run, name: str, results: Sequence[Result], prepared: Sequence[Prepared]) -> Result:
    """The members' results as the result of one run; an error if one of them has failed."""
    for result in results:
        if not result.ok:
            raise RunError(f"{result.name} of the ensemble has failed: {result.problem}")
    first, data = results[0], prepared[0]
    settings = data.run.model_copy(update={"name": name, "seed": run.seed, "fold": run.fold})
    ensemble = Ensemble(tuple(result.single for result in results), name=name)
    scores = metrics_of(host, ensemble, prepared)
    scored = {"validation": scored_rows(prepared).validation, "test": data.test}
    about: dict[str, Any] = {
        **Ensemble.shared(ensemble.members),
        "metrics": scores,
        "data": data.data_hash,
        "files": data.files,
        "scored_on": {split: part.content for split, part in scored.items() if part is not None},
        "config": settings.written(),
        "ensemble": {"members": len(results), "mean": _mean([result.metrics for result in results])},
    }
    counts = [result.parameters for result in results]
    return Result(
        name=name,
        method=first.method,
        config=settings.config(),
        metric=first.metric,
        metrics=scores,
        history=[{"member": i, **entry} for i, result in enumerate(results, 1) for entry in result.history],
        parameters={key: sum(of_member[key] for of_member in counts) for key in counts[0]},
        best_epoch=first.best_epoch,
        best_step=first.best_step,
        seconds=sum(result.seconds for result in results),
        _adapter=Ensemble(ensemble.members, name=name, about=about),
    )


def metrics_of(host: Host, ensemble: Ensemble, prepared: Sequence[Prepared]) -> dict[str, dict[str, float]]:
    """The ensemble's metrics: on validation rows that no member has learned from, and on test rows."""
    host.load(ensemble, _NAME)
    try:
        slots = [member.name for member in host.translator(_NAME).members]
        validation_of = {slot: data.validation for slot, data in zip(slots, prepared, strict=True)}
        first, test = prepared[0], prepared[0].test
        if scored_rows(prepared) is first:
            validation_of = {_NAME: first.validation}
        scores = {"validation": _scored(host, validation_of)}
        return scores | ({"test": _scored(host, {_NAME: test})} if test is not None else {})
    finally:
        host.unload(_NAME)


def scored_rows(prepared: Sequence[Prepared]) -> Prepared:
    """The data of an ensemble: members that leave out different rows have learned from, and are scored on, all."""
    first = prepared[0]
    if all(data.validation.content == first.validation.content for data in prepared):
        return first
    everything = Split([example for data in prepared for example in data.validation.examples], [])
    return replace(first, train=everything, validation=everything)


def _scored(host: Host, split_of: Mapping[str, Split]) -> dict[str, float]:
    """All metrics of the examples, each answered by the adapter or ensemble under its name in the host."""
    answers = [answer for name, split in split_of.items() for answer in answers_to(host, name, split.examples)[0]]
    examples = [example for split in split_of.values() for example in split.examples]
    return host.task(_NAME).score(examples, answers, host.labels(_NAME))


def _mean(members: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The mean of the members' metrics, that is, what one of them gives on average."""
    return {
        split: {name: fmean(of_member[split][name] for of_member in members) for name in values}
        for split, values in members[0].items()
    }
