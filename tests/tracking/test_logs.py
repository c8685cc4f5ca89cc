"""Logs: read back by other means than those that wrote them; wandb and mlflow are fakes that record their calls."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import time
import types
import warnings
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import text_host

from inlay.errors import RunError
from inlay.runs.run import Run
from inlay.tracking.logs import JsonLines, TensorBoard, make
from inlay.tracking.trackers import MLflow, WandB
from inlay.training.api import train


def event(kind, index=0, **more):
    return {"event": kind, "run": f"run-{index}", "index": index, **more}


def begin(index=0, **config):
    return event("begin", index, steps=2, config=config)


def step(number, loss, index=0):
    return event("step", index, step=number, loss=loss, lr=0.1 / number)


def judged(number, accuracy, index=0):
    return event("eval", index, stage="task", step=number, epoch=1.0, metrics={"accuracy": accuracy}, loss=0.5)


DONE = event("done", metrics={"validation": {"accuracy": 0.75}, "test": {"accuracy": 0.5}})
FAILED = event("failed", 1, problem="the loss of run-1 is nan")
SIDE_BY_SIDE = [
    begin(0, lr=0.1),
    begin(1, lr=0.2, data="a.csv"),
    step(1, 2.0),
    step(1, 3.0, 1),
    {"event": "saved"},
    step(2, 1.0),
    FAILED,
    step(2, math.nan, 1),  # the loop tells this step after the failure it caused
    judged(2, 0.7),
    DONE,
]


def feed(log, events):
    for one in events:
        log(one)


def write(path, *events):
    log = JsonLines(path)
    feed(log, events)
    log.close()


def lines(path):
    return [json.loads(line) for line in path.read_bytes().decode().splitlines()]


def refuse(value):
    raise AssertionError(f"{value} is not JSON")


class TestJsonLines:
    def test_every_event_is_there_at_once(self, tmp_path):
        path = tmp_path / "new" / "log.jsonl"
        log = JsonLines(path)
        before = datetime.now(UTC)
        for count, one in enumerate(SIDE_BY_SIDE[:6], 1):
            log(one)
            assert len(lines(path)) == count
        read = lines(path)
        times = [datetime.fromisoformat(one.pop("time")) for one in read]
        assert read == SIDE_BY_SIDE[:6]
        assert times == sorted(times)
        assert abs((times[0] - before).total_seconds()) < 60
        log.close()

    def test_goes_on_where_it_was(self, tmp_path):
        for _ in range(2):
            log = JsonLines(tmp_path / "log.jsonl")
            log(step(1, 2.0))
            log.close()
            log(step(2, 1.0))
            log.close()
        assert [one["step"] for one in lines(tmp_path / "log.jsonl")] == [1, 2, 1, 2]

    def test_only_json_is_written(self, tmp_path):
        odd = {"nan": math.nan, "inf": [math.inf, (1, True, None)], "path": Path("a/b"), "text": "ü\ud800\n", 1: {2}}
        write(tmp_path / "log.jsonl", {"event": "step", **odd})
        (line,) = (tmp_path / "log.jsonl").read_bytes().splitlines()
        read = json.loads(line, parse_constant=refuse)
        assert read["nan"] is None
        assert read["inf"] == [None, [1, True, None]]
        assert (read["path"], read["text"], read["1"]) == (str(Path("a/b")), "ü\ud800\n", "{2}")

    def test_numbers_of_other_kinds_stay_numbers(self, tmp_path):
        values = {"loss": torch.tensor(0.5), "bad": torch.tensor(math.nan)}
        write(tmp_path / "log.jsonl", {"event": "step", **values})
        (read,) = lines(tmp_path / "log.jsonl")
        assert (read["loss"], read["bad"]) == (0.5, None)

    def test_a_crash_at_any_byte(self, tmp_path):
        path = tmp_path / "log.jsonl"
        write(path, step(1, 2.0), step(2, 1.0))
        whole = path.read_bytes()
        first = whole.index(b"\n") + 1
        for cut in range(len(whole) + 1):
            path.write_bytes(whole[:cut])
            write(path, {"event": "saved"})
            kept = (cut >= first - 1) + (cut >= len(whole) - 1)
            assert [one.get("step") for one in lines(path)] == [*[1, 2][:kept], None], cut

    def test_a_long_half_line(self, tmp_path):
        path = tmp_path / "log.jsonl"
        write(path, step(1, 2.0), {"event": "begin", "config": {"data": "x" * 300_000}})
        path.write_bytes(path.read_bytes()[:-10])
        write(path)
        assert [one["event"] for one in lines(path)] == ["step"]

    def test_a_killed_process_leaves_its_events(self, tmp_path):
        path = tmp_path / "log.jsonl"
        code = "import os, sys; from inlay.tracking.logs import make; log = make(sys.argv[1]); "
        code += "log({'event': 'saved'}); os._exit(3)"
        done = subprocess.run([sys.executable, "-c", code, f"jsonl:{path}"], check=False)
        assert done.returncode == 3
        assert [one["event"] for one in lines(path)] == ["saved"]

    @pytest.mark.parametrize("text", ["my notes", "text\nand no end", '{"a": 1}'])
    def test_another_file_is_gc_frozen(self, tmp_path, text):
        path = tmp_path / "notes.txt"
        path.write_text(text)
        with pytest.raises(RunError, match=r"notes\.txt: its last line is not an event"):
            JsonLines(path)
        assert path.read_text() == text

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(RunError, match=r"cannot write the log .*: Is a directory"):
            JsonLines(tmp_path)

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
    def test_a_full_disk_is_one_warning(self):
        log = JsonLines("/dev/full")
        with pytest.warns(RuntimeWarning, match="events are missing from the log /dev/full: .*No space"):
            log(step(1, 2.0))
        log(step(2, 1.0))  # a second warning would be an error here
        log.close()

    def test_a_line_that_did_not_fit_is_taken_back(self, tmp_path):
        path = tmp_path / "log.jsonl"
        log = JsonLines(path)
        log(step(1, 2.0))
        inner = log._file

        class Nearly:
            closed = False
            tell, truncate = inner.tell, inner.truncate

            def write(self, line):
                return inner.write(line[:20])

        log._file = Nearly()
        with pytest.warns(RuntimeWarning, match="the disk is full"):
            log(step(2, 1.0))
        log._file = inner
        log(step(3, 0.5))
        log.close()
        assert [one["step"] for one in lines(path)] == [1, 3]


def curves(folder):
    """What TensorBoard itself shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(p.step, round(p.value, 6)) for p in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


