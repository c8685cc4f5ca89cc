"""bench/students.py from runs to its table, on a tiny base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from training import work

SCRIPT = Path(__file__).parents[2] / "bench" / "students.py"


@pytest.mark.full
def test_a_unit_has_single_runs_an_ensemble_and_its_student(study, tmp_path):
    folder = tmp_path / "study" / "data" / "sms"
    folder.mkdir(parents=True)
    for name, seed, rows in (("40-0", 0, 40), ("test", 1, 20)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in work.texts(rows, seed=seed)))
    how = ["--out", str(tmp_path / "study"), "--base", tiny.save_text_model(tmp_path / "base"), "--max-steps", "3"]
    study.main(["run", *how, "--datasets", "sms", "--sizes", "40", "--draws", "1"])
    ((unit, line),) = study.ended(tmp_path / "study").items()
    assert (unit.name, len(line["alone"]), len(line["members"])) == ("sms-40-0", study.SINGLE, study.MEMBERS)
    assert {0 <= line[kind] <= 1 for kind in ("ensemble", "student")} == {True}


def test_the_table_is_paired_by_draw(study, tmp_path, capsys):
    lines = [
        {"unit": {"dataset": name, "size": 300, "draw": 0}, "alone": [low, low + 0.02], "members": [low],
         "ensemble": low + 0.03, "student": low + 0.02}
        for name, low in (("sst2", 0.6), ("sms", 0.9))
    ]  # fmt: skip
    lines.append({"unit": {"dataset": "corporate", "size": 4000, "draw": 0}, "problem": "the dataset is too small"})
    (tmp_path / "students.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    study.main(["table", "--out", str(tmp_path)])
    assert "| 300 | 2 | 76.0 | 75.0 | +2.0 [+2.0, +2.0] | +1.0 [+1.0, +1.0] |" in capsys.readouterr().out
