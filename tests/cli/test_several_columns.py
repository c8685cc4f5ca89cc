"""Joined texts and labels in columns of 0 and 1, from training to answers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app


@pytest.mark.full
def test_columns_that_were_joined_are_joined_again(tmp_path: Path):
    rows = [
        {"subject": row["text"][:7], "body": f"{row['text']} {i}", "good": int(row["label"] == "pos"), "odd": i % 2}
        for i, row in enumerate(work.texts(30))
    ]
    file = tmp_path / "mails.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    base, where = tiny.save_text_model(tmp_path / "base"), ["--library", str(tmp_path / "library")]

    def call(*arguments: Any) -> Any:
        done = CliRunner().invoke(app, [*map(str, arguments), *where], env={"COLUMNS": "100"})
        assert done.exit_code == 0, done.output
        return done

    out = call("train", file, "--name", "mails", "--text", "subject,body", "--max-steps", 2, "--base", base).stdout
    assert 'guessed: label = "good,odd", task = multilabel' in out
    assert "27 rows, 2 labels" in out
    evaluated = call("eval", "mails", file, "--json")
    assert json.loads(evaluated.stdout)["rows"] == 30
    assert "guessed" not in evaluated.stderr
    answers = json.loads(call("predict", "mails", "--file", file, "--json").stdout)
    assert [one["text"] for one in answers] == [f"{row['subject']} {row['body']}".strip() for row in rows]
    assert answers[0]["scores"].keys() == {"good", "odd"}