class TestTensorBoard:
    def test_a_folder_per_run(self, tmp_path):
        log = TensorBoard(tmp_path / "board")
        feed(log, SIDE_BY_SIDE)
        assert sorted(p.name for p in (tmp_path / "board").iterdir()) == ["run-0", "run-1"]
        assert curves(tmp_path / "board" / "run-0") == {
            "loss": [(1, 2.0), (2, 1.0)],
            "lr": [(1, 0.1), (2, 0.05)],
            "validation/accuracy": [(2, 0.7)],
            "final/validation/accuracy": [(2, 0.75)],
            "final/test/accuracy": [(2, 0.5)],
        }
        assert curves(tmp_path / "board" / "run-1") == {"loss": [(1, 3.0)], "lr": [(1, 0.1)]}

    def test_repeated_steps_are_hidden(self, tmp_path):
        for first, loss in ((1, 4.0), (2, 3.0)):
            log = TensorBoard(tmp_path)
            feed(log, [begin(), step(first, loss), step(first + 1, loss / 2)])
            log.close()
            time.sleep(1.1)  # files sort by their second
        assert curves(tmp_path / "run-0")["loss"] == [(1, 4.0), (2, 3.0), (3, 1.5)]

    def test_a_run_without_steps_leaves_nothing(self, tmp_path):
        log = TensorBoard(tmp_path)
        feed(log, [begin(), event("failed", problem="no")])
        log.close()
        assert list(tmp_path.iterdir()) == []

    def test_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(RunError, match="pip install tensorboard"):
            TensorBoard(tmp_path)

    def test_a_file_is_no_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(RunError, match=r"cannot write to the folder .*file"):
            TensorBoard(tmp_path / "file")


