"""bench/defaults.py from the datasets to the table, on a tiny base."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import tiny
from training import work

SCRIPT = Path(__file__).parents[2] / "bench" / "defaults.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "sms_spam").mkdir()
    lines = [f"{row['label']}\t{row['text']} {i}\n" for i, row in enumerate(work.texts(1100))]
    (folder / "sms_spam" / "SMSSpamCollection").write_text("".join(lines))
    return folder


def test_draws_have_every_class_and_no_test_row(study, folder):
    pool, test = study.pool_and_test(folder, "sms")
    rows = study.drawn(pool, 32, 1)
    assert len(rows) == 32
    assert {row["label"] for row in rows} == {"pos", "neg"}
    assert len(test) == study.TEST
    assert not {row["text"] for row in test} & {row["text"] for row in pool}
    assert rows == study.drawn(pool, 32, 1) != study.drawn(pool, 32, 2)


@pytest.mark.full
def test_a_quick_study_goes_on_where_it_was_and_ends_in_a_table(study, folder, tmp_path, capsys, monkeypatch):
    base = tiny.save_text_model(tmp_path / "base")
    monkeypatch.setattr(study, "TEST", 40)
    how = ["--data", str(folder), "--out", str(tmp_path / "study"), "--base", base, "--datasets", "sms", "--quick"]
    study.main(["run", *how, "--together", "1", "--minutes", "0"])
    assert "1 runs left" not in capsys.readouterr().out
    study.main(["run", *how])
    assert "nothing is left" in capsys.readouterr().out
    study.main(["run", *how])
    assert capsys.readouterr().out == "nothing is left\n"
    study.main(["table", *how])
    shown = capsys.readouterr().out
    assert "### 32 rows" in shown
    assert "| few-shot, rows held out | " in shown
    assert "logistic regression, frozen" in shown
    with (tmp_path / "study" / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["logistic", "houlsby", "houlsby"]
    assert all(0 <= float(row["test"]) <= 1 for row in rows)
    assert (tmp_path / "study" / "study.md").read_text() == shown
