"""Every command that a page, a card or a model card prints can be run as it is printed."""

from __future__ import annotations

import ast
import functools
import html
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

import inlay
from inlay.cli import settings
from inlay.cli.main import app
from inlay.data.split import size
from inlay.library import card_text
from inlay.library.model_card import render_model_card
from inlay.runs.run import Run, from_config, make_run

GOLDEN = Path(__file__).parents[1] / "golden" / "format1"
NAMES = ("tone", "same", "stars", "names")
UsageError: Any = typer.BadParameter.__mro__[1]


@functools.cache
def _command() -> Any:
    return typer.main.get_command(app)


def parsed(line: str) -> Any:
    """The context of a command line; wrong usage raises."""
    words = shlex.split(line)
    assert words[0] == "inlay", line
    command = _command()
    context = command.make_context("inlay", words[1:], resilient_parsing=False)
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)
    return context


def commands(text: str) -> list[str]:
    """The command lines in a text, with or without a prompt."""
    found = re.findall(r"^\s*(?:\$ |again\s+)?(inlay [a-z].*?)\s*$", text, re.MULTILINE)
    return [line for line in found if not line.startswith("inlay train") or "--" in line]


def of_page(page: str) -> list[str]:
    blocks = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    facts = re.findall(r"<dd>(inlay .*?)</dd>", page, re.DOTALL)
    return commands("\n".join(html.unescape(block) for block in (*blocks, *facts)))


def of_readme(text: str) -> list[str]:
    fenced = re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    raw = [html.unescape(one) for one in re.findall(r"<pre><code>(.*?)</code></pre>", text, re.DOTALL)]
    return commands("\n".join([*fenced, *raw]))


def test_a_command_that_is_wrong_is_noticed():
    for line in ("inlay serve tone", "inlay train x.csv --clip None", "inlay predict"):
        with pytest.raises(UsageError):
            parsed(line)
    assert parsed("inlay library import . --name x").info_name == "import"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("my library")
    shutil.copytree(GOLDEN / "library", folder / "library")
    return folder / "library"


def check_page(page: str, name: str, library: Path) -> None:
    """Its commands name the library, which is not the default one."""
    found = {parsed(line).info_name: parsed(line).params for line in of_page(page)}
    assert {"predict", "serve"} <= found.keys()
    assert found["serve"]["tasks"] == name
    for used in ("predict", "serve"):
        assert found[used]["library"] == str(library)
    blocks = [html.unescape(b) for b in re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)]
    ast.parse(next(block for block in blocks if block.startswith("import inlay")))
    body = shlex.split(next(b for b in blocks if "curl" in b).splitlines()[-1])[-1]
    assert json.loads(body)["requests"][0]["task"] == name


def test_those_of_a_report(library):
    from inlay.analysis.report import report

    for name in NAMES:
        check_page(report._use(inlay.Library(library).find(name), str(library)), name, library)


