"""SIGTERM and Ctrl-C in an evaluation: it is given up, what was reached is saved, and the result is the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training import work

import inlay
from inlay.cli.train import code_of
from inlay.engine import predict
from inlay.training.checkpoint import Checkpoint

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Batches:
    """Counts batches of evaluations, and sends a signal in one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int | None = None, number: int = signal.SIGTERM):
        self.count, self.at, self.number = 0, at, number
        self._real: Callable[..., Any] = predict._blocks
        monkeypatch.setattr(predict, "_blocks", self._ran)
        monkeypatch.setattr(predict, "budget", lambda host: 24)  # several batches for an evaluation

    def _ran(self, *arguments: Any) -> Any:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), self.number)
        return self._real(*arguments)


def train(runs: Any, folder: Path, resume: bool = True, **more: Any) -> Any:
    return inlay.train(work.host(), runs, checkpoint=folder, resume=resume, save_every=1e9, **more)


def runs() -> list[inlay.Run]:
    return [
        work.run(method="houlsby:size=4", epochs=2, seed=3, name="a"),
        work.run(method="diffprune:target=0.1", epochs=1, name="b"),
        work.run(method="bitfit", epochs=2, max_steps=5, name="c"),
    ]


@pytest.mark.full
def test_stopped_in_any_batch_of_any_evaluation(tmp_path, monkeypatch):
    """Also in the last one, which measures what will be served."""
    counted = _Batches(monkeypatch)
    expected = inlay.train(work.host(), runs())
    total = counted.count
    assert total > 15
    monkeypatch.undo()
    for at in range(2, total, 5):
        with monkeypatch.context() as patch:
            stopped = _Batches(patch, at, SIGNALS[at % 2])
            folder = tmp_path / str(at)
            with pytest.raises(KeyboardInterrupt) as error:
                train(runs(), folder)
            assert error.value.args == (SIGNALS[at % 2],)
            assert stopped.count == at, "no batch after the signal"
            assert Checkpoint(folder).exists
        with monkeypatch.context() as patch:
            _Batches(patch)
            found = train(runs(), folder)
        for one, other in zip(found, expected, strict=True):
            work.assert_identical(one, other)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_stopped_again_and_again(tmp_path, monkeypatch):
    """In an evaluation that is made up for, too, and in the last one, which measures what will be served."""
    run = work.run(method="houlsby:size=4", epochs=1, seed=3)
    with monkeypatch.context() as patch:
        counted = _Batches(patch)
        expected = inlay.train(work.host(), run)
    assert counted.count % 2 == 0, "one evaluation, and the same rows at the end"
    for at in (1, 2, counted.count // 2 + 1, 2):
        with monkeypatch.context() as patch:
            _Batches(patch, at)
            with pytest.raises(KeyboardInterrupt):
                train(run, tmp_path / "c")
    with monkeypatch.context() as patch:
        _Batches(patch)
        work.assert_identical(train(run, tmp_path / "c"), expected)


def test_sigterm_in_a_step_waits_for_it(tmp_path):
    run = work.run(method="houlsby:size=4", seed=3)
    steps: list[int] = []

    def press(told: dict[str, Any]) -> None:
        if told["event"] == "step":
            steps.append(told["step"])
            if told["step"] == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "c", callbacks=[press])
    assert steps == [1, 2]
    work.assert_identical(train(run, tmp_path / "c"), inlay.train(work.host(), run))


def test_a_signal_that_the_program_handles_is_gc_frozen(tmp_path):
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        told = lambda event: os.kill(os.getpid(), signal.SIGTERM) if event["event"] == "eval" else None  # noqa: E731
        assert train(work.run(epochs=1), tmp_path / "c", callbacks=[told]).ok
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_exit_code_names_the_signal():
    assert code_of(KeyboardInterrupt()) == code_of(KeyboardInterrupt(signal.SIGINT)) == 130
    assert code_of(KeyboardInterrupt(signal.SIGTERM)) == 143
