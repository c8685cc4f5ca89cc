"""What holds for every command: help without torch, exit codes, JSON alone on stdout, no tracebacks."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import warnings
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import inlay
from inlay.cli import info, main, output
from inlay.errors import InlayError

HEAVY = {"torch", "transformers", "numpy", "safetensors", "huggingface_hub"}
COMMANDS = ("bench", "demo", "eval", "info", "params", "predict", "train")

run = CliRunner().invoke


def process(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, **more)


def imported_by(code: str) -> set[str]:
    """The top-level packages that are loaded when `code` is done."""
    script = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = process("-c", script)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_and_its_command_line_imports_nothing_heavy():
    assert not HEAVY & imported_by("import inlay, inlay.cli.main, inlay.cli.demo, inlay.cli.info, inlay.cli.params")


@pytest.mark.full
def test_the_check_above_would_notice():
    assert "torch" in imported_by("import inlay; inlay.Host")


@pytest.mark.thin(4)
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([c, "--help"] for c in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]):
    code = f"""
from inlay.cli.main import app
try:
    app({arguments}, prog_name="inlay")
except SystemExit as end:
    assert not end.code, end.code
"""
    assert not HEAVY & imported_by(code)


def test_the_module_runs_as_a_program():
    for module in ("inlay", "inlay.cli.main"):
        done = process("-m", module, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith("Usage: inlay ")
        assert all(command in done.stdout for command in COMMANDS)
        assert done.stderr == ""


def test_version():
    done = run(main.app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"inlay {inlay.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["--nonsense"], ["params", "--nonsense"], ["params", "--labels", "0"], ["info", "a", "b"]],
)
def test_bad_usage_is_2(arguments: list[str]):
    done = run(main.app, arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: " if arguments else "Usage: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["params", "--labels", "0"],
            "error: --labels: must be greater than or equal to 1\nhelp: inlay params --help\n",
        ),
        (["params", "--labels", "two"], "error: --labels: must be a whole number\nhelp: inlay params --help\n"),
        (["eval"], "error: missing argument 'NAME'\nhelp: inlay eval --help\n"),
        (["--nonsense"], "error: no such option: --nonsense\nhelp: inlay --help\n"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_usage_looks_like_every_other_error(arguments: list[str], expected: str):
    assert run(main.app, arguments, prog_name="inlay").stderr == expected


def test_a_mistake_in_a_real_process_is_one_line():
    done = process("-m", "inlay.cli.main", "info", "hulsby", "--json")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown method or task 'hulsby'. Did you mean houlsby?")
    assert done.stderr.count("\n") == 1


def test_an_error_of_several_lines_is_shown_as_one(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise InlayError("first\n  second")

    monkeypatch.setattr(info, "_everything", fail)
    done = run(main.app, ["info"])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "error: first second\n")


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(info, "_everything", fail)
    assert isinstance(run(main.app, ["info"]).exception, ZeroDivisionError)


INTERRUPTED = """
import signal
from inlay.cli import info, main
def wait():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        if {swallow}:
            raise ModuleNotFoundError("as an interrupted import does") from None
        raise
info._everything = wait
import sys
sys.argv = ["inlay", "info"]
main.main()
"""


@pytest.mark.parametrize("swallow", [False, True])
def test_an_interrupt_is_quiet(swallow: bool):
    done = process("-c", INTERRUPTED.format(swallow=swallow))
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")


ENDED = """
import atexit, os, sys, threading, time, types
import typer
from inlay.cli import info, main
class Late:
    def __del__(self, write=os.write):
        write(1, b"taken apart")
late = Late()
def work():
    if {heavy}:
        sys.modules["torch"] = types.ModuleType("torch")
    atexit.register(print, "called at exit")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("said", end=" ")
    raise typer.Exit(3)
info._everything = work
sys.argv = ["inlay", "info"]
main.main()
"""


@pytest.mark.parametrize("heavy", [False, True])
def test_a_process_with_torch_is_not_taken_apart_but_all_else_is_done(heavy: bool):
    done = process("-c", ENDED.format(heavy=heavy))
    expected = "said thread\ncalled at exit\n" + ("" if heavy else "taken apart")
    assert (done.returncode, done.stdout, done.stderr) == (3, expected, "")


def test_other_packages_are_silenced_for_a_while(capsys: pytest.CaptureFixture[str]):
    log = logging.getLogger("some.package")
    with output.quiet():
        warnings.warn("noise", stacklevel=1)
        log.warning("noise")
    assert capsys.readouterr().err == ""
    assert log.isEnabledFor(logging.WARNING)
    with pytest.warns(UserWarning, match="heard again"):
        warnings.warn("heard again", stacklevel=1)


@pytest.mark.full
def test_stdout_is_one_document_and_people_read_stderr():
    done = process("-m", "inlay.cli.main", "params", "--shape", "minilm-l6", "--method", "lora", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["method"] == "lora"
    assert "100 tasks" in done.stderr
    assert "{" not in done.stderr


def test_without_json_people_read_stdout():
    done = run(main.app, ["params", "--shape", "minilm-l6", "--method", "lora"])
    assert done.exit_code == 0
    assert "100 tasks" in done.stdout
    assert done.stderr == ""


def test_numbers_that_json_does_not_have_become_null(capsys: pytest.CaptureFixture[str]):
    output.document({"loss": float("nan"), "runs": [{"best": float("-inf")}, 0.5]}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"loss": None, "runs": [{"best": None}, 0.5]}


def test_fold_breaks_between_items_only():
    items = ["one 1,000", "two 2,000", "three 3,000"]
    assert output.fold(items, 80) == "one 1,000, two 2,000, three 3,000"
    assert output.fold(items, 21) == "one 1,000, two 2,000,\nthree 3,000"
    assert output.fold(items, 3) == "one 1,000,\ntwo 2,000,\nthree 3,000"
    assert output.fold([], 80) == ""


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.00 %"), (1e-7, "< 0.01 %"), (0.00006, "0.01 %"), (0.0221, "2.21 %"), (1, "100.00 %")]
)
def test_percent(share: float, text: str):
    assert output.percent(share) == text


def test_the_entry_point_is_what_the_package_declares():
    assert callable(main.main)
    assert isinstance(main.app, typer.Typer)
