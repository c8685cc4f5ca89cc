"""What holds for every command, by walking the tree: help in panels, examples, exit codes, one name for one thing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import typer
from typer.testing import CliRunner

from inlay import heads, metrics, registry
from inlay.cli import help, main, option_checks, settings
from inlay.runs.run import Run

ROOT = typer.main.get_command(main.app)


def walk(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Path -> command, for all that do something."""
    if not hasattr(command, "commands"):
        return {path: command}
    found: dict[tuple[str, ...], Any] = {}
    for name, one in command.commands.items():
        found |= walk(one, (*path, name))
    return found


COMMANDS = walk(ROOT)
each_command = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(main.app, [str(one) for one in arguments], prog_name="inlay", env={"COLUMNS": "80"})


def params(path: tuple[str, ...], kind: str = "option") -> list[Any]:
    return [one for one in COMMANDS[path].params if one.param_type_name == kind]


def test_the_root_lists_every_command_in_a_line():
    shown = call("--help").stdout
    assert "many small adapters on one frozen transformer" in " ".join(shown.split())
    for name, (_, line) in main.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", shown, re.MULTILINE)
    assert call("trian").exit_code == 2
    assert "'train'" in call("trian").stderr


@pytest.mark.parametrize("group", ["library", "analyze", "recipe", "export", "bench"])
def test_a_group_lists_its_commands_in_whole_sentences(group: str):
    shown = call(group, "--help").stdout
    listed = shown.partition("Commands:")[2]
    assert "..." not in listed
    for path in COMMANDS:
        if path[0] == group:
            assert path[1] in listed


def test_a_command_imports_no_other():
    code = "import sys; from inlay.cli.main import app; app(['info', '--help'], standalone_mode=False); "
    code += "print(sorted(name for name in sys.modules if name.startswith('inlay.cli.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "inlay.cli.info" in done.stdout
    assert "inlay.cli.train" not in done.stdout
    assert "inlay.cli.serve" not in done.stdout


def test_there_are_commands_to_look_at():
    assert len(COMMANDS) > 35
    assert {("train",), ("library", "export"), ("bench", "mixed"), ("analyze", "size")} <= COMMANDS.keys()


# --- help ---------------------------------------------------------------------------------------------------------


@each_command
def test_help(path: tuple[str, ...]):
    done = call(*path, "--help")
    assert done.exit_code == 0
    assert done.stderr == ""
    assert done.stdout.startswith(f"Usage: inlay {' '.join(path)} ")
    assert all(len(line) <= 80 for line in done.stdout.partition("\nExamples:\n")[0].splitlines())
    assert not re.search(r"\[x[<>]|<str>|<int>", done.stdout), "types and ranges are for error messages"
    assert done.stdout.count("[") == done.stdout.count("]")


@each_command
def test_every_command_takes_json(path: tuple[str, ...]):
    (one,) = [one for one in params(path) if one.opts == ["--json"]]
    assert one.is_flag


@each_command
def test_two_examples_that_parse(path: tuple[str, ...]):
    command = COMMANDS[path]
    assert len(command.examples) == 2
    shown = call(*path, "--help").stdout
    for line in command.examples:
        assert f"\n  {line}\n" in shown
        words = shlex.split(line)
        assert words[: len(path) + 1] == ["inlay", *path]
        with command.make_context("inlay", words[len(path) + 1 :]):
            pass  # no wrong usage


@each_command
def test_panels_have_at_most_a_dozen_options(path: tuple[str, ...]):
    command = COMMANDS[path]
    with command.make_context("inlay", ["--help"], resilient_parsing=True) as context:
        found = help.panels(command, context)
    most = {heading: len([one for one in all_ if one.name != "help"]) for heading, all_ in found.items()}
    assert max(most.values()) <= help.FEW, most
    assert set(found) <= {"Arguments", "Options", *help.PANELS}
    shown = [one for heading, all_ in found.items() for one in all_]
    assert len(shown) == len(set(map(id, shown))) == len(command.get_params(context))


