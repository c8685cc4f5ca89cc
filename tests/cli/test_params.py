"""`inlay params`: the document others read, known counts, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import CONFIGS
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.cli.params import _by_site
from inlay.registry import methods

KEYS = {"shape", "method", "total", "by_site", "share_of_base", "base", "training_only"}
BERT_BASE = 109_482_240


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["params", *arguments], env={"COLUMNS": "80"})


def count(*arguments: str) -> Any:
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_one_method_is_one_document():
    found = count("--shape", "bert-base", "--method", "houlsby:size=64")
    assert set(found) == KEYS
    assert found["shape"] == "bert-base"
    assert found["method"] == "houlsby"  # the shortest spec: 64 is the default
    assert found["total"] == 2_416_128 == sum(found["by_site"].values())
    sites = {"attn.out": 1_189_632, "ffn.out": 1_189_632, "attn.norm": 18_432, "ffn.norm": 18_432}
    assert found["by_site"] == sites
    assert found["base"] == BERT_BASE
    assert found["share_of_base"] == pytest.approx(2_416_128 / BERT_BASE)
    assert found["training_only"] == 0


@pytest.mark.parametrize(
    ("shape", "spec", "total"),
    [
        ("bert-base", "adapterbias", 64_524),
        ("bert-large", "adapterbias", 172_056),
        ("bert-base", "finetune", BERT_BASE),
        ("bert-large", "lora:rank=4", 393_216),
        ("bert-base", "houlsby:share=3", 396_544),
    ],
)
def test_known_counts(shape: str, spec: str, total: int):
    assert count("--shape", shape, "--method", spec)["total"] == total


@pytest.mark.thin(1)
@pytest.mark.parametrize("shape", ["roberta-base", "roberta-large", "xlmr-large", "minilm-l6"])
def test_the_other_shapes(shape: str):
    found = count("--shape", shape, "--method", "norms")
    assert found["shape"] == shape
    assert 0 < found["total"] < found["base"]


def test_several_methods_are_a_list_in_the_order_asked():
    found = count("--shape", "minilm-l6", "--method", "lora:rank=4,alpha=4,houlsby:size=8", "--method", "bitfit")
    assert [one["method"].partition(":")[0] for one in found] == ["lora", "houlsby", "bitfit"]
    assert all(set(one) == KEYS for one in found)


def test_without_a_method_all_are_counted():
    found = count("--shape", "minilm-l6")
    assert [one["method"] for one in found] == methods.names()


def test_what_only_training_needs():
    gates = count("--method", "adapterbias:l0=0.001")
    assert (gates["total"], gates["training_only"]) == (64_524, 12 * 3072)
    pruned = count("--method", "diffprune")
    assert pruned["total"] == int(0.005 * BERT_BASE)
    assert pruned["training_only"] == 2 * BERT_BASE - pruned["total"]  # a difference and a gate for every weight


@pytest.mark.parametrize(
    ("arguments", "head"),
    [
        (["--head", "linear"], {"kind": "linear", "labels": 2, "parameters": 2 * 769}),
        (["--labels", "5"], {"kind": "linear", "labels": 5, "parameters": 5 * 769}),
        (["--head", "tanh2", "--labels", "3"], {"kind": "tanh2", "labels": 3, "parameters": 590_592 + 3 * 769}),
    ],
)
def test_a_head_is_counted_apart(arguments: list[str], head: dict[str, Any]):
    found = count("--method", "houlsby", *arguments)
    assert found["head"] == head
    assert found["total"] == 2_416_128


def test_a_folder_is_a_shape(tmp_path: Path):
    CONFIGS["bert"].save_pretrained(tmp_path)
    found = count("--shape", str(tmp_path), "--method", "norms")
    assert found["total"] == (1 + 2 * 3) * 2 * 16


def test_a_method_that_does_not_fit_is_left_out_of_the_whole_list_only(tmp_path: Path):
    CONFIGS["llama"].save_pretrained(tmp_path)  # it has no biases
    done = call("--shape", str(tmp_path), "--json")
    assert done.exit_code == 0
    assert {one["method"] for one in json.loads(done.stdout)} == set(methods.names()) - {"bitfit"}
    assert "left out: bitfit has nothing to train" in done.stderr
    asked = call("--shape", str(tmp_path), "--method", "bitfit")
    assert asked.exit_code == 1
    assert asked.stderr.startswith("error: bitfit has nothing to train")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "hulsby"], "Did you mean houlsby?"),
        (["--method", "houlsby:siz=8"], "Did you mean size?"),
        (["--method", "houlsby:size=0"], "expected 1 or more"),
        (["--method", "houlsby:size="], "is not key=value"),
        (["--method", ""], "it is empty"),
        (["--shape", "bert-bas"], "Did you mean bert-base"),
        (["--head", "linaer"], "Did you mean linear?"),
    ],
)
def test_wrong_usage_names_the_option(arguments: list[str], message: str):
    done = call(*arguments, "--json")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert f"error: {arguments[0]}: " in done.stderr
    assert message in done.stderr


def test_a_mistake_is_one_clear_line():
    done = call("--method", "houlsby:layers=99", "--json")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "out of range" in done.stderr


@pytest.mark.parametrize("config", [None, "{", "{}", '{"model_type": "t5"}', '{"model_type": "nonsense"}'])
def test_a_folder_that_is_no_model(tmp_path: Path, config: str | None):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    done = call("--shape", str(tmp_path))
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_the_table():
    done = call("--method", "houlsby,finetune", "--head", "linear")
    assert "houlsby      2,416,128     2.21 %   attn.out 1,189,632, ffn.out 1,189,632," in done.stdout
    assert "layers.0-11 7,087,872 each" in done.stdout
    assert "head: 1,538 more for each task (linear, 2 labels)" in done.stdout
    assert done.stdout.endswith("100 tasks with heads: 3.21x to 100x the base, against 100x for full models\n")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_one_method_has_one_cost():
    done = call("--shape", "xlmr-large", "--method", "houlsby:size=8,share=3")
    assert done.stdout.endswith("100 tasks: 1.02x the base, against 100x for full models\n")


def test_runs_of_equal_layers_are_joined():
    counts = {"embeddings": 5, "layers.0": 7, "layers.1": 7, "layers.2": 7, "pooler": 7}
    assert _by_site(counts) == ["embeddings 5", "layers.0-2 7 each", "pooler 7"]
    assert _by_site({"layers.0": 1, "layers.1": 2}) == ["layers.0 1", "layers.1 2"]
