"""How long a run trains by default, and which of its states is kept."""

from __future__ import annotations

import pytest
from training import work

import inlay
from inlay.library import card_text
from inlay.runs.length import settled
from inlay.runs.prepare import Prepared, prepare
from inlay.runs.run import from_config
from inlay.sweeps.trial import Data
from inlay.training.job import Job


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


def prepared(host: inlay.Host, **settings: object) -> Prepared:
    return prepare(work.run(**{"epochs": None, "batch_size": 16, "few_shot": False, **settings}), host)


@pytest.mark.parametrize(
    ("rows", "settings", "epochs", "eval_every"),
    [
        (86, {}, 67, 24),
        (86, {"epochs": 5}, 5, None),
        (86, {"eval_every": 7}, 67, 7),
        (86, {"max_steps": 50}, 9, None),
        (86, {"max_steps": 1000}, 67, 24),
        (400, {}, 16, None),
        (1265, {}, 5, None),
        (100_000, {}, 5, None),
        (1, {}, 400, 20),
    ],
)
def test_a_small_file_gets_a_least_number_of_steps(rows, settings, epochs, eval_every):
    run = settled(inlay.Run(data="x.csv", **settings), rows)
    assert (run.epochs, run.eval_every) == (epochs, eval_every)


def test_the_steps_are_those_of_the_rule_and_a_given_length_wins(host):
    assert Job(0, "a", prepared(host)).total == 400
    assert Job(0, "a", prepared(host, max_steps=9)).total == 9
    assert Job(0, "a", prepared(host, epochs=2)).total == 2
    assert Job(0, "a", prepared(host, epochs=2, max_steps=400)).total == 2


def test_settings_that_are_kept_say_how_long_it_was(host):
    data = prepared(host)
    assert data.run.config()["epochs"] == 400
    assert prepare(inlay.Run(**{**data.run.config(), "data": work.texts()}), host).run == data.run


def test_runs_of_a_sweep_that_share_rows_have_lengths_of_their_own(host):
    trials = Data(host)
    first, second = (trials.prepare(work.run(epochs=None, batch_size=size, few_shot=False)) for size in (4, 16))
    assert second.train is first.train
    assert (first.run.epochs, second.run.epochs) == (100, 400)


def test_cards_of_the_time_before_had_five_epochs():
    card = {"name": "mood", "config": {"data": "mood.csv", "name": "mood"}}
    assert from_config(card["config"]).epochs == 5
    assert "--epochs 5" in card_text.train_command(card)
    assert "--epochs 67" in card_text.train_command({**card, "config": {**card["config"], "epochs": 67}})


def test_among_equal_scores_the_lowest_validation_loss_is_best(host):
    job = Job(0, "a", prepared(host, epochs=9, patience=3))
    found = []
    for step, (accuracy, loss) in enumerate([(0.5, 1.0), (0.5, 0.9), (0.5, 0.95), (0.5, None), (0.4, 0.1)], 1):
        job.step = step
        job.losses.append(1.0)
        found.append(job.judge({"accuracy": accuracy}, loss))
    assert found == [True, True, False, False, False]
    assert job.best is not None
    assert job.best["step"] == 2
    assert job.is_over, "a tie with a lower loss is no reason to go on"


@pytest.mark.parametrize(
    ("keep", "kept", "patience"),
    [("score", [1, 0, 1, 0, 0], False), ("loss", [1, 1, 0, 1, 0], False), ("last", [0] * 5, False)],
)
def test_which_state_is_kept(host, keep, kept, patience):
    job = Job(0, "a", prepared(host, epochs=9, patience=3, choose_by=keep))
    found = []
    for step, (accuracy, loss) in enumerate([(0.5, 1.0), (0.4, 0.9), (0.6, 0.95), (0.1, 0.8), (0.4, 0.8)], 1):
        job.step = step
        job.losses.append(1.0)
        found.append(job.judge({"accuracy": accuracy}, loss))
    assert found == [bool(one) for one in kept]
    assert job.kept["step"] == (5 if keep == "last" else 1 + max(i for i, one in enumerate(kept) if one))
    assert job.is_over == patience


def test_the_last_state_is_the_one_that_is_served(host):
    last, best = (
        inlay.train(host, work.run(epochs=6, lr=1e-2, val_size=4, choose_by=keep)) for keep in ("last", "score")
    )
    assert last.losses == best.losses
    assert last.best_step == len(last.losses) > best.best_step


@pytest.mark.parametrize(
    ("held_out", "keep", "stopping"), [(49, "last", "loss"), (50, "score", "score"), (2000, "score", "score")]
)
def test_few_validation_rows_choose_nothing(held_out, keep, stopping):
    assert settled(inlay.Run(data="x.csv"), 400, held_out).choose_by == keep
    assert settled(inlay.Run(data="x.csv", patience=2), 400, held_out).choose_by == stopping
    assert settled(inlay.Run(data="x.csv", choose_by="loss"), 400, held_out).choose_by == "loss"


def test_the_state_with_the_lowest_loss_is_the_one_that_is_served(host):
    result = inlay.train(host, work.run(epochs=6, lr=1e-2, val_size=4))
    best = max(one["metrics"]["accuracy"] for one in result.history)
    equal = [one for one in result.history if one["metrics"]["accuracy"] == best]
    assert len(equal) > 1, "no tie: the test needs other data"
    assert result.best_step == min(equal, key=lambda one: one["validation_loss"])["step"]
