"""Which setting wins: clear winners, noise, what is near to the defaults, and where errors come from."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
import tiny
from training import work

import inlay
from inlay.engine.evaluate import kept_without, replicates
from inlay.sweeps.grid import read_grid
from inlay.sweeps.store import Row
from inlay.sweeps.table import Entry, rank
from inlay.sweeps.winner import Verdict, decide, distances, validation_loss
from inlay.tasks import Example, parse

PARTS = 20


def outcomes(rows: int, share: float, seed: int, like: list[bool] | None = None, apart: float = 0.0) -> list[bool]:
    """Which rows a run gets right; with `like`, all as another but for a share of them."""
    draw = random.Random(seed)
    if like is None:
        return [draw.random() < share for _ in range(rows)]
    return [right if draw.random() >= apart else draw.random() < share for right in like]


def row(setting: dict[str, Any], seed: int, right: list[bool] | float, **more: Any) -> Row:
    kept = [[right[i] for i in own] for own in kept_without(len(right), PARTS)] if isinstance(right, list) else []
    value = statistics.fmean(right) if isinstance(right, list) else right
    made: dict[str, Any] = {
        "id": f"{setting}-{seed}",
        "position": 0,
        "label": f"{setting} {seed}",
        "setting": setting,
        "seed": seed,
        "config": {},
        "state": "done",
        "metric": "accuracy",
        "value": value,
        "replicates": [statistics.fmean(one) for one in kept],
        "parameters": {"adapter": 100},
    }
    return Row(**{**made, **more})


def setting(lr: float, **more: Any) -> dict[str, Any]:
    return {"method": "houlsby", "lr": lr, **more}


def verdict(rows: list[Row], seeds: int = 1, grid: Any = None, metric: str = "accuracy") -> Verdict:
    space, problems = read_grid({"data": "x"}, grid or {"lr": [3e-4, 1e-3, 3e-3]})
    assert not problems
    ranking = rank(rows, metric, "careful", seeds)
    return decide(ranking, metric, distances(space, ranking), space.keys)


def test_a_clear_winner_wins():
    usual = outcomes(400, 0.6, 0)
    better = [right or i % 4 == 0 for i, right in enumerate(usual)]
    found = verdict([row(setting(1e-3), 0, usual), row(setting(3e-3), 0, better)])
    assert found.entry.setting["lr"] == 3e-3
    assert found.gain is not None
    assert found.error is not None
    assert found.gain > 3 * found.error
    assert "lr=0.003 is best by 0.0" in found.why
    assert "more than one standard error, so it wins over lr=0.001" in found.why


def test_within_noise_the_default_stays():
    usual = outcomes(100, 0.7, 1)
    lucky = [*usual]
    for i, right in [(usual.index(False), True), (usual.index(True), False), (usual.index(False, 20), True)]:
        lucky[i] = right  # one row better, three rows apart
    found = verdict([row(setting(1e-3), 0, usual), row(setting(3e-3), 0, lucky)])
    assert found.entry.setting["lr"] == 1e-3
    assert found.gain == pytest.approx(0.01)
    assert "lr=0.003 is best by 0.0100 ± " in found.why
    assert "within one standard error, so lr=0.001, the default, wins" in found.why


@pytest.mark.parametrize("right", [outcomes(100, 0.7, 1), 0.7], ids=["parts", "no parts"])
def test_a_tie_goes_to_the_default_and_is_called_one(right: list[bool] | float):
    found = verdict([row(setting(3e-3), 0, right), row(setting(1e-3), 0, right)])
    assert found.entry.setting["lr"] == 1e-3
    assert found.why == "lr=0.003 and lr=0.001 are equally good, so lr=0.001, the default, wins"


def test_the_nearest_of_those_within_the_error_wins():
    base = [i % 10 < 7 for i in range(200)]
    near, far, poor = ([not right if i in changed else right for i, right in enumerate(base)] for changed in CHANGES)
    rows = [row(setting(lr), 0, right) for lr, right in ((2e-3, near), (1e-2, far), (3e-2, base), (1e-3, poor))]
    found = verdict(rows, grid={"lr": [1e-3, 2e-3, 1e-2, 3e-2]})
    assert found.entry.setting["lr"] == 2e-3
    assert found.why.startswith("lr=0.01 is best by 0.0")
    assert found.why.endswith("so lr=0.002, which is nearer to the defaults, wins")


CHANGES = ({7, 17, 10, 20, 30}, {27, 37, 40}, set(range(40, 47)) | set(range(60, 67)))
"""Rows that are right instead of wrong, or the other way round: somewhat worse, somewhat better, much worse."""


def test_of_those_within_the_error_the_one_with_the_lowest_loss_wins():
    base = [i % 10 < 7 for i in range(200)]
    near, far, poor = ([not right if i in changed else right for i, right in enumerate(base)] for changed in CHANGES)
    grid = {"lr": [1e-3, 2e-3, 1e-2, 3e-2]}

    def rows(**losses: float) -> list[Row]:
        rights = {"near": (2e-3, near), "far": (1e-2, far), "base": (3e-2, base), "poor": (1e-3, poor)}
        return [row(setting(lr), 0, right, loss=losses.get(name)) for name, (lr, right) in rights.items()]

    found = verdict(rows(near=0.5, far=0.6, base=0.4, poor=0.1), grid=grid)
    assert found.entry.setting["lr"] == 3e-2  # not `poor`, whose score is clearly worse
    assert found.why.startswith("lr=0.01 is best by 0.0")
    lowest = "lr=0.03 has the lowest validation loss (0.4000 against 0.6000), so it wins"
    assert found.why.endswith(f"within one standard error, and {lowest}")
    found = verdict(rows(near=0.5, far=0.3, base=0.4, poor=0.1), grid=grid)
    assert found.entry.setting["lr"] == 1e-2
    assert " over lr=0.03, which is within one standard error, " in found.why
    assert found.why.endswith("and lr=0.01 has the lowest validation loss (0.3000 against 0.4000), so it wins")
    assert verdict(rows(near=0.5, far=0.6, poor=0.1), grid=grid).entry.setting["lr"] == 2e-3  # as if none were known


def test_where_scores_are_equal_the_lowest_loss_wins_in_its_best_seed():
    rows = [row(setting(1e-3), s, 0.7, loss=loss) for s, loss in enumerate((0.5, 0.6))]
    rows += [row(setting(3e-3), s, 0.7, loss=loss) for s, loss in enumerate((0.7, 0.2))]
    found = verdict(rows, seeds=2)
    assert (found.entry.setting["lr"], found.run.seed) == (3e-3, 1)
    assert found.why.startswith("lr=0.001 and lr=0.003 are equally good, and lr=0.003 has the lowest validation loss")


def test_where_losses_are_equal_too_the_default_wins():
    rows = [row(setting(lr), 0, 0.7, loss=0.5 + lr / 1e5) for lr in (3e-3, 1e-3)]
    found = verdict(rows)
    assert found.entry.setting["lr"] == 1e-3
    equal = "their validation losses are equal, so lr=0.001, which is nearer to the defaults, wins"
    assert found.why == f"lr=0.003 and lr=0.001 are equally good, and {equal}"
    lost = [row(setting(lr), 0, 0.7, loss=math.inf) for lr in (3e-3, 1e-3)]
    assert verdict(lost).why.endswith("so lr=0.001, the default, wins")


def test_where_nothing_tells_settings_apart_none_is_called_better():
    rows = [row(setting(1e-3, patience=n), 0, 0.7, loss=0.5, position=n) for n in (2, 1)]
    grid = {"lr": [1e-3], "patience": [1, 2]}
    found = verdict(rows, grid=grid)
    equal = "their validation losses are equal, so patience=1, which comes first, wins"
    assert found.why == f"patience=1 and patience=2 are equally good, and {equal}"
    worse = [i % 10 < 7 for i in range(200)]
    better = [not right if i in {7, 17, 10} else right for i, right in enumerate(worse)]
    rows = [row(setting(1e-3, patience=n), 0, right, loss=0.5) for n, right in ((1, worse), (2, better))]
    assert verdict(rows, grid=grid).why.endswith("so patience=2, whose score is better, wins")


def test_a_score_that_is_clearly_better_wins_whatever_the_loss():
    usual = outcomes(400, 0.6, 0)
    better = [right or i % 4 == 0 for i, right in enumerate(usual)]
    found = verdict([row(setting(1e-3), 0, usual, loss=0.1), row(setting(3e-3), 0, better, loss=0.9)])
    assert found.entry.setting["lr"] == 3e-3


def test_parts_are_of_no_kind_and_have_every_row_once():
    kept = kept_without(200, PARTS)
    assert sorted(i for own in kept for i in set(range(200)) - set(own)) == list(range(200))
    assert {len(own) for own in kept} == {190}
    assert all(len({i % 10 for i in set(range(200)) - set(own)}) > 2 for own in kept)


def test_the_error_is_that_of_the_paired_difference():
    """Of a share, the jackknife over single rows is the usual standard error of a mean of differences."""
    one, other = outcomes(PARTS, 0.6, 1), outcomes(PARTS, 0.5, 2)
    found = verdict([row(setting(1e-3), 0, other), row(setting(3e-3), 0, [*one[:-1], True])])
    apart = [int(a) - int(b) for a, b in zip([*one[:-1], True], other, strict=True)]
    assert found.error == pytest.approx(statistics.stdev(apart) / math.sqrt(PARTS))


def test_a_setting_that_fails_with_one_seed_is_not_excused_by_its_spread():
    draw, rows = random.Random(3), []
    for lr in (3e-4, 1e-3, 3e-3):
        for seed in range(3):
            value = 0.5 if (lr, seed) == (1e-3, 2) else 0.8 + draw.uniform(-0.005, 0.005)
            rows.append(row(setting(lr), seed, value))
    found = verdict(rows, seeds=3)
    assert found.entry.setting["lr"] != 1e-3


def test_seeds_tell_the_error_where_rows_do_not():
    rows = [row(setting(1e-3), s, v) for s, v in enumerate((0.80, 0.70))]
    rows += [row(setting(3e-3), s, v) for s, v in enumerate((0.78, 0.76))]
    found = verdict(rows, seeds=2)
    assert found.error == pytest.approx(statistics.stdev([-0.02, 0.06]) / math.sqrt(2))
    assert found.entry.setting["lr"] == 1e-3
    alone = verdict([row(setting(1e-3), 0, 0.7), row(setting(3e-3), 0, 0.71)])
    assert alone.entry.setting["lr"] == 3e-3
    assert "one run says nothing about the error" in alone.why


@pytest.mark.parametrize(("high", "low"), [(2 / 3, 0.5), (7 / 9, 5 / 9), (0.9, 0.8), (0.84, 0.82)])
def test_a_gain_in_one_of_two_seeds_is_within_the_error_that_it_makes_itself(high: float, low: float):
    rows = [row(setting(1e-3), s, low) for s in range(2)]  # both are half of it, up to rounding
    rows += [row(setting(3e-3), s, v) for s, v in enumerate((high, low))]
    found = verdict(rows, seeds=2)
    assert found.gain == pytest.approx(found.error)
    assert found.entry.setting["lr"] == 1e-3


def test_a_lower_loss_is_better_where_it_is():
    rows = [row(setting(1e-3), s, v) for s, v in enumerate((0.80, 0.81))]
    rows += [row(setting(3e-3), s, v) for s, v in enumerate((0.50, 0.51))]
    assert verdict(rows, seeds=2, metric="rmse").entry.setting["lr"] == 3e-3
    assert verdict(rows, seeds=2).entry.setting["lr"] == 1e-3


def test_a_setting_with_a_missing_seed_cannot_win():
    rows = [row(setting(3e-3), s, v) for s, v in enumerate((0.80, 0.60))] + [row(setting(1e-3), 0, 0.8)]
    assert verdict(rows, seeds=2).entry.setting["lr"] == 3e-3


def test_the_run_with_the_lowest_validation_loss_is_taken():
    def seen(*losses: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"metrics": {"accuracy": value}, "validation_loss": loss} for value, loss in losses]

    rows = [
        row(setting(1e-3), 0, 0.8, history=seen((0.7, 0.1), (0.8, 0.5))),
        row(setting(1e-3), 1, 0.7, history=seen((0.7, 0.4))),
    ]
    found = verdict(rows, seeds=2)
    assert found.run.seed == 1
    assert found.why == ""
    assert verdict([rows[0], row(setting(1e-3), 1, 0.7)], seeds=2).run.seed == 0  # nothing is known of one


def test_how_far_settings_are_from_the_defaults():
    grid = {"method": "houlsby,lora", "size": [16, 64], "lr": [1e-3, 1e-2], "warmup": [0.1, 0.2]}
    space, problems = read_grid({"data": "x"}, grid)
    assert not problems
    entries = [
        Entry(i, one, (row(one, 0, 0.5),), 1, 0.5, None, None, None, 0.0, 1) for i, one in enumerate(space.settings())
    ]
    found = list(distances(space, entries).values())
    of = {tuple(entry.setting.values()): d for entry, d in zip(entries, found, strict=True)}
    assert of["houlsby", 64, 1e-3, 0.1] == 0
    assert of["houlsby", 16, 1e-3, 0.1] == pytest.approx(math.log(4))
    assert of["houlsby", 64, 1e-2, 0.2] == pytest.approx(math.log(10) + math.log(2))
    assert of["lora", 1e-3, 0.1] == 1
    few = distances(space, entries, few_shot=True)
    assert min(few.values()) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("spec", "metric", "targets", "answers"),
    [
        ("classification", "f1_macro", "abab" * 6, [{"label": c} for c in "aabb" * 6]),
        ("regression", "pearson", list(range(24)), [{"value": (7 * i) % 24} for i in range(24)]),
    ],
)
def test_replicates_are_scores_without_a_part(
    spec: str, metric: str, targets: Any, answers: Any, monkeypatch: pytest.MonkeyPatch
):
    host, task = tiny.text_host(), parse(spec)
    examples = [Example(str(i), target=target) for i, target in enumerate(targets)]
    monkeypatch.setattr(type(task), "answers", lambda *_: answers)
    monkeypatch.setattr(host, "labels", lambda name: ("a", "b"), raising=False)
    found = replicates(host, "x", examples, [], [], task, metric)
    assert len(found) == PARTS
    for kept, value in zip(kept_without(24, PARTS), found, strict=True):
        wanted = task.score([examples[i] for i in kept], [answers[i] for i in kept], ("a", "b"))[metric]
        assert value == wanted


def test_runs_of_a_sweep_note_their_replicates_and_single_runs_do_not():
    run = inlay.Run(data=work.texts(30), batch_size=4, max_steps=2, val_size=9)
    found = inlay.sweep(work.host(), run, {"lr": [1e-3, 1e-2]})
    for one in found.rows:
        assert one.loss is not None
        assert len(one.replicates) == 9
        assert statistics.fmean(one.replicates) == pytest.approx(one.value)  # a share, of parts of one row each
    assert found.verdict is not None
    assert found.best is found.verdict.entry
    assert inlay.sweep(work.host(), run, {"lr": [1e-3, 1e-2]}, select="mean").verdict is None


def evaluated(loss: float, score: float, **more: Any) -> dict[str, Any]:
    return {"stage": "task", "metrics": {"accuracy": score}, "validation_loss": loss, **more}


def test_the_loss_of_a_run_is_that_of_the_state_it_kept():
    history = [evaluated(0.2, 0.5), evaluated(0.9, 0.75), evaluated(0.4, 0.5)]
    kept = {by: row(setting(1e-3), 0, 0.5, history=history, config={"choose_by": by}) for by in ("last", "loss")}
    assert {by: validation_loss(one) for by, one in kept.items()} == {"last": 0.4, "loss": 0.2}
    assert validation_loss(row(setting(1e-3), 0, 0.75, history=history)) == 0.9


def test_the_loss_of_folds_is_the_mean_of_what_each_ended_with():
    history = [evaluated(0.1, 0.5, fold=1), evaluated(0.6, 0.5, fold=1), evaluated(0.2, 0.5, fold=2)]
    assert validation_loss(row(setting(1e-3), 0, 0.5, history=history, config={"choose_by": "last"})) == pytest.approx(
        0.4
    )


def test_a_setting_that_is_turned_off_is_not_the_default():
    space, _ = read_grid({"data": "x"}, {"clip": [None, 1.0], "patience": [None, 3]})
    found = {
        (off, patience): next(iter(distances(space, rank([row(one, 0, 0.5)], "accuracy", "careful", 1)).values()))
        for off in (None, 1.0)
        for patience in (None, 3)
        if (one := {"method": "houlsby", "clip": off, "patience": patience})
    }
    assert found == {(None, None): 1.0, (None, 3): 2.0, (1.0, None): 0.0, (1.0, 3): 1.0}


def test_among_settings_as_near_to_the_defaults_the_smaller_one_wins_and_the_output_says_so():
    grid = {"method": ["bitfit", "lora"]}
    draw = random.Random(0)
    worse, better = (draw.sample([i < right for i in range(400)], 400) for right in (240, 242))
    small = row({"method": "bitfit"}, 0, worse, parameters={"adapter": 10})
    large = row({"method": "lora"}, 0, better, parameters={"adapter": 1000})
    found = verdict([small, large], grid=grid)
    assert found.entry.setting["method"] == "bitfit"
    assert "so bitfit, which has fewer parameters, wins" in found.why


def test_the_best_is_not_called_nearest_where_all_are_as_near():
    rows = [row({"method": "houlsby", "epochs": n}, 0, 0.5 + n / 100) for n in (3, 6)]
    found = verdict(rows, grid={"epochs": [3, 6]})
    assert found.entry.setting["epochs"] == 6
    assert found.why == "epochs=6 is best"
