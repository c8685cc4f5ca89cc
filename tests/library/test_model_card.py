"""The model card: YAML as the hub reads it, text that stays text, and nothing of the machine it was trained on."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from inlay.library import card_text
from inlay.library.model_card import render_model_card

CARD: dict[str, Any] = {
    "name": "sms",
    "version": 3,
    "sha256": "1" * 64,
    "bytes": 2_428_384,
    "created": "2026-11-15T16:44:03+00:00",
    "inlay": "0.1.0",
    "method": "houlsby:size=64",
    "task": "classification:temperature=1.25",
    "base": "sha256:" + "ab" * 32,
    "labels": ["ham", "spam"],
    "head": "linear",
    "pool": "mean",
    "seed": 0,
    "parents": ["sms@2"],
    "metrics": {"validation": {"accuracy": 0.98, "f1": 0.9312345678}, "test": {"accuracy": 0.97}},
    "metric": "accuracy",
    "best": {"step": 20, "epoch": 0.5},
    "data": "a0565ad75f41",
    "config": {
        "data": "/home/ana/data/sms.csv",
        "name": "sms",
        "lr": 0.003,
        "val": "/home/ana/val.csv",
        "dropout": False,
    },
    "columns": {"text": "message", "label": "kind"},
    "base_name": "sentence-transformers/all-MiniLM-L6-v2",
    "base_parameters": 22_713_216,
    "parameters": {"adapter": 604_416, "head": 770, "share_of_base": 0.0266},
    "seconds": 14.6,
}


def front(text: str) -> Any:
    return yaml.safe_load(text.split("---\n")[1])


def test_the_hub_understands_it():
    card = ModelCard(render_model_card(CARD))
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert card.data.library_name == "inlay"
    assert card.data.pipeline_tag == "text-classification"
    assert card.data.tags == ["inlay", "adapter", "houlsby", "classification"]
    assert card.data.get("license") is None
    found = {(one.dataset_split, one.metric_type): one.metric_value for one in card.data.eval_results}
    assert found == {("validation", "accuracy"): 0.98, ("validation", "f1"): 0.931235, ("test", "accuracy"): 0.97}
    assert {one.dataset_name for one in card.data.eval_results} == {"sms.csv"}


def test_what_it_says():
    text = render_model_card(CARD)
    for said in (
        "# sms\n",
        "Gives a text one of 2 labels.",
        "604,416 trained parameters, 2.66% of its base; 2.4 MB with its head",
        "| accuracy | 0.9800 | 0.9700 |",
        "| f1 | 0.9312 |  |",
        "`ham`, `spam`",
        "text from `message`, label from `kind`",
        "inlay train sms.csv --name sms --choose-by score --epochs 5 --lr 0.003 --val val.csv --no-dropout --base s",
        "It descends from `sms@2`.",
        "(fingerprint `abababababab`)",
        "inlay library import . --name sms",
        'host.load(inlay.Adapter.read("adapter.safetensors"), "sms")',
    ):
        assert said in text, said
    assert "home" not in text  # folders of the machine it was trained on
    assert render_model_card(CARD, repo="ana/sms").count("inlay library pull ana/sms") == 1


def test_the_python_in_it_is_python():
    for card in (CARD, {**CARD, "task": "qa"}, {**CARD, "columns": {"pair": "b"}}, {**CARD, "base_name": None}):
        for options in ({}, {"repo": "ana/sms"}, {"peer": "peft"}, {"peer": "adapterhub"}):
            for code in re.findall(r"```python\n(.*?)```", render_model_card(card, **options), re.DOTALL):
                compile(code, "readme", "exec")


def test_a_base_in_a_folder_is_not_named_to_the_hub():
    text = render_model_card({**CARD, "base_name": "/home/ana/models/tiny"})
    assert "base_model" not in front(text)
    assert "home" not in text
    assert "`tiny`" in text


@pytest.mark.parametrize(
    "value", ["yes", "null", "1.0", "a: b", "#x", "- x", "ü\U0001f600", 'q"\\', "a\n---\nb", "\x85\x7f"]
)
def test_no_value_breaks_the_yaml(value: str):
    card = {**CARD, "config": {"data": value}, "metrics": {value: {value: 0.5}}, "metric": value, "task": value}
    found = front(render_model_card(card))["model-index"][0]["results"][0]
    clean = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    assert found["dataset"]["name"] == (clean or "unknown")
    assert found["metrics"] == [{"type": clean, "value": 0.5}]
    assert isinstance(found["dataset"]["split"], str)


def test_labels_cannot_act_as_markdown():
    text = render_model_card({**CARD, "labels": ["a|b", "`code`", "[x](http://evil)", "<script>", "line\n# head"]})
    (line,) = [line for line in text.splitlines() if "evil" in line]
    assert line == "`a¦b`, `'code'`, `[x](http://evil)`, <code>&#60;script&#62;</code>, `line # head`"


def test_a_card_that_says_little_or_nonsense():
    least = {key: CARD[key] for key in ("name", "bytes", "method", "task", "base", "labels", "head", "pool", "seed")}
    for card in (
        least,
        {
            **least,
            "metrics": 3,
            "config": [],
            "columns": "x",
            "parameters": None,
            "best": 1,
            "parents": "x",
            "labels": 0,
        },
        {**least, "metrics": {"validation": 4, "test": {"f1": "high"}}, "metric": 7, "seconds": "long"},
    ):
        text = render_model_card(card)
        assert "model-index" not in front(text)
        assert "## Metrics" not in text
    assert "nan" not in str(
        front(render_model_card({**CARD, "metrics": {"validation": {"f1": float("nan"), "mcc": 0.5}}}))
    )


def test_what_tasks_cost_together():
    cards = [({**CARD, "name": str(i)}, 2_000_000) for i in range(12)]
    (cost,) = card_text.costs(cards)
    assert cost.line == "12 tasks: 24.0 MB beside one base of 90.9 MB = 1.26x; 12 full models: 12x (1.1 GB)"
    other = {**CARD, "base": "sha256:" + "cd" * 32, "base_name": "/x/tiny", "base_parameters": None}
    pooled = {**CARD, "base": CARD["base"] + "+pooler:sha256:" + "ef" * 32, "base_parameters": None}
    first, second = card_text.costs([*cards, (other, 5), (pooled, 0)])
    assert (first.tasks, first.base_bytes) == (13, 4 * 22_713_216)  # with its pooler it is the same base
    assert (second.base, second.line) == ("tiny", "1 task: 5 bytes beside their base, of unknown size")
    (small,) = card_text.costs([(CARD, 50_000)])
    assert "= 1.0006x; 1 full model: 1x (90.9 MB)" in small.line


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_960, "1.0 MB"),
        (90_852_864, "90.9 MB"),
        (2e15, "2000.0 TB"),
    ],
)
def test_sizes(number: float, shown: str):
    assert card_text.size(number) == shown


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("/home/ana/sms.csv", "sms.csv"),
        ("reviews.tsv", "reviews.tsv"),
        ("owner/dataset", "owner/dataset"),
        ("/data/reviews/train.csv", "reviews/train.csv"),
        ("C:\\data\\sms.csv", "sms.csv"),
        ("/home/ana/a.csv,/home/ana/b/train.csv", "a.csv,b/train.csv"),
        ("/home/ana/a,b/c.csv", "c.csv"),
        ("", ""),
    ],
)
def test_data_without_the_folders_around_it(data: str, shown: str):
    assert card_text.data_name({"config": {"data": data}}) == shown
