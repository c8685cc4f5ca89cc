"""`--teacher`: one adapter that learns from an ensemble, of which each member labels only what it has not seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from training import work
from training.test_resume import Stop
from training.test_side_by_side import assert_follows
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.errors import InlayError, LibraryError, RunError
from inlay.library.ensemble import Ensemble
from inlay.runs import teacher
from inlay.runs.prepare import Prepared, prepare
from inlay.runs.teacher import prepare_taught
from inlay.sweeps.trial import Data, identity
from inlay.tasks._soft import HARD

ROWS, NEW = work.texts(24, 1, 3), work.texts(9, 77, 3)
LABELS = ("ask", "neg", "pos")


def run(rows: Sequence[Any] = ROWS, **more: Any) -> inlay.Run:
    return work.run(rows, **{"few_shot": False, **more})


def ensemble(library: inlay.Library, name: str = "three", rows: Sequence[Any] = ROWS, **more: Any) -> Ensemble:
    settings = {"val_size": None, "epochs": 1, "lr": 0.05, **more}
    made = inlay.train(work.host(), run(rows, name=name, **settings), ensemble=3, library=library, progress=False)
    assert isinstance(made.adapter, Ensemble)
    return made.adapter


def lines(path: Path, rows: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


class Place:
    """A library with an ensemble in it, its host, and a file of texts."""

    def __init__(self, root: Path):
        self.root, self.library, self.host = root, inlay.Library(root / "library"), work.host()
        self.three = ensemble(self.library)
        self.texts = lines(root / "texts.jsonl", [{"text": row["text"], "label": "nonsense"} for row in NEW])

    def prepared(self, **more: Any) -> Prepared:
        return prepare_taught(run(**{"teacher": "three", **more}), self.host, self.library)

    def train(self, runs: Any, **how: Any) -> Any:
        return inlay.train(work.host(), runs, library=self.library, progress=False, **how)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("teacher"))


def test_a_row_is_labelled_by_the_members_that_left_it_out(place: Place):
    data = place.prepared(unlabelled=place.texts)
    left_out = [
        {e.text for e in prepare(run(fold=f"{k}/3", val_size=None), place.host).validation.examples} for k in (1, 2, 3)
    ]
    host = work.host()
    for i, member in enumerate(place.three.members):
        host.load(member, str(i))
    for example, row in zip(data.train.examples, data.train.rows, strict=True):
        (who,) = [i for i, texts in enumerate(left_out) if example.text in texts]
        said = host.predict([(str(who), example.text)])[0]["scores"]
        expected = [HARD * (label == example.target) + (1 - HARD) * said[label] for label in LABELS]
        assert row.target == pytest.approx(expected, abs=1e-5)
    assert data.unlabelled is not None
    assert len(data.unlabelled.rows) == len(NEW)
    for example, row in zip(data.unlabelled.examples, data.unlabelled.rows, strict=True):
        said = [host.predict([(str(i), example.text)])[0]["scores"] for i in range(3)]
        assert row.target == pytest.approx([sum(one[label] for one in said) / 3 for label in LABELS], abs=1e-5)
    assert [row.target for row in data.validation.rows] == [LABELS.index(e.target) for e in data.validation.examples]
    assert data.warnings == []
    assert (data.teacher["ref"], data.teacher["rows"], data.teacher["unlabelled"]) == ("three@1", 16, 9)
    assert "teacher: three@1 (3 members) labels 16 of 16 rows" in data.notes[-1]
    assert data.data_hash == prepare(run(), place.host).data_hash  # the rows are the same without a teacher


def test_what_a_member_says_of_rows_it_has_seen_counts_nothing(place: Place, monkeypatch):
    """The first member always says `ask`, with certainty: only what it left out changes."""
    before = place.prepared()
    rigged = {n: torch.zeros_like(t) for n, t in place.three.members[0].tensors.items()}
    rigged["head.bias"] = torch.tensor([50.0, 0.0, 0.0])
    members = (replace(place.three.members[0], tensors=rigged), *place.three.members[1:])
    place.library.put(Ensemble(members, name="rigged"))
    after = place.prepared(teacher="rigged")
    own = {e.text for e in prepare(run(fold="1/3", val_size=None), place.host).validation.examples}
    changed = 0
    for example, old, new in zip(before.train.examples, before.train.rows, after.train.rows, strict=True):
        if example.text in own:
            assert new.target == pytest.approx(
                [HARD * (label == example.target) + (1 - HARD) * (label == "ask") for label in LABELS]
            )
            changed += 1
        else:
            assert new.target == old.target
    assert 0 < changed < len(before.train.rows)
    # positive control: if nobody knew what members have seen, it would be everywhere
    monkeypatch.setattr(teacher, "_learned_from", lambda *_: None)
    loose = place.prepared(teacher="rigged")
    assert all(a.target != b.target for a, b in zip(before.train.rows, loose.train.rows, strict=True))
    assert "Nobody knows which rows 3 of the 3 members" in loose.warnings[0]
    assert loose.teacher["asked"] != after.teacher["asked"]


def test_validation_rows_of_its_own_and_windows(place: Place, tmp_path: Path):
    library, val = inlay.Library(tmp_path / "library"), lines(tmp_path / "val.jsonl", work.texts(6, 8, 3))
    ensemble(library, val=val)
    given = {"val": val, "val_size": None, "teacher": "three"}
    data = prepare_taught(run(**given), place.host, library)
    assert (data.teacher["rows"], len(data.train.rows), data.warnings) == (24, 24, [])
    parts = prepare_taught(run(**given, long="windows", max_length=6), place.host, library)
    assert len(parts.train.rows) > 24
    assert all(row.target == data.train.rows[row.example].target for row in parts.train.rows)
    some = prepare_taught(run(**given, train_size=9), place.host, library)
    assert (some.teacher["rows"], some.warnings) == (9, [])


def test_weights_count(place: Place):
    place.library.put(Ensemble(place.three.members, (1, 1, 4), name="weighted"))
    plain, heavy = (place.prepared(teacher=name, unlabelled=place.texts) for name in ("three", "weighted"))
    assert [row.target for row in plain.train.rows] == [row.target for row in heavy.train.rows]  # one member each
    assert plain.unlabelled is not None
    assert heavy.unlabelled is not None
    host = work.host()
    host.load(Ensemble(place.three.members, (1, 1, 4)), "it")
    for example, a, b in zip(plain.unlabelled.examples, plain.unlabelled.rows, heavy.unlabelled.rows, strict=True):
        assert a.target != b.target
        scores = host.predict([("it", example.text)])[0]["scores"]
        assert b.target == pytest.approx([scores[label] for label in LABELS], abs=1e-5)


def test_what_a_teacher_of_other_data_has_seen(place: Place):
    """By the file that its card names; a warning where that is not there any more."""
    some = [*ROWS[:9], *work.texts(15, 5, 3)]
    file = Path(lines(place.root / "other.jsonl", some))
    member = work.run([], few_shot=False, val_size=None, epochs=1).model_copy(update={"data": str(file)})
    inlay.train(
        work.host(), member.model_copy(update={"name": "other"}), ensemble=2, library=place.library, progress=False
    )
    data = place.prepared(teacher="other")
    assert data.warnings == []
    asked = {e.text: len(set(np.round(r.target, 6))) for e, r in zip(data.train.examples, data.train.rows, strict=True)}
    assert len(asked) == 16
    assert data.teacher["rows"] == 16
    file.unlink()
    gone = place.prepared(teacher="other")
    assert "2 of the 2 members of the teacher other@1" in gone.warnings[0]
    shared = {row["text"] for row in ROWS[:9]}
    for example, old, new in zip(data.train.examples, data.train.rows, gone.train.rows, strict=True):
        assert (old.target == new.target) == (example.text not in shared)


def test_one_adapter_as_teacher_labels_what_it_has_not_seen(place: Place):
    alone = place.train(run(name="one", epochs=1))
    host = work.host()
    host.load(alone.adapter, "one")
    with pytest.raises(RunError, match="has learned from all these rows"):
        place.prepared(teacher="one")
    with pytest.raises(RunError, match="has learned from all these rows"):  # its validation rows are the run's own
        place.prepared(teacher="one", unlabelled=lines(place.root / "same.jsonl", ROWS))
    data = place.prepared(teacher="one", unlabelled=place.texts)
    assert all(sorted(row.target) == [0.0, 0.0, 1.0] for row in data.train.rows)
    assert data.unlabelled is not None
    scores = [answer["scores"] for answer in host.predict([("one", e.text) for e in data.unlabelled.examples])]
    for row, said in zip(data.unlabelled.rows, scores, strict=True):
        assert row.target == pytest.approx([said[label] for label in LABELS], abs=1e-5)
    other = place.prepared(teacher="one", seed=9, unlabelled=place.texts)  # another seed validates on other rows
    assert 0 < other.teacher["rows"] < 16


@pytest.mark.parametrize(("rows", "task"), [(work.ratings(24, 3), "regression"), (work.topics(24, 3), "multilabel")])
def test_other_tasks(tmp_path: Path, rows: Any, task: str):
    library = inlay.Library(tmp_path / "library")
    made = ensemble(library, task, rows, task=task)
    new = lines(tmp_path / "texts.jsonl", [{"text": row["text"]} for row in NEW])
    host = work.host()
    data = prepare_taught(run(rows, task=task, teacher=task, unlabelled=new), host, library)
    plain = prepare(run(rows, task=task), host)
    host.load(made, "it")
    assert data.unlabelled is not None
    for example, row in zip(data.unlabelled.examples, data.unlabelled.rows, strict=True):
        (said,) = host.predict([("it", example.text)])
        if task == "regression":
            assert row.target * plain.task.scale + plain.task.mean == pytest.approx(said["value"], abs=1e-4)
        else:
            assert row.target == pytest.approx(list(said["scores"].values()), abs=1e-5)
    assert any(a.target != b.target for a, b in zip(data.train.rows, plain.train.rows, strict=True))
    assert type(data.task) is type(plain.task)
    result = inlay.train(work.host(), run(rows, task=task, teacher=task, epochs=1), library=library, progress=False)
    assert result.ok


def runs(place: Place) -> list[inlay.Run]:
    return [
        run(seed=1, name="taught", teacher="three", unlabelled=place.texts),
        run(seed=2, name="plain"),
        run(seed=3, name="weighted", teacher="three", class_weights=True, method="adapterbias"),
        run(work.texts(24, 4), seed=4, name="narrow"),
    ]


@pytest.fixture(scope="module")
def together(place: Place) -> list[inlay.Result]:
    found: list[inlay.Result] = place.train(runs(place))
    return found


@pytest.mark.full
def test_side_by_side_as_alone(place: Place, together: list[inlay.Result]):
    for result, one in zip(together, runs(place), strict=True):
        assert_follows(result, place.train(one))


def test_what_their_cards_say(together: list[inlay.Result]):
    assert len(together[0].losses) == 3 * -(-(16 + 9) // 4)
    assert together[0].adapter.about["teacher"]["ref"] == "three@1"
    assert together[0].adapter.about["config"]["teacher"] == "three@1"
    assert "teacher" not in together[1].adapter.about


def test_stopped_and_resumed_it_is_the_same(place: Place, tmp_path: Path, together: list[inlay.Result]):
    how: Any = {"checkpoint": tmp_path / "at", "resume": True, "save_every": 1e9}
    for stop in (Stop(5), Stop(7)):
        with pytest.raises(KeyboardInterrupt):
            place.train(runs(place), callbacks=[stop], **how)
    for found, expected in zip(place.train(runs(place), **how), together, strict=True):
        work.assert_identical(found, expected)


def test_unlabelled_texts_and_the_teacher_change_what_is_learned(place: Place):
    host = work.host()
    with_all, with_rows, without = (
        inlay.train(host, one, library=place.library, progress=False)
        for one in (run(seed=1, teacher="three", unlabelled=place.texts), run(seed=1, teacher="three"), run(seed=1))
    )
    assert with_rows.losses != without.losses
    assert with_all.losses != with_rows.losses
    assert with_all.adapter.about["data"] == without.adapter.about["data"]


def test_another_teacher_does_not_go_on(place: Place, tmp_path: Path):
    library = inlay.Library(tmp_path / "library")
    library.put(place.three, "it")
    one = run(name="student", teacher="it")
    how: Any = {"checkpoint": tmp_path / "at", "resume": True, "save_every": 1e9, "library": library, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        inlay.train(work.host(), one, callbacks=[Stop(3)], **how)
    library.put(Ensemble(place.three.members[:2], name="it"))
    with pytest.raises(RunError, match="started with the teacher it@1, not it@2; pass --teacher it@1"):
        inlay.train(work.host(), one, **how)
    same = one.model_copy(update={"teacher": "it@1"})
    assert inlay.train(work.host(), same, **{**how, "resume": True}).ok


def test_a_file_of_unlabelled_texts_that_changes_does_not_go_on(place: Place, tmp_path: Path):
    file = lines(tmp_path / "texts.jsonl", NEW)
    one = run(name="student", teacher="three", unlabelled=file)
    how: Any = {"checkpoint": tmp_path / "at", "resume": True, "save_every": 1e9, "library": place.library}
    with pytest.raises(KeyboardInterrupt):
        inlay.train(work.host(), one, callbacks=[Stop(3)], progress=False, **how)
    lines(tmp_path / "texts.jsonl", work.texts(9, 78, 3))
    with pytest.raises(RunError, match="file of unlabelled texts of student has changed"):
        inlay.train(work.host(), one, progress=False, **how)


def test_sweeps_know_whose_answers_they_have(place: Place):
    data = Data(place.host, place.library)
    place.library.put(Ensemble(place.three.members[:2], name="two"))
    given = [run(), run(teacher="three"), run(teacher="two"), run(teacher="three", unlabelled=place.texts)]
    found = [identity(data.prepare(one), place.host) for one in given]
    assert len(set(found)) == 4
    assert identity(data.prepare(run(teacher="three@1")), place.host) == found[1]
    again = data.prepare(run(teacher="three", lr=0.1))
    assert again.train.rows is data.prepare(run(teacher="three")).train.rows  # asked once
    assert again.run.teacher == "three@1"


def test_what_is_refused(place: Place, tmp_path: Path):
    other = inlay.Library(tmp_path / "other")
    inlay.train(work.host(9), run(name="three", epochs=1), library=other, progress=False)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"rows": work.texts(24, 2)}, "knows the labels ask, neg, pos, and the data has neg, pos; 'ask' is in one"),
        ({"rows": work.ratings(24), "task": "regression"}, "is for classification, and the data for regression"),
        ({"rows": work.entities(24), "task": "tagging"}, "for classification, multilabel and regression, not for tag"),
        ({"few_shot": True}, "few_shot .--few-shot. cannot be combined with teacher"),
        ({"teacher": None, "unlabelled": place.texts}, "needs a teacher"),
        (
            {"rows": [{"a": r["text"], "b": r["text"], "label": r["label"]} for r in ROWS], "pair": "b", "text": "a"},
            "trained on single texts, and the data has pairs of texts",
        ),
    ]
    for more, said in wrong:
        with pytest.raises(RunError, match=said):
            place.prepared(**more)
    with pytest.raises(RunError, match="the teacher three@1: this adapter belongs to the base"):
        prepare_taught(run(teacher="three"), place.host, other)
    with pytest.raises(LibraryError, match="no adapter 'nobody'"):
        place.prepared(teacher="nobody")
    with pytest.raises(InlayError, match="missing"):
        place.prepared(unlabelled=str(tmp_path / "missing.csv"))
    with pytest.raises(RunError, match="cannot be combined with an ensemble: it trains one adapter"):
        inlay.train(place.host, run(teacher="three"), ensemble=2, library=place.library, progress=False)
    assert place.host.names == []


def test_what_was_done_with_a_file_of_unlabelled_texts_is_told(place: Place, tmp_path: Path):
    texts = lines(tmp_path / "other.jsonl", [*({"words": row["text"]} for row in NEW), {"words": ""}])
    notes = place.prepared(unlabelled=texts, skip_bad_rows=True).notes
    assert any(note.endswith('other.jsonl: guessed: text = "words"') for note in notes), notes
    assert any("other.jsonl: skipped 1 row that cannot be used; the first: " in note for note in notes), notes


def test_a_teacher_that_has_learned_from_test_rows_is_noticed(place: Place):
    member = run(name="in-file", val_size=None, epochs=1).model_copy(
        update={"data": lines(place.root / "rows.jsonl", ROWS)}
    )
    inlay.train(work.host(), member, ensemble=2, library=place.library, progress=False)
    (warning,) = place.prepared(teacher="in-file", test_size=6).warnings
    assert warning.startswith("The teacher in-file@1 has learned from 6 of the 6 test rows, so the test score is too")
    ensemble(place.library, "clean", test_size=6)
    assert place.prepared(teacher="clean", test_size=6).warnings == []


def test_few_rows_train_as_usual_with_a_teacher(place: Place):
    given = {"few_shot": None, "epochs": None, "choose_by": None, "val_size": None}
    assert prepare(run(**given), place.host).run.few_shot
    data = place.prepared(**given)
    assert (data.run.few_shot, data.folds) == (False, ())


def test_the_command(tmp_path: Path):
    base, library = tiny.save_text_model(tmp_path / "base"), str(tmp_path / "library")
    data, new = lines(tmp_path / "tone.jsonl", work.texts(40)), lines(tmp_path / "new.jsonl", work.texts(9, 7))

    def call(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(app, [*words, "--library", library], env={"COLUMNS": "200"})
        assert done.exit_code == code, done.output
        return done

    short = ("--max-steps", "3", "--base", base)
    call("train", data, "--ensemble", "2", "--no-few-shot", *short)
    done = call("train", data, "--name", "student", "--teacher", "tone", "--unlabelled", new, *short, "--json")
    document = json.loads(done.stdout)
    assert (document["name"], document["version"]) == ("student", 1)
    assert "teacher: tone@1 (2 members) labels 36 of 36 rows" in done.stderr
    assert "36 rows and 9 unlabelled to train" in done.stderr
    shown = call("library", "show", "student").stdout
    assert "tone@1" in next(line for line in shown.splitlines() if line.strip().startswith("teacher"))
    assert f"--teachertone@1--unlabelled{new}" in "".join(shown.split())
    report = tmp_path / "report.html"
    call("report", "student", "--out", str(report))  # its rows are found without the teacher
    assert "student@1" in report.read_text()
    assert "learned from tone@1" in call("retrain", "student", "--base", base, code=1).output
    swept = call(
        "sweep", data, "--teacher", "tone", "--grid", "lr=1e-3,3e-3", "--name", "swept", *short, "--best", "--json"
    )
    assert json.loads(swept.stdout)["version"] == 1
    for words, said in (
        (["--teacher", "tone", "--ensemble", "2"], "cannot be combined with an ensemble"),
        (["--teacher", "tune"], "no adapter 'tune'"),
        (["--unlabelled", new], "needs a teacher"),
    ):
        assert said in call("train", data, "--name", "x", *words, *short, code=1).stderr
