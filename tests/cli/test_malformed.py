"""A malformed file ends `inlay train` with exit code 1 and one paragraph: the file, the line, what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from data.malformed import GOOD, MALFORMED, SCORES, UD, WORDS, Malformed, answer, lines, objects, parquet, squad, table
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.library.folder import Library


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("malformed") / "base")


def train(case: Malformed, folder: Path, base: str, *more: str) -> Any:
    if case.file.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    task = ["--task", case.task] if case.task else []
    where = ["--base", base, "--library", str(folder / "library")]
    arguments = ["train", str(case.write(folder)), *task, *case.arguments, *where, *more]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def whats_wrong(case: Malformed, done: Any) -> list[str]:
    """What the outcome of a malformed file has that it should not have, or the other way round."""
    said = done.stderr
    place = f"{case.file}:{case.line}: " if case.line else case.file
    wanted = {
        "exit code 1": done.exit_code == 1,
        "no bug behind it": isinstance(done.exception, SystemExit),
        "no traceback": "Traceback" not in done.output,
        "one paragraph": said.startswith("error: ") and said.endswith("\n") and said.count("\n") == 1,
        f"the place {place}": place in said,
        **{f"the words {word!r}": word in said for word in case.words},
    }
    return [what for what, holds in wanted.items() if not holds]


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_training_on_it_says_what_is_wrong_and_where(case: Malformed, tmp_path: Path, base: str):
    done = train(case, tmp_path, base)
    assert not whats_wrong(case, done), done.output
    assert Library(tmp_path / "library").names() == []


@pytest.mark.parametrize("case", [case for case in MALFORMED if not case.arguments], ids=lambda case: case.name)
def test_it_says_so_too_when_the_task_is_guessed(case: Malformed, tmp_path: Path, base: str):
    done = train(case, tmp_path, base)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.output
    assert case.file in done.stderr
