"""A task from outside, one file, keeps every contract, trains with its groups in one batch, and answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import tiny
import torch
from outside.ranking import Ranking
from tasks import test_loss, test_task
from torch import Tensor

import inlay
from inlay.data.columns import Columns
from inlay.errors import DataError
from inlay.registry import tasks
from inlay.tasks import Example, Row, parse
from inlay.training.job import Stage

FITS = {"good": 2, "fine": 1, "bad": 0, "awful": 0}
CASE = test_task.Case(
    Columns(text="q", pair="t", label="y"),
    (
        {"q": "what film", "t": test_task.LONG, "y": 2},
        {"q": "what film", "t": "bad", "y": "0"},
        {"q": "who", "t": "a book", "y": 1},
    ),
    ({"q": "", "t": "a", "y": 1}, {"q": "a", "t": "", "y": 1}, {"q": "a", "t": "b", "y": "x"}, {"q": "a", "y": 1}),
    ("ranking:max_length=16",),
    {"fit"},
)


def list_loss(run: test_loss.Run, base: Any) -> Tensor:
    each = []
    for query in {row.aux for row in run.rows}:
        own = [i for i, row in enumerate(run.rows) if row.aux == query]
        fits = torch.tensor([float(run.rows[i].target) for i in own])
        each.append(-(fits / fits.sum() * torch.cat([run.outputs[i] for i in own]).log_softmax(0)).sum())
    return torch.stack(each).mean()


LOSS = test_loss.LossCase(lambda i, n, labels, numbers: (1.0 + numbers(3, 1)[0], i // 2), list_loss, 1)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tasks.register("ranking")(Ranking)
    monkeypatch.setitem(test_task.CASES, "ranking", CASE)
    monkeypatch.setitem(test_loss.LOSSES, "ranking", LOSS)
    yield
    tasks._classes.pop("ranking")


def lists(n: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Queries, each with four texts of which a word says how well they fit."""
    draw, rows = random.Random(seed), []
    for i in range(n):
        query = f"{draw.choice(['film', 'book', 'soup'])} {draw.choice('abcdefgh')} {i}"
        rows += [
            {"query": query, "answer": f"it was {word} {draw.choice(tiny.WORDS)}", "fit": FITS[word]} for word in FITS
        ]
    draw.shuffle(rows)
    return rows


GIVEN = {"text": "query", "pair": "answer", "label": "fit"}


def test_it_keeps_the_contract_of_tasks():
    base = tiny.text_host().base
    test_task.test_a_spec_gives_the_task_again("ranking")
    test_task.test_good_records_are_read("ranking")
    test_task.test_without_a_label_column_nobody_knows_the_target("ranking")
    for record in CASE.bad:
        test_task.test_bad_records_are_refused_with_a_reason("ranking", record)
    test_task.test_no_row_is_longer_than_the_limit("ranking", 16)
    test_task.test_answers_from_any_number_of_windows("ranking", base)
    test_task.test_every_metric_that_may_be_asked_for_is_scored("ranking", base)
    test_task.test_the_loss_does_not_depend_on_the_order_of_rows("ranking", base)
    test_loss.test_loss_and_gradient_are_torchs_own("ranking", False, 2, base)
    test_loss.test_targets_are_arrays("ranking", False)
    test_loss.test_many_runs_in_one_call_are_as_each_alone("ranking", False, base)
    test_loss.test_wider_outputs_change_nothing("ranking", False, base)
    test_loss.test_losses_need_no_data_of_the_host("ranking", False, base)


def ranking(data: Any, **more: Any) -> inlay.Run:
    return inlay.Run(data=data, task="ranking", **{**GIVEN, "method": "lora:rank=4", "batch_size": 8, **more})


def test_it_trains_beside_another_task_and_answers():
    opinions = [{"text": f"{word} {i}", "label": str(min(1, FITS[word]))} for word in FITS for i in range(5)]
    mine = ranking(lists(16), epochs=6, lr=0.03, choose_by="score")
    result, other = inlay.train(tiny.text_host(), [mine, inlay.Run(data=opinions, epochs=2)])
    assert other.ok
    assert result.value > 0.9
    assert result.adapter.task == "ranking"
    alone = inlay.train(tiny.text_host(), mine).adapter
    torch.testing.assert_close(dict(alone.tensors), dict(result.adapter.tensors), atol=1e-5, rtol=1e-5)
    host = tiny.text_host()
    host.load(result.adapter, "order")
    answers = host.predict([("order", ("film a 77", f"it was {word} on")) for word in FITS])
    found = {word: answer["fit"] for word, answer in zip(FITS, answers, strict=True)}
    assert min(found["good"], found["fine"]) > max(found["bad"], found["awful"])


def test_a_split_and_a_batch_keep_what_is_about_one_query(monkeypatch: pytest.MonkeyPatch):
    seen: list[list[int]] = []
    plain = Ranking.targets

    def targets(self: Ranking, rows: Any, weights: Any = None) -> Any:
        seen.append([row.aux for row in rows])
        return plain(self, rows, weights)

    monkeypatch.setattr(Ranking, "targets", targets)
    inlay.train(tiny.text_host(), ranking(lists(), epochs=2))
    assert len(seen) > 2
    for queries in seen:
        assert all(queries.count(query) == 4 for query in queries)


def test_batches_of_groups():
    rows, groups = [Row([1])] * 10, [[0, 1, 2], [3], [4, 5], [6, 7, 8], [9]]
    stage = Stage("task", parse("ranking"), ("fit",), rows, (), (), "mrr", 1, 0, None, groups)
    for size, steps in ((3, 4), (100, 1), (1, 5)):
        orders = [stage.batches(size, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
        assert orders[0] != orders[1]
        for batches in orders:
            assert len(batches) == steps == stage.steps_per_epoch(size)
            assert all(batches)
            assert sorted(i for batch in batches for i in batch) == list(range(10))
            assert all(set(group) <= set(batch) or not {*group} & {*batch} for group in groups for batch in batches)


def test_what_it_needs_is_asked_for():
    rows = [{"query": row["query"], "fit": row["fit"]} for row in lists()]
    with pytest.raises(DataError, match="no column looks like the pair"):
        inlay.train(tiny.text_host(), ranking(rows, pair=None))


def test_a_subject_is_never_on_both_sides():
    same = [Example("a", "x"), Example("a", "y")]
    assert len({parse("ranking").subject(example) for example in same}) == 1
    assert len({parse("classification").subject(example) for example in same}) == 2
    assert len({parse("qa").subject(Example(question, "context")) for question in "ab"}) == 1