@pytest.fixture
def wandb(monkeypatch):
    """A module that notes every call with the run it is for."""
    module = types.ModuleType("wandb")
    module.__file__, module.__version__, module.calls = "wandb/__init__.py", "0.31.0", []

    def init(**how):
        name = how["name"]

        def note(call):
            return lambda *given, **named: module.calls.append((name, call, *given, *named.items()))

        module.calls.append((name, "init", how))
        return SimpleNamespace(log=note("log"), finish=note("finish"), summary=SimpleNamespace(update=note("summary")))

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


class TestWandB:
    def test_a_run_per_run(self, wandb):
        log = WandB("project", group="sweep", mode="offline")
        feed(log, SIDE_BY_SIDE)
        log.close()
        same = {"project": "project", "reinit": "create_new", "group": "sweep", "mode": "offline"}
        assert wandb.calls == [
            ("run-0", "init", {**same, "name": "run-0", "config": {"lr": 0.1}}),
            ("run-1", "init", {**same, "name": "run-1", "config": {"lr": 0.2, "data": "a.csv"}}),
            ("run-0", "log", {"loss": 2.0, "lr": 0.1}, ("step", 1)),
            ("run-1", "log", {"loss": 3.0, "lr": 0.1}, ("step", 1)),
            ("run-0", "log", {"loss": 1.0, "lr": 0.05}, ("step", 2)),
            ("run-1", "summary", {"problem": "the loss of run-1 is nan"}),
            ("run-1", "finish", ("exit_code", 1)),
            ("run-0", "log", {"validation/accuracy": 0.7}, ("step", 2)),
            ("run-0", "summary", {"final/validation/accuracy": 0.75, "final/test/accuracy": 0.5}),
            ("run-0", "finish", ("exit_code", 0)),
        ]

    def test_a_run_put_aside_begins_twice_but_is_one(self, wandb):
        log = WandB(project="project")
        feed(log, [begin(), step(1, 2.0), {"event": "slots", "slots": 1}, begin(), step(2, 1.0)])
        assert [call[1] for call in wandb.calls] == ["init", "log", "log"]
        log.close()
        log.close()
        assert wandb.calls[3:] == [("run-0", "finish", ("exit_code", 1))]
        log(begin())
        assert wandb.calls[4][1] == "init"

    def test_a_begin_without_config(self, wandb):
        WandB("project")(event("begin", steps=2))
        assert wandb.calls[0][2]["config"] == {}

    def test_trouble_at_the_start_is_an_error(self, wandb):
        def init(**how):
            raise ConnectionError("no API key")

        wandb.init = init
        with pytest.raises(RunError, match="WandB: cannot start a log of run-0: no API key"):
            WandB("project")(begin())

    def test_trouble_later_is_one_warning_and_the_others_go_on(self, wandb):
        log = WandB("project")
        feed(log, [begin(0), begin(1)])

        def fail(*given, **named):
            raise ConnectionError("gone")

        log._open[0, "run-0"].handle.log = fail
        with pytest.warns(RuntimeWarning, match="WandB: run-0 is no longer logged: gone"):
            log(step(1, 2.0))
        feed(log, [step(2, 1.0), step(1, 3.0, 1)])
        log.close()
        assert [call[:2] for call in wandb.calls[2:]] == [("run-1", "log"), ("run-1", "finish")]

    @pytest.mark.parametrize("version", ["0.18.7", "0.19.9"])
    def test_too_old(self, wandb, version):
        wandb.__version__ = version
        with pytest.raises(RunError, match=rf"0\.19\.10 or later, not {version}"):
            WandB("project")

    @pytest.mark.parametrize("version", ["0.19.10", "0.20.0rc1", "1.0"])
    def test_new_enough(self, wandb, version):
        wandb.__version__ = version
        WandB("project")

    def test_what_differs_by_run_is_not_an_option(self, wandb):
        with pytest.raises(RunError, match="WandB sets config, name for every run by itself"):
            WandB("project", name="mine", config={}, tags=["a"])

    def test_not_installed(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "wandb", None)
        with pytest.raises(RunError, match="pip install wandb"):
            WandB("project")

    def test_its_output_folder_is_not_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))  # what a plain folder is imported as
        with pytest.raises(RunError, match="wandb is not installed: pip install wandb"):
            WandB("project")


