"""bench/winner.py from runs to the table of rules, on a tiny base; and its rules against plain ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from training import work

SCRIPT = Path(__file__).parents[2] / "bench" / "winner.py"


@pytest.mark.full
def test_a_quick_study_goes_on_where_it_was_and_ends_in_a_table(study, tmp_path, capsys, monkeypatch):
    (tmp_path / "sms_spam").mkdir()
    lines = [f"{row['label']}\t{row['text']} {i}\n" for i, row in enumerate(work.texts(100))]
    (tmp_path / "sms_spam" / "SMSSpamCollection").write_text("".join(lines))
    monkeypatch.setattr(sys.modules["defaults"], "TEST", 20)
    monkeypatch.setattr(study, "RATES", (1.0, 10.0))
    where = ["--data", str(tmp_path), "--out", str(tmp_path / "study"), "--datasets", "sms", "--sizes", "40"]
    how = [*where, "--base", tiny.save_text_model(tmp_path / "base"), "--max-steps", "3"]
    study.main(["draw", *where])
    assert capsys.readouterr().out.startswith("1 of 1 draws")
    (tmp_path / "sms_spam" / "SMSSpamCollection").unlink()
    study.main(["run", *how, "--seeds", "2", "--minutes", "0"])
    assert capsys.readouterr().out == "8 runs left\n"
    study.main(["run", *how, "--seeds", "1", "--together", "3"])
    assert [line[:6] for line in capsys.readouterr().out.splitlines()] == ["3 runs", "1 runs", "nothin"]
    with pytest.raises(SystemExit, match="has all its runs"):
        study.main(["table", "--out", str(tmp_path / "none")])
    study.main(["run", *how, "--seeds", "2"])
    assert "nothing is left" in capsys.readouterr().out
    out = tmp_path / "study"
    lines_of = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    assert len(lines_of) == 8
    (unit,) = study.units(out).values()
    assert (unit.test.shape[1], unit.hits.shape) == (20, (8, 4))
    for i, case in enumerate(unit.cases):  # what was kept is what the runs were scored by
        line = next(one for one in lines_of if study.Case(**one["case"]) == case)
        assert unit.alone(i) == pytest.approx(100 * line["test"])
        assert unit.hits[i].mean() == pytest.approx(line["validation"])
    study.main(["table", "--out", str(out)])
    shown = capsys.readouterr().out
    assert "| careful (inlay sweep) | " in shown
    assert shown.strip() == (out / "winner.md").read_text().strip()
    found = study.rules(unit)
    default = [unit.alone(i) for i, case in enumerate(unit.cases) if (case.rate, case.width) == (1.0, 64)]
    assert found["default setting, mean of its seeds"] == pytest.approx(np.mean(default))
    assert found["all runs together"] == pytest.approx(unit.score([1] * 8))
