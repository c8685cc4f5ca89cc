"""`--ensemble N` of a sweep: the greedy choice, the rows it is made on, what is kept, and going on."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training import work

import inlay
from inlay.engine.evaluate import answers_to
from inlay.errors import RunError
from inlay.sweeps import ensemble
from inlay.sweeps.greedy import judge_of, pick
from inlay.sweeps.grid import read_grid
from inlay.sweeps.trial import Trials
from inlay.tasks import Answer, Example, parse

GRID = {"lr": [1e-3, 3e-2], "size": [4, 8]}


def run(data: Any = None, **settings: Any) -> inlay.Run:
    return inlay.Run(**{"data": data or work.texts(60), "batch_size": 8, "max_steps": 12, "val_size": 24, **settings})


def counts_of(found: inlay.Sweep) -> dict[str, int]:
    assert found.ensemble is not None
    return {row.label: count for row, count in found.ensemble.members}


# --- the choice ---------------------------------------------------------------------------------------------------


def plain_greedy(chances: list[list[float]], picks: int, most: int = 1000) -> list[int]:
    """The same with nothing but loops: [candidates][rows], how likely each finds what is right."""
    counts = [0] * len(chances)
    for _ in range(picks):
        losses = []
        for extra in range(len(chances)):
            own = [count + (i == extra) for i, count in enumerate(counts)]
            rows = zip(*chances, strict=True)
            means = [sum(c * p for c, p in zip(own, row, strict=True)) / sum(own) for row in rows]
            losses.append(-sum(math.log(p) for p in means) / len(means) if counts[extra] < most else math.inf)
        counts[losses.index(min(losses))] += 1
    return counts


def classified(seed: int, candidates: int, rows: int) -> tuple[list[Example], list[list[Answer]], list[list[float]]]:
    draw, labels = random.Random(seed), "abc"
    examples = [Example(str(i), target=draw.choice(labels)) for i in range(rows)]
    answers: list[list[Answer]] = []
    for _ in range(candidates):
        own: list[Answer] = []
        for example in examples:
            raw = {label: draw.random() + 0.05 + (label == example.target) for label in labels}
            scores = {label: p / sum(raw.values()) for label, p in raw.items()}
            own.append({"label": max(scores, key=scores.__getitem__), "scores": scores})
        answers.append(own)
    chances = [[a["scores"][e.target] for e, a in zip(examples, own, strict=True)] for own in answers]
    return examples, answers, chances


@pytest.mark.parametrize("seed", range(5))
def test_the_greedy_choice_is_that_of_a_plain_loop(seed: int):
    examples, answers, chances = classified(seed, 7, 30)
    judge, by = judge_of(parse("classification"), examples, answers, "abc", "accuracy")
    assert by == "loss"
    found = pick(7, 6, judge)
    assert found == plain_greedy(chances, 6)
    assert sum(found) == 6
    assert pick(7, 1, judge) == plain_greedy(chances, 1), "it begins with the best"
    assert pick(7, 6, judge, most=2) == plain_greedy(chances, 6, 2)
    assert sorted(pick(7, 6, judge, most=1)) == [0, 1, 1, 1, 1, 1, 1]
    assert sum(pick(7, 9, judge, most=1)) == 7, "there are no more"


def test_what_judges_is_the_loss_of_the_answers_together():
    draw, labels = random.Random(1), ("a", "b", "c")
    examples, answers, _ = classified(2, 3, 10)
    sets = [Example(e.text, target=tuple(x for x in labels if draw.random() < 0.5)) for e in examples]
    numbers = [Example(e.text, target=draw.random()) for e in examples]
    values: list[list[Answer]] = [[{"value": draw.random()} for _ in examples] for _ in range(3)]
    cases = (("classification", examples, answers), ("multilabel", sets, answers), ("regression", numbers, values))
    for spec, asked, said in cases:
        task = parse(spec)
        judge, _ = judge_of(task, asked, said, labels, "accuracy")
        (found,) = judge(np.array([[2, 0, 1]]))
        wanted = []
        for example, one, other in zip(asked, said[0], said[2], strict=True):
            both = task.together([one, other], [2, 1], labels)
            if spec == "regression":
                wanted.append((both["value"] - example.target) ** 2)
            elif spec == "classification":
                wanted.append(-math.log(both["scores"][example.target]))
            else:
                right = [p if name in example.target else 1 - p for name, p in both["scores"].items()]
                wanted.append(-sum(map(math.log, right)) / len(right))
        assert found == pytest.approx(sum(wanted) / len(wanted)), spec


def test_among_equals_every_candidate_comes_once_before_one_comes_twice():
    assert pick(3, 4, lambda counts: np.zeros(len(counts))) == [2, 1, 1]
    assert pick(5, 3, lambda counts: np.zeros(len(counts))) == [1, 1, 1, 0, 0]


# --- rows ---------------------------------------------------------------------------------------------------------


def test_all_seeds_hold_out_the_same_rows_and_the_first_is_the_run_it_was():
    space, _ = read_grid({"data": work.texts(60), "max_steps": 2}, {"lr": [1e-3, 1e-2]})
    host, seeds = work.host(), [3, 4, 5]
    shared, plain = (
        Trials(host, space, "x", seeds, one_split=one_split).all(list(space.settings())) for one_split in (True, False)
    )
    assert len({one.data.validation.content for one in shared}) == 1
    assert len({one.data.train.content for one in shared}) == 1
    assert len({one.data.validation.content for one in plain}) == 3
    assert len({one.id for one in shared}) == 6
    assert [one.id for one in shared if one.seed == 3] == [one.id for one in plain if one.seed == 3]
    assert not {one.id for one in shared if one.seed > 3} & {one.id for one in plain}


def test_data_with_validation_rows_of_its_own_has_the_same_runs_as_ever(tmp_path: Path):
    (tmp_path / "val.jsonl").write_text("\n".join(map(json.dumps, work.texts(12, seed=5))))
    given = {"data": work.texts(30), "val": str(tmp_path / "val.jsonl"), "max_steps": 2, "folds": 0}
    space, _ = read_grid(given, {"lr": [1e-3]})
    made = [Trials(work.host(), space, "x", [0, 1], one_split=how) for how in (False, True)]
    ids = [[one.id for one in trials.all(list(space.settings()))] for trials in made]
    assert ids[0] == ids[1]


def test_few_rows_are_held_out_too():
    found = inlay.sweep(
        work.host(), inlay.Run(data=work.texts(40), few_shot_steps=2), {"lr": [1e-3]}, seeds=2, ensemble=2
    )
    assert all(row.config.get("folds", 0) == 0 for row in found.rows)
    assert {row.config["few_shot"] for row in found.rows} == {True}


# --- what comes of it ---------------------------------------------------------------------------------------------


def test_an_ensemble_of_a_sweep(tmp_path: Path):
    host, library = work.host(), inlay.Library(tmp_path / "library")
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, work.texts(20, seed=5))))
    given = run(test=str(tmp_path / "test.jsonl"))
    found = inlay.sweep(host, given, GRID, seeds=2, ensemble=5, name="tone", best=True, library=library)
    chosen = found.ensemble
    assert chosen is not None
    assert (chosen.picks, chosen.candidates, sum(counts_of(found).values())) == (5, 8, 5)
    data = Trials(host, read_grid({"data": work.texts(60), "val_size": 24}, {})[0], "x", [0]).make(
        {"method": "houlsby"}, 0
    )
    examples, chances = data.data.validation.examples, []
    rows = ensemble.candidates(found.rows, "accuracy")
    for row in rows:
        adapter = found._load(row.id)
        assert adapter is not None
        host.load(adapter, "one")
        answers, _ = answers_to(host, "one", examples)
        host.unload("one")
        chances.append([a["scores"][e.target] for e, a in zip(examples, answers, strict=True)])
        right = sum(a["label"] == e.target for e, a in zip(examples, answers, strict=True))
        assert right / 24 == pytest.approx(row.value), "all candidates are validated on these rows"
    wanted = {row.label: count for row, count in zip(rows, plain_greedy(chances, 5, 2), strict=True) if count}
    assert counts_of(found) == wanted
    assert len(wanted) >= 3
    (entry,) = library.list()
    assert (entry.ref, len(entry.members), entry.card["weights"]) == (
        "tone@1",
        len(wanted),
        list(counts_of(found).values()),
    )
    assert entry.card["metrics"] == chosen.metrics
    assert entry.card["parents"] == [f"sweep:{row.id}" for row, _ in chosen.members]
    assert entry.card["sweep"]["ensemble"]["picks"] == 5
    assert library.verify() == []
    host.load(library.get("tone"), "tone")
    answers, _ = answers_to(host, "tone", examples)
    right = sum(a["label"] == e.target for e, a in zip(examples, answers, strict=True))
    assert chosen.metrics["validation"]["accuracy"] == pytest.approx(right / 24)
    assert set(chosen.metrics) == set(chosen.single) == {"validation", "test"}
    assert chosen.single == found.winner.metrics


@pytest.mark.parametrize(
    ("data", "task", "by"),
    [
        (work.ratings(40), "regression", "loss"),
        (work.topics(40), "multilabel", "loss"),
        (work.entities(40), "tagging", "f1"),
    ],
)
def test_tasks(data: Any, task: str, by: str):
    found = inlay.sweep(work.host(), run(data, task=task, max_steps=4), {"lr": [1e-3, 3e-2]}, seeds=2, ensemble=3)
    assert found.ensemble is not None
    assert found.ensemble.by == by
    assert sum(counts_of(found).values()) == 3
    assert found.metric in found.ensemble.metrics["validation"]


def test_only_one_run_that_finishes_is_itself(tmp_path: Path):
    library = inlay.Library(tmp_path)
    grid = {"lr": [1e-3, 1e30]}
    found = inlay.sweep(work.host(), run(clip=None), grid, ensemble=3, name="one", best=True, library=library)
    assert found.ensemble is not None
    assert isinstance(found.ensemble.adapter, inlay.Adapter)
    assert library.find("one").card["parents"] == [f"sweep:{found.ensemble.members[0][0].id}"]
    assert found.ensemble.metrics == found.ensemble.members[0][0].metrics


# --- what is kept, and going on -----------------------------------------------------------------------------------


def adapters(store: Path) -> set[str]:
    return {file.stem for file in store.with_name(f"{store.name}.files").glob("*.safetensors")}


def test_only_the_best_are_kept_and_what_is_missing_is_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ensemble, "CANDIDATES", 3)
    store, told = tmp_path / "s.sqlite", []

    def sweep(**how: Any) -> inlay.Sweep:
        told.clear()
        return inlay.sweep(
            work.host(), run(), GRID, seeds=2, store=store, callbacks=[lambda event: told.append(event["event"])], **how
        )

    first = sweep(ensemble=4)
    best = {row.id for row in ensemble.candidates(first.rows, "accuracy")}
    assert len(best) == 3
    assert best <= adapters(store) < {row.id for row in first.rows}
    assert (counts_of(sweep(ensemble=4)), told) == (counts_of(first), [])
    for id in best:
        (tmp_path / "s.sqlite.files" / f"{id}.safetensors").unlink()
    assert counts_of(sweep(ensemble=4)) == counts_of(first)
    assert told.count("done") == 3
    assert best <= adapters(store)


def test_a_sweep_that_was_stopped_chooses_the_same(tmp_path: Path):
    whole = inlay.sweep(work.host(), run(), GRID, seeds=2, slots=2, ensemble=4, store=tmp_path / "whole.sqlite")
    ended = itertools.count()

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "done" and next(ended) == 3:
            raise KeyboardInterrupt

    how: dict[str, Any] = {"seeds": 2, "slots": 2, "ensemble": 4, "store": tmp_path / "s.sqlite"}
    with pytest.raises(KeyboardInterrupt):
        inlay.sweep(work.host(), run(), GRID, callbacks=[stop], **how)
    found = inlay.sweep(work.host(), run(), GRID, **how)
    assert counts_of(found) == counts_of(whole)
    assert found.ensemble is not None
    assert whole.ensemble is not None
    assert found.ensemble.metrics == whole.ensemble.metrics


def test_a_search_has_one_split_too():
    pytest.importorskip("optuna")
    how: dict[str, Any] = {"search": "optuna", "trials": 3, "pruner": "none", "seeds": 2}
    found = inlay.sweep(work.host(), run(max_steps=4), {"lr": "1e-3..1e-1"}, ensemble=3, **how)
    assert sum(counts_of(found).values()) == 3
    assert {row.config.get("split_seed") for row in found.rows} == {0}


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_asked_for():
    for settings, grid, how, said in (
        ({}, {}, {"ensemble": 1}, "expected 2 or more"),
        ({}, {"max_length": [8, 16]}, {}, "max_length cannot vary with an ensemble"),
        ({"val_size": None}, {"fold": ["1/2", "2/2"]}, {}, "fold cannot vary with an ensemble"),
        ({"val_size": None, "folds": 3}, {}, {}, "folds .--folds. cannot be combined with an ensemble"),
        ({"task": "mlm"}, {}, {}, "mlm cannot be answered by an ensemble"),
        ({}, {"split_seed": [1, 2]}, {}, "split_seed cannot vary"),
    ):
        with pytest.raises(RunError, match=said):
            inlay.sweep(work.host(), run(**settings), grid, **{"ensemble": 3, **how})