@each_command
def test_help_is_plain_english(path: tuple[str, ...]):
    texts = [COMMANDS[path].help, *(one.help for one in COMMANDS[path].params if getattr(one, "help", None))]
    for text in texts:
        assert text[0].isupper() or re.match(r"[a-z0-9$-]+\b", text), text
        assert re.search(r"[.\]]$", text.strip()) or "@2" in text, text
        for bad in ("found out", "else among", "slightly other", "so many", "as there", "stands"):
            assert bad not in text, text


def test_a_setting_is_an_option_made_from_its_field():
    shown = [name for panel in settings.SETTINGS.values() for name in panel]
    assert sorted([*shown, "data", "name"]) == sorted(Run.model_fields)
    for path in (("train",), ("sweep",)):
        flags = {flag for one in params(path) for flag in one.opts}
        assert {settings.option(name) for name in shown} <= flags
    trained_alone = {"--folds", "--method", "--teacher", "--unlabelled"}
    assert {settings.option(name) for name in shown} - trained_alone <= {
        f for o in params(("compare",)) for f in o.opts
    }
    assert {"--max-steps", "--train-size"} <= {flag for one in params(("recipe", "run")) for flag in one.opts}


def test_help_names_what_there_is():
    shown = " ".join(call("train", "--help").stdout.split())
    for names in (registry.methods.own_names(), registry.tasks.own_names(), heads.HEADS, heads.POOLS):
        assert f"{', '.join(names[:-1])} or {names[-1]}" in shown
    assert "[default: 10%, at most 2000]" in shown
    assert "[default: guessed from the data]" in shown


def test_lists_that_are_kept_apart_to_be_light_are_the_same():
    from inlay.base.load import FORMS
    from inlay.base.shapes import SHAPES
    from inlay.data.source import FORMATS
    from inlay.heads.head import _INNER, KINDS
    from inlay.heads.pool import POOLS
    from inlay.sweeps.ray import ENGINES

    assert set(option_checks.FORMATS) == set(FORMATS)
    assert set(option_checks.SHAPES) == set(SHAPES)
    assert set(option_checks.WEIGHTS) == {"plain", *FORMS}
    assert set(option_checks.ENGINES) == set(ENGINES)
    assert set(heads.HEADS) == set(_INNER) == set(KINDS) - {"transform", "states"}
    assert set(heads.POOLS) == set(POOLS) - {"tokens"}
    assert set(metrics.OF_TASK) == set(registry.tasks.own_names())
    for name, measures in metrics.OF_TASK.items():
        assert registry.tasks.find(name).measures == measures


# --- one word for one thing ---------------------------------------------------------------------------------------

VARIES = {
    "--alias": "what is done with the alias",
    "--base": "another default; in place of a shape; the new base",
    "--batch-size": "bench takes several",
    "--ensemble": "train makes its members, sweep chooses them",
    "--head": "params counts one",
    "--label": "predict only must not take it for the text",
    "--manifest": "what the file holds",
    "--method": "params takes several",
    "--metric": "analyze has another default",
    "--name": "of an adapter, a sweep, a comparison",
    "--out": "what is written: a file, a folder, a stem",
    "--pair": "predict takes the text itself, too",
    "--restart": "of a training, or of a file of results",
    "--resume": "of a training, or of a file of answers",
    "--seed": "what is random",
    "--shape": "another default",
    "--task-count": "what for",
    "--tasks": "what is done with them",
    "--text": "train has a default to tell",
    "--weights": "not every form can be trained on",
}
"""Options of several commands whose help is not the same, and what differs; the meaning is one."""


