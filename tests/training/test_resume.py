"""A training that is interrupted and resumed gives what it would have given, bit for bit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from training import work

import inlay
from inlay.errors import RunError
from inlay.training.checkpoint import Checkpoint

Event = dict[str, Any]

SEVERAL = [
    work.run(work.texts(seed=1), "houlsby:size=4", seed=1),
    work.run(work.texts(seed=2), "diffprune:target=0.05", seed=2, eval_every=3),
    work.run(work.entities(seed=3), "adapterbias:l0=0.001", seed=3, weight_decay=0.1),
    work.run(work.texts(seed=4), "houlsby:size=6,mixout=0.3", seed=4, pretrain_on_text=True, pretrain_epochs=1),
    work.run(work.ratings(seed=5), "finetune:top=1", seed=6, task="regression", epochs=6, patience=1),
]
QUEUE = [
    work.run(work.texts(seed=i), method, seed=i, epochs=1 + i % 3, batch_size=3 + i % 3)
    for i, method in enumerate(
        [
            "houlsby:size=4,norms=false",
            "lora:rank=2",
            "houlsby:size=4",
            "norms",
            "houlsby:size=3",
            "norms",
            "lora:rank=2",
        ]
    )
]


class Stop:
    """Ctrl-C at the nth event of a kind."""

    def __init__(self, n: int, event: str = "step"):
        self.left = n
        self.event = event

    def __call__(self, told: Event) -> None:
        if told["event"] == self.event:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def train(runs: Any, folder: Path, callbacks: Sequence[Any] = (), **how: Any) -> Any:
    """As another process would: with a host of its own."""
    return inlay.train(work.host(), runs, checkpoint=folder, resume=True, save_every=1e9, callbacks=callbacks, **how)


def with_stops(runs: Any, folder: Path, stops: Sequence[Stop], **how: Any) -> Any:
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            train(runs, folder, [stop], **how)
        assert stop.left <= 0
    return train(runs, folder, **how)


@pytest.fixture(scope="module")
def several() -> list[inlay.Result]:
    return inlay.train(work.host(), SEVERAL)


@pytest.fixture(scope="module")
def queue() -> list[inlay.Result]:
    return inlay.train(work.host(), QUEUE, slots=3)


def assert_all_identical(found: Sequence[inlay.Result], expected: Sequence[inlay.Result]) -> None:
    for one, other in zip(found, expected, strict=True):
        work.assert_identical(one, other)


# --- one run --------------------------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize("step", [1, 3, 4, 5, 8, 12])
def test_one_run_stopped_at_a_step(tmp_path, step):
    run = work.run(method="houlsby:size=4", seed=3)
    expected = inlay.train(work.host(), run)
    found = with_stops(run, tmp_path / "at", [Stop(step)])
    assert len(expected.losses) == 12
    work.assert_identical(found, expected)


def test_the_comparison_sees_one_bit():
    """The control: another seed, or one number that is off by a little, is not identical."""
    run = work.run(method="houlsby:size=4", seed=3)
    expected = inlay.train(work.host(), run)
    work.assert_identical(inlay.train(work.host(), run), expected)
    other = inlay.train(work.host(), run.model_copy(update={"seed": 4}))
    with pytest.raises(AssertionError):
        work.assert_identical(other, expected)
    again = inlay.train(work.host(), run)
    name = next(n for n, t in again.adapter.tensors.items() if t.abs().max() > 0)
    again.adapter.tensors[name] *= 1 + 1e-6
    with pytest.raises(AssertionError):
        work.assert_identical(again, expected)


@pytest.mark.thin(1)
@pytest.mark.parametrize("lost", ["adamw.AdamW.write", "slots.restore_places"])
def test_what_a_checkpoint_keeps_is_needed(tmp_path, monkeypatch, lost):
    """The control: without the moments, a resumed run is another one; without the places, its rows are."""
    monkeypatch.setattr(f"inlay.training.{lost}", lambda *_: None)
    if lost == "slots.restore_places":
        assert orders(tmp_path / "often", 4) != orders(tmp_path / "never", None)
        return
    run = work.run(method="houlsby:size=4", seed=3)
    with pytest.raises(AssertionError):
        work.assert_identical(with_stops(run, tmp_path / "at", [Stop(5)]), inlay.train(work.host(), run))


def test_a_real_ctrl_c_waits_for_the_step(tmp_path):
    run = work.run(method="houlsby:size=4", seed=3)
    steps: list[int] = []

    def press(told: Event) -> None:
        if told["event"] == "step":
            steps.append(told["step"])
            if told["step"] == 5:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "at", [press])
    assert steps[-1] == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    work.assert_identical(train(run, tmp_path / "at"), inlay.train(work.host(), run))


def test_a_second_ctrl_c_does_not_wait(tmp_path, monkeypatch):
    run = work.run(method="houlsby:size=4", seed=3)
    host = work.host()

    def press(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("inlay.training.adamw.AdamW.prepare", press)  # in the middle of a step
    with pytest.raises(KeyboardInterrupt):
        inlay.train(host, run, checkpoint=tmp_path / "at")
    assert not (tmp_path / "at").exists()
    assert host.names == []


# --- several, in stages ---------------------------------------------------------------------------------------


def test_the_runs_have_stages_and_stop_early(several):
    assert {h["stage"] for h in several[1].history} == {"task", "again"}
    assert several[3].losses[0] > 2 > several[3].losses[-1]  # words first, then two classes
    assert len(several[4].losses) < 6 * 4


@pytest.mark.thin(1)
@pytest.mark.parametrize("steps", [[1], [7], [23], [41], [2, 2, 2, 2], [5, 18, 11, 9]])
def test_several_runs_stopped_anywhere(several, tmp_path, steps):
    """Steps are counted over all runs, so most of these stop while the runs of a batch are being told."""
    assert_all_identical(with_stops(SEVERAL, tmp_path / "at", [Stop(n) for n in steps]), several)


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("event", "n"), [("begin", 3), ("eval", 1), ("eval", 6), ("stage", 1), ("stage", 2), ("done", 2)]
)
def test_several_runs_stopped_at_other_events(several, tmp_path, event, n):
    assert_all_identical(with_stops(SEVERAL, tmp_path / "at", [Stop(n, event)]), several)


@pytest.mark.thin(2)
@pytest.mark.parametrize("steps", [[4], [19], [33], [38], [3, 5, 7, 11, 13]])
def test_a_queue(queue, tmp_path, steps):
    assert_all_identical(with_stops(QUEUE, tmp_path / "at", [Stop(n) for n in steps], slots=3), queue)


def test_patience_goes_on_where_it_was(tmp_path):
    """Stopped at every evaluation, also when one without a better value has passed already."""
    run = work.run(work.ratings(32), "houlsby:size=4", task="regression", epochs=12, lr=0.05, patience=3, seed=2)
    expected = inlay.train(work.host(), run)
    evaluations = len(expected.history)
    assert evaluations < 12
    stops = [Stop(1, "eval") for _ in range(evaluations)]
    work.assert_identical(with_stops(run, tmp_path / "at", stops), expected)


@pytest.mark.thin(1)
@pytest.mark.parametrize("steps", [[3], [9, 5], [14]])
def test_runs_that_keep_what_lower_layers_give(tmp_path, steps):
    runs = [
        work.run(work.texts(seed=i), f"{method},layers=top1", seed=i, dropout=False, epochs=1 + i % 2)
        for i, method in enumerate(["houlsby:size=4", "lora:rank=2", "houlsby:size=3", "finetune:mixout=0.2"])
    ]
    expected = inlay.train(work.host(), runs, slots=2)
    assert_all_identical(with_stops(runs, tmp_path / "at", [Stop(n) for n in steps], slots=2), expected)


def orders(folder: Path, stop_after: int | None) -> dict[tuple[int, int], list[str]]:
    """(run, step) -> all runs in the order of their rows; stopped again and again, or never."""
    seen: dict[tuple[int, int], list[str]] = {}
    for _ in range(100):
        host = work.host()

        def look(told: Event, host: inlay.Host = host) -> None:
            if told["event"] == "step":
                ranks = host.forward.bank.ranks
                seen[told["index"], told["step"]] = sorted(host.names, key=lambda name: ranks[host.slot(name)])

        callbacks = [look] if stop_after is None else [look, Stop(stop_after)]
        try:
            inlay.train(host, QUEUE, slots=3, checkpoint=folder, resume=True, save_every=1e9, callbacks=callbacks)
        except KeyboardInterrupt:
            continue
        return seen
    raise AssertionError("it makes no progress")


@pytest.mark.thin(1)
@pytest.mark.parametrize("stop_after", [2, 4, 7])
def test_rows_of_a_resumed_queue_run_in_the_order_they_would_have_had(tmp_path, stop_after):
    """Rounding depends on the order of rows; on a model this small it may not show, so the order itself is compared."""
    expected = orders(tmp_path / "never", None)
    assert len(set(map(tuple, expected.values()))) > 3
    assert orders(tmp_path / "often", stop_after) == expected


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        train([RUN], tmp_path / "at", [Stop(5)])
    return tmp_path / "at"


RUN = work.run(method="houlsby:size=4", seed=3)


@pytest.mark.parametrize("change", [{"lr": 1e-4}, {"seed": 4}, {"epochs": 4}, {"method": "lora"}, {"dropout": False}])
def test_other_settings(stopped, change):
    with pytest.raises(RunError, match="run-0 have changed since it started:"):
        train([RUN.model_copy(update=change)], stopped)


def test_a_checkpoint_that_says_no_learning_rate_has_the_one_of_its_day(tmp_path):
    run = work.run(method="adapterbias", seed=3, lr=1e-3)
    with pytest.raises(KeyboardInterrupt):
        train([run], tmp_path, [Stop(5)])
    old = Checkpoint(tmp_path)
    state, tensors = old.read()
    assert state["jobs"][0]["config"].pop("lr") == 1e-3
    old.save(state, tensors)
    with pytest.raises(RunError, match=r"run-0 have changed since it started: lr \(it was 0\.001\);"):
        train([run.model_copy(update={"lr": None})], tmp_path)
    assert train([run], tmp_path)[0].ok


def test_other_data(stopped):
    rows = [dict(row) for row in RUN.data]
    rows[7]["text"] += " !"
    with pytest.raises(RunError, match="data of run-0 has changed"):
        train([RUN.model_copy(update={"data": rows})], stopped)


def test_another_base(stopped):
    with pytest.raises(RunError, match="another base"):
        inlay.train(work.host(seed=1), [RUN], checkpoint=stopped, resume=True)


def test_more_or_fewer_runs(stopped):
    with pytest.raises(RunError, match="1 runs, not 2"):
        train([RUN, RUN], stopped)


def test_after_a_refusal_nothing_is_lost(stopped):
    with pytest.raises(RunError):
        train([RUN, RUN], stopped)
    host = work.host()
    with pytest.raises(RunError):
        inlay.train(host, [RUN.model_copy(update={"seed": 9})], checkpoint=stopped, resume=True)
    assert host.names == []
    work.assert_identical(train([RUN], stopped)[0], inlay.train(work.host(), RUN))


def test_a_checkpoint_is_not_overwritten_without_being_asked(stopped):
    with pytest.raises(RunError, match="unfinished training"):
        inlay.train(work.host(), [RUN], checkpoint=stopped)


@pytest.mark.parametrize("keep", [0, 1, 8, 100, 0.5, -1])
def test_a_truncated_checkpoint(stopped, keep):
    file = stopped / "state.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(RunError, match=r"state\.safetensors"):
        train([RUN], stopped)


@pytest.mark.parametrize(
    "metadata", [None, {"inlay": "{}"}, {"inlay-loop": "{"}, {"inlay-loop": "[]"}, {"inlay-loop": "{}"}]
)
def test_someone_elses_file(stopped, metadata):
    save_file({"a": torch.zeros(2)}, stopped / "state.safetensors", metadata=metadata)
    with pytest.raises(RunError, match=r"state\.safetensors"):
        train([RUN], stopped)


@pytest.mark.parametrize("key", ["base", "jobs", "active", "layout", "slots"])
def test_a_state_that_lacks_something(stopped, key):
    checkpoint = Checkpoint(stopped)
    state, tensors = checkpoint.read()
    del state[key]
    checkpoint.save(state, tensors)
    with pytest.raises(RunError, match="checkpoint"):
        train([RUN], stopped)


def test_a_state_of_another_format_is_not_read(stopped, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("inlay.training.checkpoint._FORMAT", 10**6)
        Checkpoint(stopped).save({"jobs": []}, {"nothing": torch.zeros(1)})
    with pytest.raises(RunError, match="was written by another version of Inlay"):
        Checkpoint(stopped).read()


@pytest.mark.parametrize("part", ["/now/", "/first/", "/second/"])
def test_a_state_that_lacks_a_tensor(stopped, part):
    checkpoint = Checkpoint(stopped)
    state, tensors = checkpoint.read()
    gone = next(name for name in tensors if part in name)
    checkpoint.save(state, {n: t for n, t in tensors.items() if n != gone})
    with pytest.raises(RunError):
        train([RUN], stopped)


def test_a_finished_adapter_that_is_gone(tmp_path):
    folder = tmp_path / "at"
    with pytest.raises(KeyboardInterrupt):
        train(QUEUE, folder, [Stop(2, "done")], slots=3)
    next(folder.glob("done-*")).unlink()
    with pytest.raises(RunError, match="finished adapter"):
        train(QUEUE, folder, slots=3)


# --- the folder -------------------------------------------------------------------------------------------------


def test_the_folder_is_gone_at_the_end_but_for_what_is_not_ours(stopped):
    (stopped / "notes.txt").write_text("mine")
    train([RUN], stopped)
    assert [f.name for f in stopped.iterdir()] == ["notes.txt"]
    (stopped / "notes.txt").unlink()
    train([RUN], stopped)
    assert not stopped.exists()


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "at").write_text("a file")
    with pytest.raises(RunError, match="cannot write the checkpoint"):
        inlay.train(work.host(), [RUN], checkpoint=tmp_path / "at", save_every=0)


def test_checkpoints_come_as_often_as_asked(tmp_path):
    events: list[Event] = []
    inlay.train(work.host(), RUN, checkpoint=tmp_path / "at", save_every=0, callbacks=[events.append])
    assert sum(e["event"] == "saved" for e in events) == 12
    events.clear()
    inlay.train(work.host(), RUN, checkpoint=tmp_path / "at", save_every=1e9, callbacks=[events.append])
    assert not any(e["event"] == "saved" for e in events)


def test_the_state_is_plain_safetensors_with_json(stopped):
    from safetensors import safe_open

    with safe_open(stopped / "state.safetensors", "pt") as file:
        state = json.loads(file.metadata()["inlay-loop"])
    assert state["jobs"][0]["step"] == 5
    assert len(state["jobs"][0]["losses"]) == 5


def test_a_run_that_has_diverged_does_not_take_its_neighbours_with_it(tmp_path):
    """Stopped after the step that made its weights infinite, and before the loss that would have said so."""
    runs = [work.run(seed=1), work.run(seed=2, lr=1e38, clip=None)]
    with pytest.raises(KeyboardInterrupt):
        train(runs, tmp_path / "at", [Stop(2)])
    found = train(runs, tmp_path / "at")
    assert "not finite" in found[1].problem
    assert found[0].losses == pytest.approx(inlay.train(work.host(), runs[0]).losses, abs=1e-5)