class Client:
    """An MlflowClient that notes its calls; the module holds the experiments."""

    known: dict[str, SimpleNamespace]
    calls: list[tuple[object, ...]]

    def __init__(self, tracking_uri=None):
        self.calls.append(("client", tracking_uri))
        self.ids = itertools.count()

    def get_experiment_by_name(self, name):
        return self.known.get(name)

    def create_experiment(self, name):
        self.calls.append(("create_experiment", name))
        return "new"

    def create_run(self, experiment_id, tags=None, run_name=None):
        self.calls.append(("create_run", experiment_id, tags, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=f"id-{next(self.ids)}"))

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.calls.append(("log_batch", run_id, list(params), [(m[0], m[1], m[3]) for m in metrics]))
        now = time.time() * 1000
        assert all(abs(m[2] - now) < 60_000 for m in metrics)

    def set_tag(self, run_id, key, value):
        self.calls.append(("set_tag", run_id, key, value))

    def set_terminated(self, run_id, status):
        self.calls.append(("set_terminated", run_id, status))


@pytest.fixture
def mlflow(monkeypatch):
    module, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    module.__file__ = entities.__file__ = "mlflow/__init__.py"
    entities.Param = lambda key, value: (key, value)
    entities.Metric = lambda key, value, timestamp, step: (key, value, timestamp, step)
    module.MlflowClient = type("Client", (Client,), {"known": {}, "calls": []})
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return module.MlflowClient


class TestMLflow:
    def test_a_run_per_run(self, mlflow):
        log = MLflow("experiment", tracking_uri="file:x", tags={"team": "a"})
        feed(log, SIDE_BY_SIDE)
        log.close()
        assert mlflow.calls == [
            ("client", "file:x"),
            ("create_experiment", "experiment"),
            ("create_run", "new", {"team": "a"}, "run-0"),
            ("log_batch", "id-0", [("lr", "0.1")], []),
            ("create_run", "new", {"team": "a"}, "run-1"),
            ("log_batch", "id-1", [("lr", "0.2"), ("data", "a.csv")], []),
            ("log_batch", "id-1", [], [("loss", 3.0, 1), ("lr", 0.1, 1)]),
            ("set_tag", "id-1", "problem", "the loss of run-1 is nan"),
            ("set_terminated", "id-1", "FAILED"),
            (
                "log_batch",
                "id-0",
                [],
                [
                    ("loss", 2.0, 1),
                    ("lr", 0.1, 1),
                    ("loss", 1.0, 2),
                    ("lr", 0.05, 2),
                    ("validation/accuracy", 0.7, 2),
                    ("final/validation/accuracy", 0.75, 2),
                    ("final/test/accuracy", 0.5, 2),
                ],
            ),
            ("set_terminated", "id-0", "FINISHED"),
        ]

    def test_what_is_stopped_is_killed_with_its_points(self, mlflow):
        log = MLflow("experiment")
        feed(log, [begin(), step(1, 2.0)])
        log.close()
        assert mlflow.calls[-2:] == [
            ("log_batch", "id-0", [], [("loss", 2.0, 1), ("lr", 0.1, 1)]),
            ("set_terminated", "id-0", "KILLED"),
        ]

    def test_points_go_when_it_is_time_or_when_they_are_many(self, mlflow):
        now, later = MLflow("experiment", every=0.0), MLflow("experiment", every=math.inf)
        feed(now, [begin(), step(1, 2.0)])
        assert mlflow.calls[-1][0] == "log_batch"
        later(begin())
        before = len(mlflow.calls)
        feed(later, [step(n, 1.0) for n in range(1, 250)])
        assert len(mlflow.calls) == before
        later(step(250, 1.0))
        assert len(mlflow.calls) == before + 1
        assert len(mlflow.calls[-1][3]) == 500

    def test_an_experiment_that_is_there_is_used(self, mlflow):
        mlflow.known["experiment"] = SimpleNamespace(experiment_id="7", lifecycle_stage="active")
        MLflow("experiment")(begin())
        assert [call[:2] for call in mlflow.calls[:2]] == [("client", None), ("create_run", "7")]

    def test_an_experiment_that_is_deleted(self, mlflow):
        mlflow.known["experiment"] = SimpleNamespace(experiment_id="7", lifecycle_stage="deleted")
        with pytest.raises(RunError, match="'experiment' is deleted; restore it"):
            MLflow("experiment")

    def test_a_server_that_is_not_there(self, mlflow, monkeypatch):
        def fail(self, name):
            raise ConnectionError("refused")

        monkeypatch.setattr(mlflow, "get_experiment_by_name", fail)
        with pytest.raises(RunError, match="MLflow: cannot open the experiment 'experiment': refused"):
            MLflow("experiment")

    def test_not_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "mlflow", None)
        with pytest.raises(RunError, match="pip install mlflow-skinny"):
            MLflow("experiment")