def test_an_option_has_one_meaning():
    found: dict[str, dict[tuple[Any, ...], list[str]]] = {}
    for path in COMMANDS:
        for one in params(path):
            help_ = re.sub(r"  \[default: .*\]$", "", one.help)
            for flag in one.opts:
                found.setdefault(flag, {}).setdefault((one.metavar, one.is_flag, help_), []).append(" ".join(path))
    clashes = {flag: uses for flag, uses in found.items() if len(uses) > 1 and flag not in VARIES}
    assert not clashes
    metavars = {flag: {metavar for metavar, _, _ in uses} for flag, uses in found.items()}
    assert {flag for flag, all_ in metavars.items() if len(all_) > 1} <= {"--out", "--pair"}
    flags = {flag: {is_flag for _, is_flag, _ in uses} for flag, uses in found.items()}
    assert not [flag for flag, all_ in flags.items() if len(all_) > 1]
    assert not [flag for flag in VARIES if len(found[flag]) < 2], "not needed here any more"


# --- exit codes ---------------------------------------------------------------------------------------------------


@each_command
def test_an_unknown_option_is_2(path: tuple[str, ...]):
    words = ["x"] * sum(one.required for one in params(path, "argument"))
    done = call(*path, *words, "--nonsense")
    assert done.exit_code == 2, done.output
    assert "--nonsense" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("path", [path for path in COMMANDS if any(o.required for o in COMMANDS[path].params)])
def test_a_missing_argument_is_2(path: tuple[str, ...]):
    done = call(*path)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: missing ")


MISSING = [
    ["train", "missing.csv"],
    ["train", "--manifest", "missing.toml"],
    ["sweep", "missing.csv", "--grid", "lr=1e-3"],
    ["sweep", "--manifest", "missing.toml"],
    ["compare", "missing.csv"],
    ["compare", "--manifest", "missing.toml"],
    ["retrain", "nobody", "--base", "x"],
    ["retrain", "--all", "--base", "/nowhere"],
    ["recipe", "show", "nobody"],
    ["recipe", "run", "houlsby-glue", "nowhere"],
    ["eval", "nobody", "missing.csv"],
    ["predict", "nobody", "hello"],
    ["report", "nobody"],
    ["info", "nobody"],
    ["plan", "--task-count", "3", "--base", "/nowhere"],
    ["serve", "--tasks", "nobody"],
    ["serve", "--key-file", "missing.txt"],
    ["bench", "serve", "--data", "missing.csv"],
    ["bench", "train", "--base", "/nowhere"],
    ["bench", "mixed", "--peft-python", "python", "--peer-scripts", "/nowhere"],
    ["export", "onnx", "--tasks", "nobody", "--out", "x.onnx"],
    ["export", "merged", "nobody", "--out", "x"],
    *(["analyze", kind, "nobody"] for kind in ("ablation", "landscape", "rsa", "alpha", "words", "shift", "sparsity")),
    *(["analyze", kind, "nobody"] for kind in ("size", "init", "robustness", "train-size", "curves", "tradeoff")),
    *(
        ["library", *words]
        for words in (
            ["show", "nobody"],
            ["ensemble", "x", "--of", "nobody"],
            ["verify", "nobody"],
            ["diff", "nobody", "nobody"],
        )
    ),
    *(["library", *words] for words in (["alias", "nobody", "prod"], ["rm", "nobody"], ["restore", "nobody"])),
    *(["library", *words] for words in (["export", "nobody", "x"], ["import", "nowhere"], ["push", "nobody", "a/b"])),
]


