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
"""Of the ensemble in the host while it is measured."""


def refuse(task: Task) -> None:
    """An error if nobody can make one answer of several."""
    if not task.joins_answers:
        raise RunError(f"{task.name} cannot be answered by an ensemble (--ensemble)")


def as_one(host: Host, run: Run, name: str, results: Sequence[Result], prepared: Sequence[Prepared]) -> Result:
    """What members have given, as the result of one run; an error if one of them has failed."""
    for result in results:
        if not result.ok:
            raise RunError(f"{result.name} of the ensemble has failed: {result.problem}")
    first, data = results[0], prepared[0]
    settings = data.run.model_copy(update={"name": name, "seed": run.seed, "fold": run.fold})
    made = Ensemble(tuple(result.single for result in results), name=name)
    found = metrics_of(host, made, prepared)
    scored = {"validation": scored_rows(prepared).validation, "test": data.test}
    about: dict[str, Any] = {
        **Ensemble.shared(made.members),
        "metrics": found,
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
        metrics=found,
        history=[{"member": i, **entry} for i, result in enumerate(results, 1) for entry in result.history],
        parameters={key: sum(one[key] for one in counts) for key in counts[0]},
        best_epoch=first.best_epoch,
        best_step=first.best_step,
        seconds=sum(result.seconds for result in results),
        _adapter=Ensemble(made.members, name=name, about=about),
    )


def metrics_of(host: Host, made: Ensemble, prepared: Sequence[Prepared]) -> dict[str, dict[str, float]]:
    """Of the ensemble: on validation rows that no member has learned from, and on test rows."""
    host.load(made, _NAME)
    try:
        slots = [member.name for member in host.translator(_NAME).members]
        own = {slot: data.validation for slot, data in zip(slots, prepared, strict=True)}
        first = prepared[0]
        found = {"validation": _scored(host, {_NAME: first.validation} if scored_rows(prepared) is first else own)}
        test = first.test
        return found | ({"test": _scored(host, {_NAME: test})} if test is not None else {})
    finally:
        host.unload(_NAME)


def scored_rows(prepared: Sequence[Prepared]) -> Prepared:
    """The data of an ensemble: members that leave out different rows have learned from, and are scored on, all."""
    first = prepared[0]
    if all(data.validation.content == first.validation.content for data in prepared):
        return first
    every = Split([example for data in prepared for example in data.validation.examples], [])
    return replace(first, train=every, validation=every)


def _scored(host: Host, asked: Mapping[str, Split]) -> dict[str, float]:
    """All metrics of examples, each answered by who is asked about it."""
    answers = [answer for name, split in asked.items() for answer in answers_to(host, name, split.examples)[0]]
    examples = [example for split in asked.values() for example in split.examples]
    return host.task(_NAME).score(examples, answers, host.labels(_NAME))


def _mean(found: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Of members' metrics: what one of them alone gives."""
    return {
        split: {name: fmean(one[split][name] for one in found) for name in values} for split, values in found[0].items()
    }
