"""Every Python snippet and every command in the documentation runs, and every example too."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

from inlay.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALL = shlex.split("--batch-size 4 --lengths short --repeats 1 --steps 1 --warmup-steps 1 --shape minilm")
"""What a benchmark is given here in addition."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def _commands(page: Path) -> list[str]:
    lines = [line for body in _blocks(page, "console") for line in body.splitlines() if line.startswith("$ inlay ")]
    return [line.removeprefix("$ ").partition("  #")[0] for line in lines]


def _run(arguments: list[str], folder: Path) -> str:
    result = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


@pytest.fixture
def reader(tmp_path, tmp_path_factory, monkeypatch):
    """A folder as a reader of the documentation has it: the demo's data, a base (here a tiny one), no library yet."""
    monkeypatch.setenv("INLAY_BASE", tiny.save_text_model(tmp_path_factory.mktemp("base")))
    monkeypatch.setenv("INLAY_LIBRARY", str(tmp_path / "library"))
    for file in (ROOT / "src/inlay/demo").glob("*.*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "languages").mkdir()
    for code in ("en", "de", "fi"):
        shutil.copy(tmp_path / "tickets.csv", tmp_path / "languages" / f"test.{code}.csv")
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("page", [p for p in PAGES if _blocks(p, "python")], ids=lambda p: p.name)
def test_snippets_run(page, reader):
    for code in _blocks(page, "python"):
        (reader / "snippet.py").write_text(code)
        _run(["snippet.py"], reader)


@pytest.mark.full
@pytest.mark.parametrize("page", [p for p in PAGES if _commands(p)], ids=lambda p: p.name)
def test_commands_run_one_after_the_other(page, reader, monkeypatch):
    monkeypatch.chdir(reader)
    for body in _blocks(page, "toml"):
        (reader / body.splitlines()[0].removeprefix("# ")).write_text(body)
    for command in _commands(page):
        small = SMALL if command.startswith("inlay bench") else []
        done = CliRunner().invoke(app, [*shlex.split(command)[1:], *small])
        assert done.exit_code == 0, (command, done.stderr, done.exception)
        assert done.stdout or "--out" in command, command


@pytest.mark.full
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path, tmp_path):
    assert _run([str(path)], tmp_path)


def test_there_is_something_to_run():
    assert any(_blocks(page, "python") for page in PAGES)
    assert sum(len(_commands(page)) for page in PAGES) > 10
    assert EXAMPLES


def _anchors(page: Path) -> set[str]:
    """What GitHub calls the page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "deploy/README.md"], ids=lambda p: p.parent.name + "/" + p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("http"):
            path, _, anchor = target.partition("#")
            found = page.parent / path if path else page
            assert found.exists(), target
            assert not anchor or anchor in _anchors(found), target
