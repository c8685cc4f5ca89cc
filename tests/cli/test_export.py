"""`inlay export`: a graph and a plain model from a library, checked, with one line for every mistake."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import tiny
import torch
import transformers
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.interop import onnx as exporting
from inlay.library.library import Library

TASKS = {
    "sms": ("houlsby:size=8", "classification:temperature=2.0", ["ham", "spam"], "pooler"),
    "ner": ("lora", "tagging", ["O", "B-PER", "I-PER"], "tokens"),
    "tone": ("bitfit", "classification", ["bad", "good"], "pooler"),
    "mean": ("lora", "classification", ["bad", "good"], "mean"),
    "full": ("finetune", "classification", ["bad", "good"], "pooler"),
}


@dataclass(frozen=True)
class Place:
    base: str
    library: Path
    host: inlay.Host


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("export")
    base = tiny.save_text_model(root / "base", num_hidden_layers=1)
    host, library = inlay.Host(base), Library(root / "library")
    for seed, (name, (method, task, labels, pool)) in enumerate(TASKS.items()):
        host.add(name, method, task=task, labels=labels, pool=pool, seed=seed)
        tiny.shake(host, name, seed)
        library.put(host.adapter(name), base_name=base)
    return Place(base, root / "library", host)


def call(place: Place, *arguments: Any) -> Any:
    where = ["--library", str(place.library)]
    return CliRunner().invoke(app, ["export", *map(str, arguments), *where], env={"COLUMNS": "100"})


def fails(place: Place, *arguments: Any) -> str:
    done = call(place, *arguments)
    assert done.exit_code == 1, done.output
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in done.output
    return str(errors[0])


@pytest.mark.full
def test_onnx(place, tmp_path):
    out = tmp_path / "tasks.onnx"
    done = call(place, "onnx", "--tasks", "ner, sms@1", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [task["name"] for task in found["tasks"]] == ["ner", "sms@1"]
    assert found["difference"] <= 1e-5
    assert found["bytes"] == out.stat().st_size
    assert sorted(found["files"]) == sorted(file.name for file in tmp_path.iterdir())
    assert "tokenizer.json" in found["files"]
    session = onnxruntime.InferenceSession(str(out))
    batch = place.host.batch(["ana was in lima", "soup !", "it never came"])
    logits = exporting.run(session, batch, [1, 0, 1])
    with torch.no_grad():
        spam, tags, other = place.host.logits(batch, ["sms", "ner", "sms"])
    assert (logits["logits"][0, :2] - spam).abs().max() <= 1e-4
    assert (logits["logits"][2, :2] - other).abs().max() <= 1e-4
    assert (logits["token_logits"][1, : len(tags), :3] - tags).abs().max() <= 1e-4
    assert "already exists" in fails(place, "onnx", "--tasks", "ner", "--out", out)


def test_onnx_for_people(place, tmp_path, monkeypatch):
    about = {"task": "tagging", "max_length": 64}
    tasks = (
        {"id": 0, "name": "sms", "output": "logits", "labels": ["ham", "spam"], **about},
        {"id": 1, "name": "ner", "output": "token_logits", "labels": list("abcdefgh"), **about},
    )
    made = exporting.Exported(
        tmp_path / "x.onnx", ("x.onnx", "tokenizer.json"), 93_400_000, 91_000_000, 9_900, 2e-7, tasks
    )
    asked: list[Any] = []
    monkeypatch.setattr(exporting, "export", lambda *given, **how: asked.append((given[1:], how)) or made)
    done = call(place, "onnx", "--tasks", "sms,ner", "--out", "x.onnx", "--opset", 20, "--no-tokenizer", "--overwrite")
    assert done.exit_code == 0, done.output
    assert asked == [
        (
            (["sms", "ner"], Path("x.onnx")),
            {"opset": 20, "tokenizer": False, "external_data": False, "overwrite": True},
        )
    ]
    for text in (
        "x.onnx: 93.4 MB (base 91.0 MB, 2 tasks 9.9 kB)",
        "a, b, c, d, e, f ... (8)",
        "2.0e-07",
        "tokenizer.json",
    ):
        assert text in done.stdout


def test_merged(place, tmp_path):
    out = tmp_path / "model"
    done = call(place, "merged", "tone", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["name"], found["model"]) == ("tone", "BertForSequenceClassification")
    assert found["difference"] <= 1e-5
    classify = transformers.pipeline("text-classification", str(out), device="cpu")
    texts = ["the film was awful", "i love it !"]
    expected = place.host.predict([("tone", text) for text in texts])
    for one, want in zip(classify(texts), expected, strict=True):
        assert (one["label"], one["score"]) == (want["label"], pytest.approx(want["score"], abs=1e-5))
    assert "already exists" in fails(place, "merged", "tone", "--out", out)


def test_merged_without_head(place, tmp_path):
    assert "--without-head" in fails(place, "merged", "mean", "--out", tmp_path / "model")
    done = call(place, "merged", "mean", "--out", tmp_path / "model", "--without-head", "--no-tokenizer")
    assert done.exit_code == 0, done.output
    assert "BertModel" in done.stdout
    assert {file.name for file in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors"}


def test_fine_tuning_is_merged_not_traced(place, tmp_path):
    assert "inlay export merged" in fails(place, "onnx", "--tasks", "sms,full", "--out", tmp_path / "x.onnx")
    assert call(place, "merged", "full", "--out", tmp_path / "model").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("onnx", "--tasks", "sms,nobody", "--out", "x.onnx"), "no adapter 'nobody'"),
        (("onnx", "--tasks", "sms,sms", "--out", "x.onnx"), "sms is named twice"),
        (("onnx", "--tasks", "sms", "--out", "no/x.onnx"), "there is no folder no"),
        (("merged", "sms", "--out", "model"), "houlsby:size=8 has an activation between two matrices"),
        (("merged", "../x", "--out", "model"), "../x"),
    ],
)
def test_mistakes(place, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in fails(place, *arguments)
    assert not list(tmp_path.iterdir())


def test_another_base(place, tmp_path):
    other = tiny.save_text_model(tmp_path / "other", num_hidden_layers=1, intermediate_size=32)
    assert "base" in fails(place, "merged", "tone", "--out", tmp_path / "model", "--base", other)


@pytest.mark.parametrize(
    "arguments", [("onnx", "--out", "x.onnx"), ("onnx", "--tasks", ",", "--out", "x"), ("merged", "tone"), ("merged",)]
)
def test_usage(place, arguments):
    done = call(place, *arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_help_needs_no_torch():
    import subprocess
    import sys

    code = "import sys; from inlay.cli import export; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
