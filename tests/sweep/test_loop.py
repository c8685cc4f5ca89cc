"""What sweeps ask of the training loop: runs handed out as slots get free, runs ended early, saves at every end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training import work

from inlay.errors import RunError
from inlay.runs.prepare import prepare
from inlay.training.checkpoint import Checkpoint
from inlay.training.job import Job
from inlay.training.loop import Loop


def jobs(host: Any, count: int, **settings: Any) -> list[Job]:
    return [Job(i, f"run {i}", prepare(work.run(seed=i, **settings), host)) for i in range(count)]


def test_a_source_is_asked_when_a_slot_is_free():
    host = work.host()
    ready = jobs(host, 5, epochs=1)
    asked: list[tuple[int, int]] = []

    def source(index: int) -> Job | None:
        asked.append((index, len(loop.active)))
        return ready[index] if index < 5 else None

    loop = Loop(host, ready[:1], slots=2, source=source)
    loop.run()
    assert [job.state for job in loop.jobs] == ["done"] * 5
    assert [index for index, _ in asked if index < 5] == [1, 2, 3, 4]
    assert all(active < 2 for _, active in asked)
    assert sorted(loop.adapters) == [0, 1, 2, 3, 4]


def test_pruned_runs_leave_and_the_others_are_as_they_were():
    host = work.host()
    plain = Loop(host, jobs(host, 3), slots=3)
    plain.run()
    host = work.host()
    events: list[str] = []
    loop = Loop(
        host,
        jobs(host, 3),
        slots=3,
        prune=lambda active: [j for j in active if j.index == 1],
        callbacks=[lambda e: events.append(e["event"])],
    )
    loop.run()
    assert [job.state for job in loop.jobs] == ["done", "pruned", "done"]
    assert len(loop.jobs[1].history) == 1
    assert 1 not in loop.adapters
    assert events.count("pruned") == 1
    for i in (0, 2):
        assert loop.jobs[i].losses == pytest.approx(plain.jobs[i].losses, abs=1e-4)
    assert not host.names


def test_a_run_at_its_end_is_measured_and_not_pruned():
    host = work.host()
    loop = Loop(host, jobs(host, 1, epochs=1), prune=lambda active: list(active))
    loop.run()
    assert loop.jobs[0].state == "done"


def test_tokens_are_counted():
    host = work.host()
    job = jobs(host, 1, epochs=2)[0]
    Loop(host, [job]).run()
    assert job.tokens == 2 * sum(len(row.ids) for row in job.data.train.rows)


def test_every_end_is_saved(tmp_path: Path):
    host = work.host()
    checkpoint = Checkpoint(tmp_path / "loop")
    saved: list[list[str]] = []

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "saved":
            saved.append([kept["state"] for kept in checkpoint.read()[0]["jobs"]])

    loop = Loop(
        host, jobs(host, 3, epochs=1), slots=1, checkpoint=checkpoint, save_every=1e9, save_ends=True, callbacks=[hear]
    )
    loop.run()
    assert saved[-1] == ["done"] * 3
    assert ["done", "waiting", "waiting"] in saved or ["done", "done", "waiting"] in saved


def test_a_checkpoint_of_fewer_runs_is_taken_up_only_if_asked(tmp_path: Path):
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 2:
            raise KeyboardInterrupt

    host = work.host()
    with pytest.raises(KeyboardInterrupt):
        Loop(host, jobs(host, 2), checkpoint=Checkpoint(tmp_path), callbacks=[stop]).run()
    host = work.host()
    with pytest.raises(RunError, match="the checkpoint has 2 runs, not 3"):
        Loop(host, jobs(host, 3), checkpoint=Checkpoint(tmp_path)).resume()
    with pytest.raises(RunError, match="the checkpoint has 2 runs, not 1"):
        Loop(host, jobs(host, 1), checkpoint=Checkpoint(tmp_path)).resume(more=True)
    loop = Loop(host, jobs(host, 3), checkpoint=Checkpoint(tmp_path))
    loop.resume(more=True)
    assert [job.step for job in loop.jobs] == [2, 2, 0]
    loop.run()
    assert [job.state for job in loop.jobs] == ["done"] * 3
