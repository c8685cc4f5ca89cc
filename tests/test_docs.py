"""Every Python snippet and every command in the documentation runs, and every example too."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        found += [(page.name, body) for body in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)]
    return found


def _commands() -> list[str]:
    lines = [line for _, body in _blocks("console") for line in body.splitlines() if line.startswith("$ inlay ")]
    return [line.removeprefix("$ ").partition("  #")[0] for line in lines]


def _run(arguments: list[str], folder: Path) -> str:
    result = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


@pytest.mark.parametrize(("page", "code"), _blocks("python"))
def test_snippet_runs(page, code, tmp_path):
    (tmp_path / "snippet.py").write_text(code)
    _run(["snippet.py"], tmp_path)


@pytest.mark.parametrize("command", _commands())
def test_command_runs(command, tmp_path):
    assert _run(["-m", "inlay.cli.main", *shlex.split(command)[1:]], tmp_path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(path, tmp_path):
    assert _run([str(path)], tmp_path)


def test_there_is_something_to_run():
    assert _blocks("python")
    assert _commands()
    assert EXAMPLES


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