class TestMake:
    def test_every_kind(self, tmp_path, wandb, mlflow):
        jsonl, board = make(f"jsonl:{tmp_path}/a:b.jsonl"), make(f"tensorboard:{tmp_path}/board")
        assert isinstance(jsonl, JsonLines)
        assert isinstance(board, TensorBoard)
        assert (jsonl.path, board.folder) == (tmp_path / "a:b.jsonl", tmp_path / "board")
        assert make("wandb:project").project == "project"
        assert make("mlflow:experiment").experiment == "experiment"
        jsonl.close()

    def test_home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        make("jsonl:~/log.jsonl").close()
        assert (tmp_path / "log.jsonl").is_file()

    def test_unknown(self):
        with pytest.raises(
            RunError, match=r"unknown log 'tensorbord'. Did you mean tensorboard\?.* tensorboard:FOLDER"
        ):
            make("tensorbord:x")

    @pytest.mark.parametrize("spec", ["wandb", "wandb:", "wandb: "])
    def test_no_place(self, spec):
        with pytest.raises(RunError, match="write wandb:PROJECT"):
            make(spec)


def test_nothing_optional_is_imported():
    code = "import sys, inlay.tracking.logs, inlay.tracking.trackers; "
    code += "print([m for m in ('wandb', 'mlflow', 'tensorboard') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_logs_of_a_real_training(tmp_path, wandb, mlflow):
    """The fields that the logs read are those that the loop tells."""
    rows = [{"text": f"a {word} film", "label": word} for word in ("good", "bad") * 8]
    runs = [Run(data=rows, name=name, method="lora:rank=2", epochs=2, seed=i) for i, name in enumerate("ab")]
    logs = [make(f"jsonl:{tmp_path}/log.jsonl"), make(f"tensorboard:{tmp_path}"), make("wandb:p"), make("mlflow:e")]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        results = train(text_host(), runs, callbacks=logs)
        for log in logs:
            log.close()
    told = lines(tmp_path / "log.jsonl")
    for one in results:
        losses = [e["loss"] for e in told if e["event"] == "step" and e["run"] == one.name]
        assert losses == one.losses
        shown = curves(tmp_path / one.name)
        assert [value for _, value in shown["loss"]] == pytest.approx(losses, abs=1e-5)
        assert [at for at, _ in shown["validation/accuracy"]] == [entry["step"] for entry in one.history]
        assert [c[2]["loss"] for c in wandb.calls if c[0] == one.name and c[1] == "log" and "loss" in c[2]] == losses
        assert (one.name, "finish", ("exit_code", 0)) in wandb.calls
        assert shown["final/validation/accuracy"][0][1] == pytest.approx(one.metrics["validation"]["accuracy"])
    assert [c[2] for c in mlflow.calls if c[0] == "set_terminated"] == ["FINISHED", "FINISHED"]
    data = {"data": "16 rows given as objects", "method": "lora:rank=2", "epochs": 2}
    data |= {"choose_by": "last", "few_shot": False, "folds": 0}
    settings = {"a": {**data, "name": "a"}, "b": {**data, "name": "b", "seed": 1}}
    assert {c[0]: c[2]["config"] for c in wandb.calls if c[1] == "init"} == settings
    began = [c[3] for c in mlflow.calls if c[0] == "create_run"]
    params = [c[2] for c in mlflow.calls if c[0] == "log_batch" and c[2]]
    as_text = {name: {key: str(value) for key, value in one.items()} for name, one in settings.items()}
    assert dict(zip(began, map(dict, params), strict=True)) == as_text