@pytest.mark.full
def test_those_of_a_whole_report(library, tmp_path):
    out = tmp_path / "same.html"
    arguments = ["report", "same", "--library", str(library), "--base", str(GOLDEN / "base"), "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    check_page(out.read_text(), "same", library)


def test_those_of_a_card(library):
    for name in NAMES:
        done = CliRunner().invoke(app, ["library", "show", name, "--library", str(library)], env={"COLUMNS": "300"})
        assert done.exit_code == 0, done.output
        (line,) = [one for one in commands(done.output) if "predict" in one]
        assert parsed(line).params["library"] == str(library)


def test_the_command_of_a_card_answers(library):
    card = inlay.Library(library).find("same").card
    line = card_text.predict_command(card, "same", str(library))
    done = CliRunner().invoke(app, [*shlex.split(line)[1:], "--base", str(GOLDEN / "base"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["task"] == "same"


@pytest.mark.parametrize("repo", [None, "ana/sms"])
def test_those_of_a_model_card(library, repo):
    for name in NAMES:
        entry = inlay.Library(library).find(name)
        config = {
            "data": "some rows.csv",
            "clip": None,
            "dropout": False,
            "method": "lora:rank=2",
            "text": "<my  text>",
        }
        text = render_model_card({**entry.card, "config": config}, repo=repo)
        found = [parsed(line) for line in of_readme(text)]
        assert [context.info_name for context in found] == ["pull" if repo else "import", "predict", "train"]
        assert found[-1].params["text"] == "<my  text>"
        assert found[-1].params["dropout"]  # --no-dropout


SETTINGS: dict[str, Any] = {
    "task": "tagging",
    "method": "houlsby:size=4,share=2",
    "head": "mlp",
    "pool": "mean",
    "text": "the text",
    "pair": "other",
    "label": "-label",
    "format": "csv",
    "fold": "2/5",
    "teacher": "many@2",
    "unlabelled": "more rows.csv",
    "encoding": "latin-1",
    "val": "my val.csv",
    "val_size": "10%",
    "test": "test.csv",
    "test_size": "5%",
    "train_size": 0.25,
    "stratify": False,
    "lr": 1e-5,
    "epochs": 7,
    "max_steps": 9,
    "batch_size": 3,
    "max_length": 77,
    "long": "windows",
    "warmup": 0.0,
    "weight_decay": 0.01,
    "decay": "weights",
    "clip": None,
    "dropout": False,
    "attention_dropout": True,
    "head_dropout": 0.5,
    "schedule": "constant",
    "class_weights": True,
    "eval_every": 4,
    "patience": 2,
    "metric": "f1",
    "seed": 5,
    "split_seed": 3,
    "pretrain_on_text": True,
    "pretrain_epochs": 9,
    "pretrain_lr": 2e-4,
    "pretrain_batch_size": 11,
    "skip_bad_rows": True,
    "choose_by": "last",
    "few_shot": True,
    "few_shot_steps": 30,
    "few_shot_temperature": 0.3,
    "folds": 4,
}


def again(run: Run) -> Run:
    """The run of the command that trains it again."""
    line = card_text.train_command({"name": "x", "config": run.written()})
    params = parsed(line).params
    return make_run({"data": params["data"], "name": params["name"], **given(params)})


def given(params: dict[str, Any]) -> dict[str, Any]:
    """The settings among the parameters of a command, as it gets them."""
    every = settings.Settings()
    return every.made({name: params.get(name) for name in every.names})


def test_every_setting_comes_back():
    missing = Run.model_fields.keys() - SETTINGS.keys() - {"data", "name"}
    assert not missing, "give a value to the new setting, and see that its option is printed"
    for key, value in SETTINGS.items():
        run = Run(data="some rows.csv", name="x", **{key: value})
        found = again(run)
        assert getattr(run, key) != Run.model_fields[key].default
        if key.endswith("_size"):
            assert size(getattr(found, key), 200, key) == size(value, 200, key)
        else:
            assert found == run == from_config(run.written()), key


def test_no_clipping_on_the_command_line():
    for command in ("train", "sweep", "compare"):
        assert given(parsed(f"inlay {command} x.csv --clip none").params) == {"clip": None}
        assert make_run({"data": "", **given(parsed(f"inlay {command} x.csv --clip 0.5").params)}).clip == 0.5
        for wrong in ("-1", "nothing"):
            with pytest.raises(UsageError, match="expected"):
                parsed(f"inlay {command} x.csv --clip {wrong}")


HOSTILE = "</code><script>alert(1)</script>`**[x](javascript:y)"


def test_a_model_card_has_no_html_of_others(library):
    entry = inlay.Library(library).find("tone")
    hostile = {
        **entry.card,
        "labels": [HOSTILE, "fine"],
        "task": f"classification:{HOSTILE}",
        "method": HOSTILE,
        "metric": HOSTILE,
        "metrics": {HOSTILE: {HOSTILE: 0.5}},
        "columns": {HOSTILE: HOSTILE},
        "base_name": HOSTILE,
        "inlay": HOSTILE,
        "parents": [HOSTILE],
        "config": {"data": f"x/{HOSTILE}.csv", "text": HOSTILE, "name": HOSTILE},
    }
    for card in (hostile, {**hostile, "task": HOSTILE}):
        for how in ({}, {"repo": "a/b"}, {"peer": "peft"}, {"peer": "adapterhub"}):
            text = render_model_card(card, **how)
            assert "<script" not in text
            assert "</script" not in text
            assert not re.findall(r"<(?!/?(?:code|pre)>)", text)
