"""Pairs of texts in files without a header: trained on as pairs, and never read as single texts afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app

ROWS = work.pairs(30)


def tsv(path: Path, rows: Sequence[Mapping[str, Any]], header: str = "") -> Path:
    lines = [header] * bool(header) + ["\t".join(str(value) for value in row.values()) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


class Place:
    """A library with an adapter that was trained on pairs, from a file without a header."""

    def __init__(self, root: Path):
        self.root = root
        self.base = tiny.save_text_model(root / "base")
        data = tsv(root / "pairs.tsv", ROWS)
        self.trained = self.call("train", data, "--name", "nli", "--max-steps", 2, "--base", self.base)
        assert self.trained.exit_code == 0, self.trained.output

    def call(self, *arguments: Any) -> Any:
        where = ["--library", str(self.root / "library")]
        return CliRunner().invoke(app, [*map(str, arguments), *where], env={"COLUMNS": "80"})

    def fails(self, *arguments: Any) -> str:
        done = self.call(*arguments)
        assert (done.exit_code, "Traceback" in done.output) == (1, False), done.output
        return " ".join(str(done.stderr).split())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("pairs"))


def test_a_file_without_header_is_trained_on_as_pairs(place: Place):
    assert 'guessed: text = "column1", pair = "column2", label = "column3"' in place.trained.output


def test_eval_reads_pairs_in_whatever_layout(place: Place, tmp_path: Path):
    plain = json.loads(place.call("eval", "nli", tsv(tmp_path / "dev.tsv", ROWS), "--json").stdout)
    named = tsv(tmp_path / "named.tsv", ROWS, "premise\thypothesis\tlabel")
    assert json.loads(place.call("eval", "nli", named, "--json").stdout)["metrics"] == plain["metrics"]
    other = tsv(tmp_path / "other.tsv", ROWS, "left\tright\tlabel")
    chosen = place.call("eval", "nli", other, "--text", "left", "--pair", "right", "--json")
    assert json.loads(chosen.stdout)["metrics"] == plain["metrics"]


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_single_texts_are_refused(place: Place, tmp_path: Path, command: str):
    rows = [{"text": row["a"], "label": row["label"]} for row in ROWS]
    for file in (tsv(tmp_path / "one.tsv", rows), tsv(tmp_path / "named.tsv", rows, "text\tlabel")):
        said = place.fails(command, "nli", *([file] if command == "eval" else ["--file", file]))
        assert "trained on pairs" in said
        assert "--pair COLUMN" in said
    two = tsv(tmp_path / "two.tsv", ROWS, "left\tright\tlabel")
    said = place.fails(command, "nli", *([two] if command == "eval" else ["--file", two]))
    assert "the columns are left, right, label; pass --pair COLUMN" in said


def test_a_pair_is_for_those_that_were_trained_on_pairs(place: Place, tmp_path: Path):
    file = tsv(tmp_path / "two.tsv", ROWS, "left\tright\tlabel")
    how = ("--name", "tone", "--text", "left", "--label", "label", "--max-steps", 1, "--base", place.base)
    assert place.call("train", file, *how).exit_code == 0
    done = place.call("predict", "nli,tone", "--file", file, "--text", "left", "--pair", "right", "--json")
    assert done.exit_code == 0, done.output
    nli, tone = json.loads(done.stdout)[:2]
    assert (nli["text"], nli["pair"], tone["text"]) == (ROWS[0]["a"], ROWS[0]["b"], ROWS[0]["a"])
    assert "pair" not in tone
    alone = ("predict", "tone", "--file", file, "--text", "left", "--pair", "right")
    assert "'tone' was trained on single texts" in place.fails(*alone)


def test_a_single_text_on_the_command_line_is_refused(place: Place):
    said = place.fails("predict", "nli", "a good film")
    assert "'nli' was trained on pairs of texts, and this is one text" in said
    assert "--pair" in said
    assert place.call("predict", "nli", "a good film", "--pair", "a bad film").exit_code == 0
