"""Evaluations of many adapters at once: the same logits and scores as row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
import torch

import inlay
from inlay.engine import predict
from inlay.engine.evaluate import outputs_of, score
from inlay.engine.predict import run_rows
from inlay.tasks import Example, Row, RowOutputs, parse


def rows_of(count: int, seed: int) -> list[Row]:
    draw = np.random.default_rng(seed)
    return [Row(draw.integers(5, 30, draw.integers(3, 20)).tolist(), None, i % 2, i) for i in range(count)]


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    made = tiny.host()
    specs = {"a": "houlsby:size=4", "b": "lora:rank=2", "c": "finetune:top=1", "d": "houlsby:size=3"}
    for i, (name, spec) in enumerate(specs.items()):
        made.add(name, spec, labels=2 + i % 2, seed=i, pool=("cls", "mean")[i % 2])
        tiny.shake(made, name, i)
    made.add("tags", "bitfit", labels=3, pool="tokens")
    return made


def parts(names: str = "abcd") -> list[tuple[str, list[Row]]]:
    """The first two and the last have the same rows."""
    shared, own = rows_of(9, 1), rows_of(5, 2)
    return [(name, own if name == "c" else shared) for name in names]


def plain(host: inlay.Host, some: list[tuple[str, list[Row]]]) -> list[torch.Tensor]:
    return run_rows(host, [row for _, rows in some for row in rows], [name for name, rows in some for _ in rows])


@pytest.mark.parametrize("tokens", [7, 40, 4096])
def test_many_parts_give_what_their_rows_give_to_the_bit(host, monkeypatch, tokens):
    monkeypatch.setattr(predict, "budget", lambda host: tokens)
    some = parts()
    found = outputs_of(host, some)
    expected = run_rows(host, [r for _, rows in some for r in rows], [n for n, rows in some for _ in rows], tokens)
    assert [len(own) for own in found] == [9, 9, 5, 9]
    assert all(isinstance(own, RowOutputs) for own in found)
    assert all(map(torch.equal, [one for own in found for one in own], expected))
    wrong = plain(host, [(name, rows) for (name, _), (_, rows) in zip(some[1:] + some[:1], some, strict=True)])
    assert not all(one.shape == own.shape and torch.equal(one, own) for one, own in zip(wrong, expected, strict=True))


def test_an_adapter_may_have_several_parts(host):
    some = [*parts("ab"), ("a", rows_of(6, 5)), ("b", rows_of(3, 6))]
    found = outputs_of(host, some)
    assert [len(own) for own in found] == [9, 9, 6, 3]
    assert all(map(torch.equal, [one for own in found for one in own], plain(host, some)))


def test_parts_that_answer_for_tokens_run_row_by_row(host):
    some = [*parts("ab"), ("tags", rows_of(4, 3))]
    found = outputs_of(host, some)
    assert all(map(torch.equal, [one for own in found for one in own], plain(host, some)))
    assert [one.shape[1] for one in found[2]] == [3] * 4


def test_memory_that_runs_out_halves_a_batch(host, monkeypatch):
    some, real, sizes = parts(), predict.pooled_logits, []

    def short(host: Any, batch: Any, names: Any) -> Any:
        sizes.append(len(batch.lengths))
        if len(batch.lengths) > 10:
            raise torch.OutOfMemoryError("so full")
        return real(host, batch, names)

    monkeypatch.setattr(predict, "pooled_logits", short)
    found = outputs_of(host, some)
    assert max(sizes) > 10
    for one, expected in zip([one for own in found for one in own], plain(host, some), strict=True):
        torch.testing.assert_close(one, expected)


def test_what_is_called_before_a_batch_can_end_it(host):
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outputs_of(host, parts(), stop)


@pytest.mark.parametrize(
    ("spec", "targets"),
    [("classification:temperature=1.7", "xyyxzxyz"), ("regression:mean=2.5,scale=0.5", [1.0, 2.5, 3, 4, 2, 2, 1, 5])],
)
def test_scores_of_rows_are_those_of_answers(spec, targets):
    task, labels = parse(spec), ("x", "y", "z") if spec.startswith("class") else ("value",)
    examples = [Example(f"text {i}", target=target) for i, target in enumerate(targets)]
    logits = torch.randn(len(examples), len(labels), generator=torch.Generator().manual_seed(0))
    answers = task.answers([[row] for row in logits], [[Row([1])]] * len(logits), examples, labels, None)
    found = task.score_rows(logits, examples, labels)
    assert found == task.score(examples, answers, labels)
    assert found != task.score_rows(logits.flip(0), examples, labels)


def test_windows_of_one_example_are_scored_together():
    host = tiny.text_host()
    host.add("a", "bitfit", labels=["x", "y"])
    examples = [Example("one", target="x"), Example("two", target="y")]
    rows = [Row([2, 3], None, 0, 0), Row([2, 4], None, 0, 0), Row([2, 5], None, 1, 1)]
    outputs = RowOutputs(torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 1.0]]))
    assert score(host, "a", examples, rows, outputs)["accuracy"] == 1.0


def test_parts_of_all_widths_are_those_of_each_alone(host):
    """Widths share arrays, of which parts are slices."""
    for name, labels in (("two", 2), ("many", 40), ("again", 2), ("three", 3)):
        host.add(name, "lora:rank=2", labels=labels, seed=labels)
        tiny.shake(host, name)
    rows = [Row([1 + i % 7] * (1 + i % 5), None) for i in range(12)]
    parts = [("two", rows), ("many", rows[3:]), ("again", rows[:5]), ("three", rows), ("two", rows[:2])]
    together = outputs_of(host, parts)
    assert [tuple(found.logits.shape) for found in together] == [(12, 2), (9, 40), (5, 2), (12, 3), (2, 2)]
    for part, found in zip(parts, together, strict=True):
        (alone,) = outputs_of(host, [part])
        torch.testing.assert_close(found.logits, alone.logits)