@pytest.mark.parametrize("arguments", MISSING, ids=" ".join)
def test_what_is_not_there_is_1_and_one_line(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INLAY_LIBRARY", str(tmp_path / "library"))
    done = call(*arguments)
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_nearly_every_command_is_asked_for_what_is_not_there():
    asked = {path for path in COMMANDS if any(tuple(one[: len(path)]) == path for one in MISSING)}
    nothing_to_miss = {
        ("demo",),
        ("params",),
        ("bench", "host"),
        ("recipe", "list"),
        ("library", "list"),
        ("library", "gc"),
    }
    assert COMMANDS.keys() - asked == nothing_to_miss | {("library", "pull")}


# --- before anything is loaded ------------------------------------------------------------------------------------

EARLY = """
import json, sys
from typer.testing import CliRunner
from inlay.cli.main import app
for arguments in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, arguments)
    heavy = sorted({"torch", "transformers"} & sys.modules.keys())
    print(json.dumps([arguments, done.exit_code, heavy, done.stderr]))
"""


def early(cases: list[list[str]], folder: Path) -> list[Any]:
    process = [sys.executable, "-c", EARLY, json.dumps(cases)]
    done = subprocess.run(process, capture_output=True, text=True, cwd=folder, timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_mistakes_are_found_before_torch_is_imported(tmp_path: Path):
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(20)))
    wrong = {
        2: [
            ["--method", "hulsby"],
            ["--task", "clasification"],
            ["--metric", "nosuch"],
            ["--head", "lineer"],
            ["--pool", "mien"],
            ["--format", "foo"],
            ["--name", "a/b"],
            ["--lr", "-1"],
            ["--val-size", "lots"],
            ["--weights", "int4"],
            ["--weights", "prepack"],
            ["--log", "nosuch:x"],
        ],
        1: [
            ["--text", "nosuch"],
            ["--label", "nosuch"],
            ["--metric", "pearson"],
            ["--val", "missing.csv"],
            ["--test", "missing.csv"],
            ["--base", "/nowhere"],
        ],
    }
    trains = (["train"], ["sweep"], ["compare"])
    cases = {
        2: [],
        1: [one for one in MISSING if one[0] in ("train", "sweep", "compare", "retrain", "recipe", "bench")],
    }
    for code, options in wrong.items():
        for command in trains:
            more = [one for one in options if command != ["compare"] or one[0] != "--method"]
            cases[code] += [[*command, "data.csv", *one] for one in more]
    cases[2] += [["compare", "data.csv", "--methods", "lora,hulsby"], ["sweep", "data.csv", "--search", "grid"]]
    cases[2] += [["bench", "serve", "--method", "hulsby"], ["bench", "mixed", "--task-count", "x"]]
    cases[2] += [["plan", "--task-count", "0"], ["params", "--method", "hulsby"]]
    cases[1] += [["sweep", "data.csv", "--grid", "method=lora,hulsby"], ["sweep", "data.csv", "--grid", "lr"]]
    cases[1] += [["sweep", "data.csv", "--grid", "lr=1", "--csv", "no/where.csv"]]
    asked = cases[2] + cases[1]
    for arguments, code, heavy, said in early(asked, tmp_path):
        assert code == (2 if arguments in cases[2] else 1), (arguments, said)
        assert not heavy, (arguments, heavy)
        if code == 2:
            assert arguments[-2] in said, (arguments, said)
    assert not (tmp_path / "library").exists()


def test_options_of_specs_are_checked_before_the_base_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(20)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INLAY_LIBRARY", str(tmp_path / "library"))

    def load(*arguments: Any, **more: Any) -> Any:
        raise AssertionError("the base is loaded")

    monkeypatch.setattr("inlay.engine.host.Host.__init__", load)
    monkeypatch.setattr("inlay.bench.work.compare", load)
    for words in (["train", "data.csv"], ["sweep", "data.csv", "--grid", "lr=1"], ["bench", "serve"]):
        done = call(*words, "--method", "houlsby:size=abc")
        assert done.exit_code == 2, done.output
        assert "--method: houlsby: size=abc is not valid: expected a whole number" in " ".join(done.stderr.split())
    done = call("compare", "data.csv", "--methods", "houlsby:size=abc")
    assert (done.exit_code, "size=abc" in done.stderr) == (1, True)


@pytest.mark.full
def test_the_check_above_would_notice(tmp_path: Path):
    base = tiny.save_text_model(tmp_path / "base")
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(20)))
    case = ["train", "data.csv", "--max-length", "9000", "--base", base, "--library", "library"]
    ((_, code, heavy, _),) = early([case], tmp_path)
    assert (code, heavy) == (1, ["torch", "transformers"])
