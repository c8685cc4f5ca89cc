"""The Python API's manners: what a training shows, errors of settings, and reprs that help."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic
import pytest
import tiny
from training import work

import inlay
from inlay import screen
from inlay.errors import RunError
from inlay.runs.run import ELSEWHERE, make_run
from inlay.tracking.progress import Progress


def file(tmp_path: Path) -> str:
    path = tmp_path / "opinions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in work.texts()))
    return str(path)


# --- what a training shows ----------------------------------------------------------------------------------------


def test_a_training_tells_the_guess_and_how_it_went_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = inlay.Run(data=file(tmp_path), method="adapterbias", epochs=2, val_size=8)
    result = inlay.train(work.host(), run, name="tone", library=inlay.Library(tmp_path / "library"))
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert shown.out == ""
    assert lines[0].startswith('guessed: text = "text", label = "label", task = classification')
    assert "task: classification, 16 rows to train, 8 to validate" in lines
    assert lines[-1].startswith(f"tone: validation accuracy {result.value:.4f}, {result.kept}, 0:0")
    assert result.kept == "after 2 steps (epoch 2.0)"
    assert replace(result, config={}, best_epoch=0.0).kept == "best after 2 steps"
    assert lines[-1].endswith(f"saved to {tmp_path / 'library'} as tone@1")
    assert not any("step 4/8" in line for line in lines)  # no terminal: nothing in between


def test_no_progress_is_no_output(capsys: pytest.CaptureFixture[str]):
    inlay.train(work.host(), work.run(epochs=1), name="tone", progress=False)
    inlay.train(work.host(), [work.run(epochs=1), work.run(epochs=1, seed=1)], progress=False)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_several_runs_have_a_line_each(capsys: pytest.CaptureFixture[str]):
    runs = [work.run(epochs=1, name="a"), work.run(epochs=1, name="b", method="lora"), work.run(name="c", metric="no")]
    inlay.train(work.host(), runs)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "a: classification, 16 rows to train, 8 to validate, houlsby:size=4"
    assert lines[1].startswith("b: classification")
    assert lines[2].startswith("c failed: ")
    assert lines[3].startswith("2 of 3 runs trained, ")
    assert len(lines) == 4


def test_without_rich_there_are_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def missing(**_: Any) -> None:
        raise ImportError("rich")

    monkeypatch.setattr(screen, "console", missing)
    inlay.train(work.host(), work.run(), name="tone")
    shown = capsys.readouterr().err
    assert "16 rows to train" in shown
    assert "tone: validation accuracy" in shown
    screen.console_or_lines().print("a\x1b[2J", style="dim")
    assert capsys.readouterr().err == "a\\x1b[2J\n"


class Notebook(screen.Lines):
    is_jupyter = True


def test_a_notebook_gets_a_bar_on_one_line(capsys: pytest.CaptureFixture[str]):
    with Progress(Notebook(), 1, {"tone": "f1"}) as progress:
        progress({"event": "begin", "run": "tone", "steps": 10, "step": 0})
        progress({"event": "eval", "run": "tone", "step": 5, "loss": 0.5, "metrics": {"accuracy": 1.0, "f1": 0.25}})
        progress._drawn = 0.0
        progress({"event": "step", "run": "tone", "step": 5, "loss": 0.5, "lr": 0.1})
        drawn = capsys.readouterr().err
    assert "\n" not in drawn
    last = drawn.rpartition("\r")[2]
    assert last.startswith(f"tone  {'━' * 10}{'╌' * 10}  5/10  loss 0.5000  f1 0.2500")
    assert capsys.readouterr().err == f"\r{' ' * len(last)}\r"  # it leaves nothing behind


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("learning_rate", "lr"),
        ("n_epochs", "epochs"),
        ("num_train_epochs", "epochs"),
        ("bs", "batch_size"),
        ("per_device_train_batch_size", "batch_size"),
        ("epoch", "epochs"),
        ("batchsize", "batch_size"),
    ],
)
def test_a_setting_of_another_name_is_known(given: str, meant: str):
    with pytest.raises(RunError, match=f"unknown setting '{given}'. Did you mean {meant}"):
        inlay.Run(data="a.csv", **{given: 3})


def test_names_from_elsewhere_are_not_our_own():
    assert not ELSEWHERE.keys() & inlay.Run.model_fields.keys()
    assert set(ELSEWHERE.values()) <= inlay.Run.model_fields.keys()


def test_all_that_is_wrong_with_a_run_is_one_error():
    with pytest.raises(inlay.InlayError) as error:
        inlay.Run(lr=-1, epochs="many", learning_rate=3)
    for part in ("'data' is missing", "lr=-1 is not valid", "epochs='many' is not valid", "Did you mean lr"):
        assert part in str(error.value)
    with pytest.raises(RunError, match=r"^tasks\.toml: unknown setting 'bs'"):
        make_run({"data": "a", "bs": 3}, "tasks.toml")


def test_a_run_stays_frozen_and_copies_and_pickles():
    import copy
    import pickle

    run = inlay.Run(data="a.csv", lr=0.1)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        run.lr = 0.2  # type: ignore[misc]
    assert run == copy.deepcopy(run) == pickle.loads(pickle.dumps(run)) == inlay.Run(**run.model_dump())


# --- reprs --------------------------------------------------------------------------------------------------------


def test_reprs_help(tmp_path: Path):
    assert repr(inlay.Run(data="a.csv", lr=0.1)) == "Run(data='a.csv', lr=0.1)"
    assert repr(inlay.Run(data=[{"text": "x"}] * 3)) == "Run(data='3 rows given as objects')"
    host = work.host()
    size = f"{host.base.sites.size:,} parameters, cpu float32"
    assert repr(host) == f"<Host {host.base.name}: {size}, 0 adapters>"
    for i in range(8):
        host.add(f"t{i}", "lora", labels=2)
    assert repr(host) == f"<Host {host.base.name}: {size}, 8 adapters: t0, t1, t2, t3, t4, t5, ...>"
    library = inlay.Library(tmp_path / "library")
    assert repr(library) == f"<Library '{tmp_path / 'library'}': 0 adapters>"
    library.put(host.adapter("t0"))
    assert repr(library) == f"<Library '{tmp_path / 'library'}': 1 adapter>"
    assert repr(inlay.Library("memory://nowhere")) == "<Library 'memory://nowhere'>"
    attached = inlay.attach(tiny.model("bert"), "lora:rank=2")
    count = sum(t.numel() for t in attached.tensors.values() if t.requires_grad)
    assert repr(attached).startswith(f"<Attached lora:rank=2 ({count:,} parameters) to ")
