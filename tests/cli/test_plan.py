"""`inlay plan`: the line, the table, the document, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.cli.plan import _time


@pytest.fixture(autouse=True)
def no_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "300"})


def test_the_machine_and_the_answer_come_first():
    done = call("--task-count", "1000", "--shape", "bert-base")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(
        "these are speeds of an NVIDIA H200 (docs/performance.md), not of this machine; --measure"
    )
    assert lines[1].startswith("1,000 tasks fit: 9.9 GB beside a base of 219.0 MB on NVIDIA H200 (149.3 GB); 6")
    rows = {line[:24].strip(): line[24:].split() for line in lines}
    assert rows["parameters of a task"] == ["2,416,128", "109,482,240"]
    assert rows["files"] == ["2,000"]
    assert "speed: docs/performance.md, NVIDIA H200, bert-base with houlsby, 2026-11-15, inlay 0.1.0" in lines


def test_the_document():
    done = call("--task-count", "10", "--shape", "bert-base", "--method", "lora", "--labels", "4", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"] is True
    assert found["tasks"] == 10
    assert found["method"] == "lora"
    assert found["adapter"]["parameters"] == 294_912
    assert found["finetuning"]["parameters"] == 10 * 109_482_240
    assert found["figures"]["source"] == "docs/performance.md"
    assert found["answer"] in done.stderr


def test_what_does_not_fit_fails():
    done = call("--task-count", "100000", "--shape", "bert-base", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["fits"] is False
    assert "100,000 tasks do not fit: all of them take 1.3 TB; 8,191 fit at once on NVIDIA H200" in done.stderr
    assert "  instead: inlay serve --resident 8191 keeps that many" in done.stderr
    done = call("--task-count", "1", "--shape", "bert-base", "--device-memory", "1")
    assert done.exit_code == 1
    assert "one task does not fit: all of them take 19.4 MB; 0 fit at once on a device of 1.0 GB" in done.stdout
    done = call("--task-count", "1", "--shape", "bert-base", "--device-memory", "2.2")
    assert done.exit_code == 1
    assert "nothing can be trained: a run takes 1.2 GB, too much for a device of 2.2 GB" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        *([option, "0"] for option in ("--rows-per-task", "--tokens-per-row", "--epochs", "--labels")),
        *([option, "-3"] for option in ("--task-count", "--device-memory")),
        ["--device-memory", "nan"],
        ["--method", "hulsby"],
        ["--method", "houlsby:size=abc"],
        ["--shape", "bert-bose"],
        ["--base", "b", "--shape", "bert-base"],
    ],
    ids=" ".join,
)
def test_wrong_usage_names_the_option(arguments: list[str]):
    done = call("--task-count", "10", *arguments)
    assert done.exit_code == 2
    assert arguments[0] in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base", "/nowhere"], "there is no folder '/nowhere'"),
        (["--shape", "bert-base", "--method", "lora:sites=attn.x"], "attn.x"),
        (["--shape", "bert-base", "--method", "lora:layers=40"], "out of range"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str):
    done = call("--task-count", "10", *arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_and_the_default_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base = tiny.save_text_model(tmp_path / "base")
    parameters = sum(p.numel() for p in tiny.model("bert", vocab_size=len(tiny.tokenizer())).parameters())
    given = json.loads(call("--task-count", "3", "--base", base, "--json").stdout)
    monkeypatch.setenv("INLAY_BASE", base)
    usual = json.loads(call("--task-count", "3", "--json").stdout)
    assert given["base"]["name"] == usual["base"]["name"] == base
    longer = 24 * 16  # the folder's model has 64 positions, this one 40
    assert given["base"]["parameters"] == usual["base"]["parameters"] == parameters + longer


def test_measure_once_and_plan_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from inlay.bench import figures

    monkeypatch.setattr(figures, "BLOCKS", {"rows": 4, "lengths": "short", "repeats": 1, "steps": 1, "warmup": 1})
    base = tiny.save_text_model(tmp_path / "base")
    arguments = ("--task-count", "2", "--base", base, "--method", "lora", "--json")
    first = call(*arguments, "--measure")
    assert first.exit_code == 0, first.stderr
    assert "a step of full fine-tuning" in first.stderr
    again = call(*arguments)
    for done in (first, again):
        found = json.loads(done.stdout)
        assert found["figures"]["source"] == "this machine"
        assert found["finetuning"]["measured"] is True
        assert "has not been measured" not in done.stderr
    assert json.loads(first.stdout) == json.loads(again.stdout)


def test_times():
    assert [_time(h) for h in (1 / 3600, 0.5, 30)] == ["1.0 s", "30.0 min", "30.0 h"]
