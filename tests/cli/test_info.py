"""`inlay info`: the document, one method or task in detail, and those from elsewhere."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import inlay
from inlay.bank.delta import Part, SlotMethod
from inlay.base import arch
from inlay.base.sites import Sites
from inlay.cli.main import app
from inlay.config import option
from inlay.registry import methods, tasks
from inlay.tasks.regression import Regression


def call(*arguments: str, width: int = 80) -> Any:
    return CliRunner().invoke(app, ["info", *arguments], env={"COLUMNS": str(width)})


@pytest.fixture(scope="module")
def found() -> Any:
    done = call("--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_versions(found: Any):
    assert list(found["versions"]) == ["inlay", "python", "torch", "transformers", "safetensors"]
    assert found["versions"]["inlay"] == inlay.__version__
    assert found["versions"]["torch"] == importlib.metadata.version("torch")


def test_devices(found: Any):
    assert found["devices"]["cpu"]["threads"] == torch.get_num_threads()
    assert len(found["devices"]["cuda"]) == torch.cuda.device_count()
    assert found["devices"]["mps"] in (True, False)


def test_methods(found: Any):
    assert list(found["methods"]) == methods.names()
    for method in found["methods"].values():
        assert set(method) == {"help", "weight_level", "identity_at_start", "learning_rate", "options"}
        assert method["help"].endswith(".")
        assert {"layers", "mixout", "mixout_unit"} <= {o["name"] for o in method["options"]}
        assert all(set(o) == {"name", "type", "default", "help"} and o["help"] for o in method["options"])
    levels = {name for name, method in found["methods"].items() if method["weight_level"]}
    assert levels == {"finetune", "diffprune"}
    assert not found["methods"]["houlsby"]["identity_at_start"]
    assert found["methods"]["finetune"]["learning_rate"] < found["methods"]["adapterbias"]["learning_rate"]
    assert {"name": "rank", "type": "int", "default": "8", "help": "inner width"} in found["methods"]["lora"]["options"]


def test_tasks(found: Any):
    assert list(found["tasks"]) == ["classification", "mlm", "multilabel", "qa", "regression", "tagging"]
    for task in found["tasks"].values():
        assert set(task) == {"help", "columns", "metrics", "options"}
        assert task["help"].endswith(".")
        assert task["metrics"]
        assert "max_length" in {o["name"] for o in task["options"]}
        assert all(set(o) == {"name", "type", "default", "help"} and o["help"] for o in task["options"])
    qa = found["tasks"]["qa"]
    assert qa["help"].startswith("Extractive question answering: the answer is a span of the context")
    assert qa["columns"] == {"question": "--text", "context": "--pair", "answers": "--label"}
    assert qa["metrics"] == ["f1", "exact"]
    shared = {"name": "stride", "type": "int", "default": "128", "help": "how many tokens two windows share"}
    assert shared in qa["options"]
    assert found["tasks"]["regression"]["metrics"][0] == "spearman"
    assert list(found["tasks"]["mlm"]["columns"]) == ["text"]  # a second text cannot be given, only in pretraining


def test_architectures(found: Any):
    assert list(found["architectures"]) == arch.names()
    assert found["architectures"]["bert"] == {"packed": True, "decoder": False, "norms": "after"}
    assert found["architectures"]["gpt2"] == {"packed": True, "decoder": True, "norms": "before"}
    assert found["architectures"]["deberta-v2"] == {"packed": False, "decoder": False, "norms": "after"}


def test_default_base(found: Any):
    assert found["default_base"]["name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert found["default_base"]["source"] in ("package", "cache", "hub")
    assert found["default_base"]["place"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_page(width: int):
    done = call(width=width)
    assert done.exit_code == 0
    assert done.stderr == ""
    for text in ("Versions", "Devices", "Default base", "Methods", "Tasks", "Architectures", "every method", "size=64"):
        assert text in done.stdout
    assert all(f"\n  {name}  " in done.stdout for name in tasks.names())
    assert done.stdout.count("mixout_unit=neuron") == 1  # what all methods share is said once
    assert max(map(len, done.stdout.splitlines())) <= width


@pytest.mark.parametrize("name", methods.names())
def test_one_method(name: str, found: Any):
    done = call(name, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"name": name, **found["methods"][name]}
    assert done.stderr.startswith(f"{name}: {found['methods'][name]['help']}"[:70])
    assert all(option["name"] in done.stderr for option in found["methods"][name]["options"])


def test_one_method_shows_its_paper_and_formula():
    shown = call("houlsby").stdout
    assert "Houlsby et al. 2019" in shown
    assert "y + W2 act(W1 y + b1) + b2" in shown
    assert "near the base, not exactly" in shown


@pytest.mark.parametrize("name", tasks.names())
def test_one_task(name: str, found: Any):
    task = found["tasks"][name]
    done = call(name, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"name": name, **task}
    assert done.stderr.startswith(f"{name}: {task['help']}"[:60])
    assert done.stderr.count(task["help"][:50]) == 1
    assert f"metrics  {task['metrics'][0]} (primary)" in done.stderr
    assert all(f"{column} ({option})" in done.stderr for column, option in task["columns"].items())
    assert all(f"\n{option['name']} " in done.stderr for option in task["options"])
    assert max(map(len, done.stderr.splitlines())) <= 80


def test_one_task_shows_the_rest_of_what_its_file_says():
    shown = call("qa").stdout
    assert "A long context becomes overlapping windows." in shown
    assert "columns  question (--text), context (--pair), answers (--label)" in shown
    assert "metrics  f1 (primary), exact" in [line.rstrip() for line in shown.splitlines()]
    assert shown.index("\nstride") < shown.index("\nmax_length")  # what every task has comes last


def test_which_metric_is_primary_may_depend_on_the_labels():
    assert "Entity F1 where tags are B- and I-, else accuracy." in call("tagging").stdout
    assert "The metric that decides" not in call("regression").stdout


@pytest.mark.parametrize(("name", "near"), [("lorra", "lora"), ("taging", "tagging"), ("q", "qa")])
def test_an_unknown_name_is_an_error_with_the_nearest_names(name: str, near: str):
    done = call(name, "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: unknown method or task {name!r}. Did you mean {near}")
    assert all(valid in done.stderr for valid in methods.names() + tasks.names())


def test_a_method_from_elsewhere_is_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(methods, "_classes", dict(methods._classes))

    @methods.register("elsewhere")
    @dataclass(frozen=True, kw_only=True)
    class Elsewhere(SlotMethod):
        width: int = option(3, "how wide")

        def parts(self, sites: Sites) -> list[Part]:
            return []

    done = call("elsewhere", "--json")
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    assert shown["help"] == ""  # it has no docstring; a dataclass's signature is not one
    assert {"name": "width", "type": "int", "default": "3", "help": "how wide"} in shown["options"]


def test_a_task_from_elsewhere_is_listed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "_classes", dict(tasks._classes))

    @tasks.register("stars")
    @dataclass(frozen=True, kw_only=True)
    class Stars(Regression):
        """How many stars a text gives.

        More about it.
        """

        most: int = option(5, "the largest number")

    shown = json.loads(call("--json").stdout)["tasks"]["stars"]
    assert shown["help"] == "How many stars a text gives."  # the file is not its own, so the class says it
    assert shown["columns"] == {"text": "--text", "pair": "--pair", "label": "--label"}  # as the one it derives from
    assert shown["metrics"] == ["spearman", "pearson", "rmse", "mae"]
    assert {"name": "most", "type": "int", "default": "5", "help": "the largest number"} in shown["options"]
    page = call("stars").stdout
    assert "columns  text (--text), pair (--pair), label (--label)" in page
    assert "spearman (primary)" in page


@pytest.mark.parametrize("kind", ["methods", "tasks"])
def test_a_broken_one_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, kind: str):
    broken = importlib.metadata.EntryPoint("broken", "no_such_package:Method", f"inlay.{kind}")
    real = importlib.metadata.entry_points

    def entry_points(**wanted: str) -> Any:
        if wanted.get("name", "broken") != "broken" or wanted.get("group") != broken.group:
            return real(**wanted)
        return importlib.metadata.EntryPoints([*real(**wanted), broken])

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    done = call("--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert "no_such_package" in found[kind]["broken"]["help"]
    assert found["methods"]["lora"]["options"]
    assert found["tasks"]["qa"]["options"]
