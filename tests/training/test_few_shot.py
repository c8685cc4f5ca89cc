"""Few rows: contrast, a fitted head, folds; side by side as alone, stopped and resumed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from training import work
from training.test_resume import Stop, with_stops
from training.test_side_by_side import assert_follows

import inlay
from inlay.data.split import folds
from inlay.errors import RunError
from inlay.heads import logistic
from inlay.library.card_facts import training
from inlay.runs import few
from inlay.runs.prepare import Prepared, prepare
from inlay.runs.run import from_config
from inlay.sweeps.trial import Data
from inlay.training.api import train_prepared
from inlay.training.job import Job
from inlay.training.loop import Loop


def run(*given: Any, **settings: Any) -> inlay.Run:
    how = {"few_shot": True, "few_shot_steps": 4, "epochs": None, "val_size": None, "choose_by": None, **settings}
    return work.run(*given, **how)


RUNS = [
    run(work.texts(seed=1), seed=1),
    run(work.texts(18, 2, 3), "adapterbias", seed=2, folds=0, epochs=2),
    run(work.texts(21, 3, 3), "lora:rank=2", seed=3, folds=2, batch_size=6, class_weights=True),
    run(work.texts(seed=4), "finetune:top=1", seed=4, folds=0, val_size=6, lr=1e-3),
    run(work.texts(seed=5), "houlsby:size=6,mixout=0.3", seed=5, folds=2, pretrain_on_text=True, pretrain_epochs=1),
    work.run(work.texts(seed=6), "houlsby:size=4", seed=6),
    work.run(work.entities(12, seed=7), "diffprune:target=0.05", seed=7, folds=3, val_size=None, epochs=1, max_steps=2),
    run(work.texts(seed=8), "adapterbias:l0=0.001", seed=8, folds=3),
]


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


@pytest.fixture(scope="module")
def together() -> list[inlay.Result]:
    return inlay.train(work.host(), RUNS)


@pytest.mark.parametrize("index", range(len(RUNS)))
def test_a_run_among_others_follows_the_run_alone(together, index):
    assert_follows(together[index], inlay.train(work.host(), RUNS[index]))


def test_steps_and_evaluations_are_those_of_all_rounds(together):
    counts = [len(result.losses) for result in together]
    # rounds x (contrast + task): 5 folds and once more; 17 rows to train on, in batches of 4
    assert counts[0] == 6 * 4
    assert counts[1] == 4 + 2 * 4
    assert [one["fold"] for one in together[0].history] == [1, 2, 3, 4, 5]
    assert [one.get("fold") for one in together[1].history] == [None, None]
    assert len(together[3].history) == 1  # of the fitted head
    assert [one["fold"] for one in together[6].history] == [1, 1, 2, 2, 3, 3]  # diffprune tunes again
    assert together[0].best_step == 4
    assert together[0].adapter.about["folds"] == 5
    assert "folds" not in together[1].adapter.about


@pytest.mark.parametrize("stops", [["step"] * 3, ["eval"], ["stage"] * 2, ["eval", "step"]])
def test_stopped_and_resumed_it_is_the_same(tmp_path, together, stops):
    found = with_stops(RUNS, tmp_path / "at", [Stop(2 + i, event) for i, event in enumerate(stops)])
    for one, other in zip(found, together, strict=True):
        work.assert_identical(one, other)


def test_stopped_before_the_fitted_head_is_evaluated(tmp_path, monkeypatch):
    """A stage without steps may be what a checkpoint finds: nothing is left of it but its end."""
    one = run(work.texts(seed=4), seed=4, folds=0)
    expected = inlay.train(work.host(), one)
    real, seen = Loop.tell, []

    def tell(self: Loop, event: str, job: Any, **more: Any) -> None:
        real(self, event, job, **more)
        if event == "stage" and not seen:
            seen.append(event)
            self.interrupt.pending = True

    monkeypatch.setattr(Loop, "tell", tell)
    how: Any = {"checkpoint": tmp_path / "at", "resume": True}
    with pytest.raises(KeyboardInterrupt):
        inlay.train(work.host(), one, **how)
    work.assert_identical(inlay.train(work.host(), one, **how), expected)


# --- the head -----------------------------------------------------------------------------------------------------


def test_the_head_is_the_regression_on_the_states_of_the_trained_adapter():
    host = work.host()
    one = run(work.texts(seed=4), seed=4, folds=0, pool="mean")
    data = prepare(one, host)
    result = train_prepared(host, {0: data})[0]
    host.load(result.adapter, "it")
    hidden = [host.hidden(host.batch([e.text]), ["it"]).rows()[0].mean(0) for e in data.train.examples]
    expected = logistic.fit(torch.stack(hidden), [row.target for row in data.train.rows], 2)
    for name, value in expected.items():
        torch.testing.assert_close(result.adapter.tensors[f"head.{name}"], value, atol=1e-3, rtol=1e-3)


@pytest.mark.full
def test_it_learns():
    found = inlay.train(
        work.host(), run(work.texts(96), "finetune", few_shot_steps=60, folds=2, lr=1e-2, batch_size=16)
    )
    assert sum(found.losses[-5:]) / 5 < sum(found.losses[:5]) / 5 - 0.2
    assert found.value > 0.6


def test_training_may_go_on_after_the_head(together):
    assert together[1].losses[4] < 1.0  # of the fitted head; a random one has log 3
    assert together[1].config["epochs"] == 2


# --- folds --------------------------------------------------------------------------------------------------------


def flipped(data: Prepared, fold: int) -> Prepared:
    """With other labels in the rows that a fold is scored on."""
    rows = [replace(row, target=1 - row.target) if row.example in data.folds[fold] else row for row in data.train.rows]
    return replace(data, train=replace(data.train, rows=rows), validation=replace(data.validation, rows=rows))


def test_a_fold_never_sees_the_rows_it_is_scored_on(host):
    data = prepare(run(work.texts(20), folds=4), host)
    held_out = []
    for given in (data, flipped(data, 1)):
        loop = Loop(work.host(), [Job(0, "a", given)])
        loop.run()
        held_out.append(loop.jobs[0].held_out)
    same = [one == other for one, other in zip(*held_out, strict=True)]
    assert same == [False, True, False, False]  # the others learn from them


def test_the_score_is_that_of_all_rows_by_the_folds_that_did_not_see_them(host):
    data = prepare(run(work.texts(22), folds=3), host)
    loop = Loop(work.host(), [Job(0, "a", data)])
    loop.run()
    job, right = loop.jobs[0], 0
    for fold, said in zip(data.folds, job.held_out, strict=True):
        for example, logits in zip(fold, said, strict=True):
            right += max(range(2), key=logits.__getitem__) == data.train.rows[example].target
    assert job.result is not None
    assert job.result["metrics"]["validation"]["accuracy"] == pytest.approx(right / 22)


def test_folds_are_even_in_classes_and_keep_groups_together():
    strata = ["a"] * 11 + ["b"] * 5
    groups = [str(i // 2) for i in range(16)]
    found = folds(16, 4, 3, strata, groups)
    assert sorted(i for part in found for i in part) == list(range(16))
    assert all(sum(groups[i] == g for i in part) in (0, groups.count(g)) for part in found for g in groups)
    plain = folds(16, 4, 3, strata)
    assert sorted(len(part) for part in plain) == [4, 4, 4, 4] or max(map(len, plain)) - min(map(len, plain)) <= 1
    assert {sum(strata[i] == "b" for i in part) for part in plain} == {1, 2}
    assert plain == folds(16, 4, 3, strata) != folds(16, 4, 4, strata)
    assert len(folds(3, 5, 0, None)) == 3
    with pytest.raises(RunError, match="belong together"):
        folds(3, 2, 0, None, ["x"] * 3)


# --- when ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "settings", "expected"),
    [
        (work.texts(40), {}, (True, 5, 0)),
        (work.texts(few.FEW_SHOT_BELOW - 1), {}, (True, 5, 0)),
        (work.texts(few.FEW_SHOT_BELOW + 40), {}, (False, 0, 29)),
        (work.texts(40), {"few_shot": False}, (False, 0, 100)),
        (work.texts(40), {"epochs": 3}, (False, 0, 3)),
        (work.texts(40), {"max_steps": 3}, (False, 0, 1)),
        (work.texts(40), {"head": "mlp"}, (False, 0, 134)),
        (work.texts(40), {"val_size": 4}, (True, 0, 0)),
        (work.texts(40), {"folds": 0}, (True, 0, 0)),
        (work.texts(40), {"few_shot": True, "epochs": 3}, (True, 5, 3)),
        (work.texts(400), {"few_shot": True}, (True, 0, 0)),
        (work.texts(400), {"train_size": 40}, (True, 0, 0)),
        (work.texts(100), {"long": "windows", "max_length": 4}, (True, 5, 0)),  # a text in windows is one row
        (work.topics(40), {"task": "multilabel"}, (False, 0, 45)),
        (work.texts(40), {"method": "diffprune"}, (False, 0, 45)),
    ],
)
def test_when_it_begins_by_itself(host, rows, settings, expected):
    how = {"batch_size": 4, **settings}
    found = prepare(inlay.Run(data=rows, **how), host).run
    assert (found.few_shot, found.folds) == expected[:2]
    assert bool(found.epochs) == bool(expected[2])
    again = prepare(from_config({**found.written(), "data": rows}), host).run
    assert again.written() == found.written()


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        (work.ratings(), {"task": "regression", "few_shot": True}, "is for classification, not for regression"),
        (work.texts(), {"few_shot": True, "head": "mlp"}, "fits a linear head, not mlp"),
        (work.texts(), {"few_shot": True, "method": "diffprune"}, "cannot be combined with diffprune"),
        (work.texts(), {"folds": 4, "val_size": 4}, "leave out one of the two"),
        (work.texts(), {"folds": 4, "train_size": 4}, "cannot be combined with train_size"),
        (work.texts(), {"folds": 25}, "more than there are rows: 24"),
        (work.texts(), {"task": "mlm", "folds": 3}, "not for mlm"),
        (work.texts(), {"epochs": 0}, "is for few-shot training"),
    ],
)
def test_what_cannot_be_is_said(host, rows, settings, said):
    with pytest.raises(RunError, match=said):
        prepare(inlay.Run(data=rows, **settings), host)


def test_one_fold_is_none():
    with pytest.raises(RunError, match="expected at least 2, or 0 for none"):
        inlay.Run(data="x", folds=1)


def test_runs_of_a_sweep_that_split_rows_in_other_ways_do_not_share_them(host):
    trials, rows = Data(host), work.texts(40)
    few_shot, usual, other = (
        trials.prepare(inlay.Run(data=rows, epochs=e, lr=lr)) for e, lr in ((None, None), (2, None), (None, 1e-3))
    )
    assert few_shot.folds
    assert not usual.folds
    assert other.train is few_shot.train


def test_a_card_says_how_it_was_trained(together, tmp_path):
    library = inlay.Library(tmp_path)
    library.put(replace(together[0].adapter, name="it"))
    card = library.find("it").card
    assert card["folds"] == 5
    assert card["config"]["few_shot"] is True
    assert card["config"]["folds"] == 5
    assert dict(training(card))["kept"] == "after 4 steps"


def test_settings_that_do_nothing_are_named(host):
    def said(**settings: Any) -> list[str]:
        return prepare(work.run(**settings), host).warnings

    why = "does nothing: this run is not few-shot (--few-shot)"
    assert said(few_shot_steps=9) == [f"few_shot_steps (--few-shot-steps) {why}"]
    assert said(few_shot=False, few_shot_temperature=0.5) == [f"few_shot_temperature (--few-shot-temperature) {why}"]
    assert said(few_shot=True, few_shot_steps=9, few_shot_temperature=0.5) == []
    (warning,) = said(pretrain_lr=1e-3)
    assert warning == "pretrain_lr (--pretrain-lr) does nothing: nothing is pretrained (--pretrain-on-text)"
    assert said(pretrain_on_text=True, pretrain_lr=1e-3, pretrain_epochs=1) == []
    assert said() == []
