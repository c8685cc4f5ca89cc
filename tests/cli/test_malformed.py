"""A malformed file ends `inlay train` with exit code 1 and one paragraph: the file, the line, what is wrong."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from data.malformed import GOOD, MALFORMED, SCORES, UD, WORDS, Malformed, lines, objects, parquet, table, tabs
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.library.library import Library


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("malformed") / "base")


def different(sentence: bytes, word: bytes, n: int = 4) -> bytes:
    """A sentence several times, each time another one."""
    return b"".join(sentence.replace(word, word + b"s" * i) + b"\n" for i in range(n))


def contexts(n: int = 4) -> bytes:
    """Questions about different contexts: those about the same one are not split."""
    texts = [f"Bees live in {number} hives." for number in range(n)]
    qas = [{"id": "a", "question": "Where?", "answers": [{"text": "hives", "answer_start": 15}]}]
    return json.dumps({"data": [{"paragraphs": [{"context": text, "qas": qas} for text in texts]}]}).encode()


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


@pytest.mark.thin(16)
@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: case.name)
def test_training_on_it_says_what_is_wrong_and_where(case: Malformed, tmp_path: Path, base: str):
    done = train(case, tmp_path, base)
    assert not whats_wrong(case, done), done.output
    assert Library(tmp_path / "library").names() == []


@pytest.mark.thin(8)
@pytest.mark.parametrize("case", [case for case in MALFORMED if not case.arguments], ids=lambda case: case.name)
def test_it_says_the_same_when_the_task_is_guessed(case: Malformed, tmp_path: Path, base: str):
    assert not whats_wrong(case, train(replace(case, task=""), tmp_path, base))


@pytest.mark.parametrize("option", ["--val", "--test"])
def test_other_files_are_held_to_the_same(option: str, tmp_path: Path, base: str):
    case = next(case for case in MALFORMED if case.name == "too many cells")
    bad = case.write(tmp_path)
    done = train(Malformed("good", "good.csv", table(GOOD), "classification", ()), tmp_path, base, option, str(bad))
    assert not whats_wrong(case, done), done.output


CONTROLS = {
    "a.csv": (table(GOOD), "classification"),
    "a.tsv": (tabs(GOOD), "classification"),
    "a.csv.gz": (gzip.compress(table(GOOD), mtime=0), "classification"),
    "a.jsonl": (objects(), "classification"),
    "a.json": (b"[" + b",\n".join(objects().splitlines()) + b"]", "classification"),
    "a.parquet": (lambda: parquet(10), "classification"),
    "scores.csv": (table(SCORES, "text,score"), "regression"),
    "a.conll": (different(lines(*WORDS), b"Anna"), "tagging"),
    "a.conllu": (different(lines(*UD), b"Bees"), "tagging"),
    "squad.json": (contexts(), "qa"),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("file", CONTROLS)
def test_the_same_files_without_the_mistake_are_trained_on(file: str, tmp_path: Path, base: str):
    content, task = CONTROLS[file]
    control = Malformed("control", file, content, task, ())
    for number, case in enumerate((control, replace(control, task="")), 1):
        done = train(case, tmp_path, base, "--max-steps", "1", "--seed", str(number), "--name", "good")
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        assert f"task: {task}, " in done.stdout
        assert Library(tmp_path / "library").versions("good")[-1] == number


def test_what_is_wrong_with_an_outcome_is_noticed(tmp_path: Path, base: str):
    """The control of the checks above."""
    case = next(case for case in MALFORMED if case.line)
    assert len(whats_wrong(case, train(replace(case, content=table(GOOD)), tmp_path, base, "--max-steps", "1"))) > 3
    done = train(case, tmp_path, base, "--restart")
    assert whats_wrong(replace(case, line=99), done) == [f"the place {case.file}:99: "]
    assert whats_wrong(replace(case, words=("banana",)), done) == ["the words 'banana'"]
