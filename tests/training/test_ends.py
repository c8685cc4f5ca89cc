"""Runs that end at the same step are measured in the same batches, and come out as each would alone."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from training import work

import inlay
from inlay.tasks import parse
from inlay.training import milestones
from inlay.training.job import Job

METHODS = ("houlsby:size=4", "lora:rank=2", "adapterbias:l0=0.1", "bitfit", "finetune:layers=top1")


def runs() -> list[inlay.Run]:
    return [work.run(work.texts(40), method, epochs=1, name=f"run-{i}", seed=i) for i, method in enumerate(METHODS)]


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return [inlay.train(work.host(), run) for run in runs()]


def assert_same(found: Sequence[Any], alone: Sequence[Any]) -> None:
    assert [one.ok for one in found] == [True] * len(alone)
    for one, other in zip(found, alone, strict=True):
        assert one.metrics["validation"] == pytest.approx(other.metrics["validation"], abs=1e-4)
        mine, theirs = (parse(result.adapter.task).temperature for result in (one, other))
        assert mine == pytest.approx(theirs, rel=1e-2)


@pytest.mark.parametrize("is_short", [False, True])
def test_together_as_alone(alone, monkeypatch, is_short):
    """Where memory does not suffice for all of them, one after another."""
    plain, asked = milestones.last_outputs_of, []

    def counted(host: Any, jobs: Sequence[Job], *more: Any) -> Any:
        asked.append(sorted(job.name for job in jobs))
        if is_short and len(jobs) > 1:
            raise torch.OutOfMemoryError("so full")
        return plain(host, jobs, *more)

    monkeypatch.setattr(milestones, "last_outputs_of", counted)
    assert_same(list(inlay.train(work.host(), runs())), alone)
    together, gated = ["run-0", "run-1", "run-3", "run-4"], ["run-2"]
    assert asked == [together, *([[name] for name in together] if is_short else []), gated]


def test_one_that_fails_at_its_end_leaves_the_others_alone(alone, monkeypatch):
    plain = milestones.measured

    def failing(host: Any, job: Job, *more: Any) -> Any:
        if job.name == "run-1":
            raise inlay.InlayError("it cannot be measured")
        return plain(host, job, *more)

    monkeypatch.setattr(milestones, "measured", failing)
    host = work.host()
    found = list(inlay.train(host, runs()))
    assert [(one.ok, one.problem) for one in found if not one.ok] == [(False, "it cannot be measured")]
    assert_same([found[0], *found[2:]], [alone[0], *alone[2:]])
    assert host.names == [one.name for one in found if one.ok], "no slot is left over"
