"""`--ensemble N`: members that leave out different rows, measured on what they have not seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from training.test_resume import Stop
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.engine.evaluate import answers_to
from inlay.errors import RunError
from inlay.runs.members import members_of
from inlay.runs.prepare import prepare


def run(**more: Any) -> inlay.Run:
    return inlay.Run(data=work.texts(60), name="tone", method="houlsby:size=4", max_steps=6, few_shot=False, **more)


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


def test_every_row_is_left_out_by_one_member(host: inlay.Host):
    members = members_of(run(seed=3), 4, "tone")
    assert [(one.name, one.seed, one.fold) for one in members] == [(f"tone-{i}", 2 + i, f"{i}/4") for i in range(1, 5)]
    prepared = [prepare(one, host) for one in members]
    every = sorted(e.place or e.text for e in [*prepared[0].train.examples, *prepared[0].validation.examples])
    assert sorted(e.place or e.text for data in prepared for e in data.validation.examples) == every
    for data in prepared:
        seen, left_out = ({e.text for e in split.examples} for split in (data.train, data.validation))
        assert not seen & left_out
    own = prepare(run(seed=9, fold="2/4"), host)  # another seed has the same parts
    assert [e.text for e in own.validation.examples] == [e.text for e in prepared[1].validation.examples]


def test_an_ensemble_is_trained_and_measured_on_what_it_has_not_seen(tmp_path: Path):
    host, library = work.host(), inlay.Library(tmp_path / "library")
    result = inlay.train(host, run(test=None), ensemble=3, library=library, progress=False)
    made = result.adapter
    assert isinstance(made, inlay.Ensemble)
    assert [member.about["fold"] for member in made.members] == ["1/3", "2/3", "3/3"]
    assert len({member.seed for member in made.members}) == 3
    right, rows = 0, 0
    for i, member in enumerate(made.members, 1):
        data = prepare(run(fold=f"{i}/3"), host)
        host.load(member, "one")
        answers, _ = answers_to(host, "one", data.validation.examples)
        host.unload("one")
        right += sum(a["label"] == e.target for a, e in zip(answers, data.validation.examples, strict=True))
        rows += len(answers)
    assert rows == 60
    assert result.metrics["validation"]["accuracy"] == pytest.approx(right / rows)
    assert host.names == ["tone"]
    assert host.predict([("tone", "a fine film")])[0]["uncertainty"] >= 0
    (entry,) = library.list()
    assert (entry.ref, len(entry.members), entry.card["ensemble"]["members"]) == ("tone@1", 3, 3)
    assert entry.card["parameters"]["adapter"] == 3 * result.parameters["adapter"] // 3
    assert library.verify() == []
    members = [inlay.train(work.host(), one, progress=False).single for one in members_of(run(), 3, "tone")]
    for alone, together in zip(members, made.members, strict=True):  # trained side by side, as if alone
        for name, tensor in alone.tensors.items():
            tiny.assert_close(together.tensors[name], tensor)


@pytest.mark.full
def test_stopped_and_resumed_it_is_the_same(tmp_path: Path):
    whole = inlay.train(work.host(), run(), ensemble=2, progress=False)
    how: Any = {"ensemble": 2, "checkpoint": tmp_path / "at", "resume": True, "save_every": 1e9, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        inlay.train(work.host(), run(), callbacks=[Stop(5)], **how)
    found = inlay.train(work.host(), run(), **how)
    work.assert_identical(found, whole)


def test_validation_rows_of_its_own_measure_the_whole(tmp_path: Path):
    val = tmp_path / "val.jsonl"
    val.write_text("".join(json.dumps(row) + "\n" for row in work.texts(20)), encoding="utf-8")
    host = work.host()
    result = inlay.train(host, run(val=str(val)), ensemble=2, progress=False)
    examples = prepare(run(val=str(val)), host).validation.examples
    answers, _ = answers_to(host, "tone", examples)
    right = sum(a["label"] == e.target for a, e in zip(answers, examples, strict=True))
    assert result.metrics["validation"]["accuracy"] == pytest.approx(right / 20)


def test_the_majority_is_that_of_all_rows_that_count(tmp_path: Path):
    data = tmp_path / "tone.jsonl"
    rows = [*work.texts(40), *({"text": f"a film {i}", "label": "pos"} for i in range(7))]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    base, library = tiny.save_text_model(tmp_path / "base"), str(tmp_path / "library")
    words = ["train", str(data), "--ensemble", "3", "--max-steps", "2", "--base", base, "--library", library]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "100"})
    (accuracy,) = (line.split() for line in done.stdout.splitlines() if line.startswith("accuracy"))
    assert float(accuracy[-1]) == pytest.approx(27 / 47, abs=1e-4)
    again = CliRunner().invoke(app, [*words, "--lr", "0.1", "--json"])
    (first, second) = (inlay.Library(library).find(f"tone@{version}").card for version in (1, 2))
    values = {"value": first["metrics"]["validation"]["accuracy"], "now": second["metrics"]["validation"]["accuracy"]}
    assert json.loads(again.stdout)["before"] == {"version": 1, "split": "validation", **values}


def test_what_cannot_be_an_ensemble(host: inlay.Host):
    for wrong, said in (
        ({"ensemble": 1}, "expected 2 or more"),
        ({"ensemble": 1000}, r"the rows given: \d+ different texts are too few for 1000 parts \(--fold, --ensemble\)"),
    ):
        with pytest.raises(RunError, match=said):
            inlay.train(host, run(), progress=False, **wrong)
    for more in ({"fold": "1/2"}, {"folds": 3}, {"val_size": 0.1}, {"train_size": 40}):
        with pytest.raises(RunError, match=f"{next(iter(more))} .* cannot be combined with an ensemble"):
            inlay.train(host, run(**more), ensemble=2, progress=False)
    for fold, said in (("3/2", "expected K/N"), ("1/1", "expected K/N")):
        with pytest.raises(RunError, match=said):
            prepare(run(fold=fold), host)
    with pytest.raises(RunError, match="fold='half' is not valid: expected K/N with K up to N, and N at least 2"):
        run(fold="half")
    with pytest.raises(RunError, match="train_size"):
        prepare(run(fold="1/2", train_size=10), host)
    with pytest.raises(RunError, match="ensemble is for one run"):
        inlay.train(host, [run()], ensemble=2, progress=False)  # type: ignore[call-overload]
    told: list[Any] = []
    with pytest.raises(RunError, match="mlm cannot be answered by an ensemble"):
        inlay.train(host, run(task="mlm"), ensemble=2, progress=False, callbacks=[told.append])
    assert told == []  # it is said before anything is trained
    assert host.names == []


def test_the_command(tmp_path: Path):
    data = tmp_path / "tone.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in work.texts(40)), encoding="utf-8")
    base, library = tiny.save_text_model(tmp_path / "base"), str(tmp_path / "library")
    words = ["train", str(data), "--ensemble", "2", "--max-steps", "3", "--no-few-shot", "--base", base]
    done = CliRunner().invoke(app, [*words, "--library", library, "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["name"], document["version"], document["members"]) == ("tone", 1, 2)
    shown = CliRunner().invoke(app, ["library", "show", "tone", "--library", library], env={"COLUMNS": "200"}).stdout
    assert "--ensemble 2" in shown
    assert "None" not in shown
    assert "tone@1: an ensemble of 2" in done.stderr
    done = CliRunner().invoke(app, ["train", "--manifest", "x.toml", "--ensemble", "2"])
    assert done.exit_code == 2, done.output
