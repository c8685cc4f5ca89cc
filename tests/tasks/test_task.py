"""What every task owes: one set of checks over all of them. A new task is noticed if it has no case here."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from inlay.data.columns import Columns
from inlay.data.record import Record
from inlay.errors import DataError, SpecError
from inlay.registry import tasks
from inlay.tasks import Example, Row, Unusable, in_natural_order, parse
from inlay.tasks.classification import Classification

TOKENIZER = tiny.tokenizer()
LONG = "the film was not very good , and the book was awful . " * 20


@dataclass(frozen=True)
class Case:
    columns: Columns
    good: tuple[dict[str, Any], ...]
    bad: tuple[dict[str, Any], ...]
    specs: tuple[str, ...]
    keys: set[str]
    unlabelled: dict[str, str] = field(default_factory=lambda: {"label": ""})

    def examples(self, name: str) -> list[Example]:
        return [parse(name).read(Record(row, f"f:{i}"), self.columns) for i, row in enumerate(self.good, 1)]


_TEXT = Columns(text="t", label="y")
_BAD_TEXT = ({"t": "", "y": "a"}, {"t": " \n", "y": "a"}, {"y": "a"}, {"t": None, "y": "a"}, {"t": ["x"], "y": "a"})
CASES = {
    "classification": Case(
        _TEXT,
        ({"t": "good", "y": "a"}, {"t": LONG, "y": "b"}, {"t": "bad film", "y": " a "}),
        (*_BAD_TEXT, {"t": "x"}, {"t": "x", "y": ""}, {"t": "x", "y": {"a": 1}}),
        ("classification:max_length=16,long=windows,temperature=1.3125",),
        {"label", "score", "scores"},
    ),
    "multilabel": Case(
        _TEXT,
        ({"t": "good", "y": "a|b"}, {"t": LONG, "y": ""}, {"t": "bad film", "y": ["b"]}),
        (*_BAD_TEXT, {"t": "x", "y": 3.5}, {"t": "x", "y": {"a": 1}}),
        ("multilabel:long=windows,cutoff=0.25,temperature=0.875",),
        {"label", "score", "scores"},
    ),
    "regression": Case(
        _TEXT,
        ({"t": "good", "y": 4}, {"t": LONG, "y": "-1.5"}, {"t": "bad film", "y": 0.25}),
        (*_BAD_TEXT, {"t": "x", "y": "high"}, {"t": "x", "y": "nan"}, {"t": "x", "y": "inf"}, {"t": "x", "y": True}),
        ("regression:mean=2.7189,scale=0.015",),
        {"value"},
    ),
    "tagging": Case(
        Columns(tokens="w", tags="g"),
        (
            {"w": ["ana", "meets", "bob"], "g": ["B-P", "O", "B-P"]},
            {"w": LONG.split(), "g": ["O", "I-P"] * (len(LONG.split()) // 2)},
            {"w": "in lima", "g": "O B-P"},
        ),
        (
            {"w": [], "g": []},
            {"w": ["a"], "g": ["O", "O"]},
            {"w": ["a"], "g": None},
            {"w": {"a": 1}, "g": ["O"]},
            {"w": [["a"]], "g": ["O"]},
            {"w": ["a"], "g": [0.5]},
        ),
        ("tagging:max_length=20,temperature=2.5",),
        {"tokens", "tags", "spans"},
        {"tags": ""},
    ),
    "qa": Case(
        Columns(question="q", context="c", answers="a"),
        (
            {"q": "who?", "c": "ana meets bob in lima", "a": "bob"},
            {"q": "where?", "c": LONG + "in lima", "a": [{"text": "lima", "answer_start": len(LONG) + 3}]},
            {"q": "when?", "c": "ana meets bob", "a": {"text": [], "answer_start": []}},
        ),
        (
            {"q": "", "c": "ana", "a": "ana"},
            {"q": "who?", "c": "", "a": "ana"},
            {"q": "who?", "c": "ana", "a": "bob"},
            {"q": "who?", "c": "ana", "a": [{"text": "ana", "answer_start": 1}]},
            {"q": "who?", "c": "ana", "a": [{"text": "ana", "answer_start": "0"}]},
            {"q": "who?", "c": "ana", "a": [{"text": "", "answer_start": 0}]},
            {"q": "who?", "c": "ana", "a": [7]},
            {"q": "who?", "c": "ana", "a": {"text": ["ana"], "answer_start": [0, 1]}},
        ),
        ("qa:max_length=40,stride=4,longest=5,no_answer=true",),
        {"answer", "start", "end", "score"},
        {"answers": ""},
    ),
    "mlm": Case(
        Columns(text="t"),
        ({"t": "good"}, {"t": LONG}, {"t": "bad film"}),
        tuple({"t": row.get("t")} for row in _BAD_TEXT),
        ("mlm:max_length=32,share=0.25",),
        {"loss", "tokens"},
        {},
    ),
}
every_task = pytest.mark.parametrize("name", sorted(CASES))


@pytest.fixture(scope="module")
def base() -> Any:
    return tiny.text_host().base


def drawn(name: str, examples: list[Example], limit: int = 24) -> tuple[list[Row], list[Tensor], tuple[str, ...]]:
    """Rows, random outputs of the shape the task's head has, and the labels."""
    task, random = parse(name), torch.Generator().manual_seed(0)
    labels = task.labels(examples)
    rows = task.draw(task.encode(TOKENIZER, examples, labels, limit), TOKENIZER, random)
    width = 16 if name == "mlm" else len(labels)
    shapes = [(len(row.ids), width) if task.per_token else (width,) for row in rows]
    return rows, [torch.randn(shape, generator=random).to(tiny.DEVICE) for shape in shapes], labels


def test_every_task_has_a_case():
    assert set(CASES) == set(tasks.names())


@every_task
def test_a_spec_gives_the_task_again(name):
    for spec in (name, *CASES[name].specs):
        task = parse(spec)
        assert task.spec == spec
        assert parse(task.spec) == task
        assert parse(task) is task


@every_task
def test_learned_numbers_survive_the_spec(name):
    task = parse(name).fit(CASES[name].examples(name))
    if hasattr(task, "temperature"):
        task = replace(task, temperature=1.2346)
        assert task.raw() == parse(name)
    assert parse(task.spec) == task


@every_task
def test_wrong_options_are_named(name):
    with pytest.raises(SpecError, match="no option 'size'"):
        parse(f"{name}:size=3")
    with pytest.raises(SpecError, match="max_length=3"):
        parse(f"{name}:max_length=3")


@pytest.mark.parametrize("wrong", ["clasification", 3, None])
def test_what_is_not_a_task(wrong):
    with pytest.raises(SpecError, match="classification"):
        parse(wrong)


@every_task
def test_good_records_are_read(name):
    examples = CASES[name].examples(name)
    assert [e.place for e in examples] == ["f:1", "f:2", "f:3"]
    assert all(e.target is not None for e in examples)


@every_task
def test_without_a_label_column_nobody_knows_the_target(name):
    case = CASES[name]
    columns = replace(case.columns, **case.unlabelled)
    read = [parse(name).read(Record(row, "f:1"), columns) for row in case.good]
    assert all(not e.target for e in read)
    rows = parse(name).encode(TOKENIZER, read, ("B-P", "O") if name == "tagging" else ("a", "b"), 24)
    assert {row.example for row in rows} == {0, 1, 2}


@pytest.mark.parametrize(("name", "record"), [(name, bad) for name in CASES for bad in CASES[name].bad])
def test_bad_records_are_refused_with_a_reason(name, record):
    with pytest.raises(Unusable) as problem:
        parse(name).read(Record(record, "f:1"), CASES[name].columns)
    assert len(str(problem.value)) > 10


@every_task
@pytest.mark.parametrize("limit", [9, 16, 33, 64])
def test_no_row_is_longer_than_the_limit(name, limit):
    examples = CASES[name].examples(name)
    rows, _, _ = drawn(name, examples, limit)
    assert max(len(row.ids) for row in rows) <= limit
    assert [row.example for row in rows] == sorted(row.example for row in rows)
    assert {row.example for row in rows} == set(range(len(examples)))
    for row in rows:
        assert row.ids[0] == TOKENIZER.cls_token_id
        assert row.ids[-1] == TOKENIZER.sep_token_id
        assert row.types is None or len(row.types) == len(row.ids)


@every_task
def test_answers_from_any_number_of_windows(name, base):
    examples = CASES[name].examples(name)
    rows, outputs, labels = drawn(name, examples)
    answers = []
    for i, example in enumerate(examples):
        own = [(o, r) for o, r in zip(outputs, rows, strict=True) if r.example == i]
        answer = parse(name).decode([o for o, _ in own], [r for _, r in own], example, labels, base)
        assert set(answer) == CASES[name].keys
        json.dumps(answer)  # nothing but plain numbers and text
        answers.append(answer)
    task = parse(name)
    scores = task.score(examples, answers, labels)
    assert task.primary(None, labels) in scores
    assert all(isinstance(value, float) and math.isfinite(value) for value in scores.values())


OTHERS = {
    "classification": ("temperature=1.7", "temperature=0.3125"),
    "multilabel": ("temperature=1.7,cutoff=0.2", "cutoff=0.75"),
    "regression": ("mean=3.7,scale=0.015", "scale=12.5"),
    "tagging": ("temperature=1.7", "temperature=0.3"),
    "qa": ("longest=2", "no_answer=true"),
    "mlm": ("share=0.25", "share=0.5"),
}


@every_task
def test_answers_for_many_adapters_are_those_for_each_example_to_the_bit(name, base):
    examples = CASES[name].examples(name) * 3
    rows, outputs, labels = drawn(f"{name}:long=windows" if hasattr(parse(name), "long") else name, examples)
    own = [[i for i, row in enumerate(rows) if row.example == e] for e in range(len(examples))]
    assert max(map(len, own)) > 1
    parts = [[outputs[i] for i in some] for some in own], [[rows[i] for i in some] for some in own]
    tasks = [parse(spec) for spec in (name, *(f"{name}:{options}" for options in OTHERS[name]))] * 3
    names = [tuple(labels), tuple(reversed(labels))] * 5
    given = list(zip(tasks, *parts, examples, names, strict=False))
    alone = [task.decode(out, row, example, some, base) for task, out, row, example, some in given]
    together = type(tasks[0]).mixed_answers(tasks, *parts, examples, names[:9], base)
    assert list(together) == alone
    assert name == "mlm" or together[0] != together[3]  # other numbers for the same text
    one = tasks[1].answers(*parts, examples, names[0], base)
    assert list(one) == [tasks[1].decode(*some, names[0], base) for some in zip(*parts, examples, strict=True)]


def test_a_task_from_outside_may_say_how_to_decode_in_any_of_three_ways(base):
    class Decodes(Classification):
        def decode(self, outputs: Any, *given: Any) -> Any:
            return {"label": "mine", "score": float(outputs[0][0])}

    class Answers(Classification):
        def answers(self, outputs: Any, *given: Any) -> Any:
            return [{"label": "mine", "score": float(one[0][0])} for one in outputs]

    class Mixed(Classification):
        @classmethod
        def mixed_answers(cls, tasks: Any, outputs: Any, *given: Any) -> Any:
            return [{"label": "mine", "score": float(one[0][0])} for one in outputs]

    class Child(Decodes):
        """It has its parent's way."""

    outputs, example = [[torch.tensor([3.0, 1.0])], [torch.tensor([2.0, 5.0])]], Example("a")
    expected = [{"label": "mine", "score": 3.0}, {"label": "mine", "score": 2.0}]
    for kind in (Decodes, Answers, Mixed, Child):
        task, labels = kind(), ("x", "y")
        given = outputs, [[], []], [example, example]
        assert kind.mixed_answers([task, kind()], *given, [labels, ("u", "v")], base) == expected
        assert task.answers(*given, labels, base) == expected
        assert [task.decode(out, [], example, labels, base) for out in outputs] == expected


@every_task
def test_every_metric_that_may_be_asked_for_is_scored(name, base):
    examples = CASES[name].examples(name)
    rows, outputs, labels = drawn(name, examples, 64)
    firsts = [next(i for i, row in enumerate(rows) if row.example == e) for e in range(len(examples))]
    task = parse(name)
    answers = [task.decode([outputs[i]], [rows[i]], examples[e], labels, base) for e, i in enumerate(firsts)]
    with pytest.raises(SpecError, match="Valid: ") as problem:
        task.primary("nonsense", labels)
    names = str(problem.value).rsplit("Valid: ", 1)[1].split(", ")
    scores = task.score(examples, answers, labels)
    assert set(names) <= set(scores)
    assert all(task.primary(n, labels) == n for n in names)


@every_task
def test_the_loss_is_one_number_with_a_gradient_everywhere(name, base):
    rows, outputs, _ = drawn(name, CASES[name].examples(name))
    leaves = [o.requires_grad_() for o in outputs]
    loss = parse(name).loss(leaves, rows, base)
    assert loss.shape == ()
    loss.backward()
    assert all(torch.isfinite(o.grad).all() for o in leaves)
    assert all(o.grad.abs().sum() > 0 for o in leaves)


@every_task
def test_the_loss_does_not_depend_on_the_order_of_rows(name, base):
    rows, outputs, _ = drawn(name, CASES[name].examples(name))
    there, back = parse(name).loss(outputs, rows, base), parse(name).loss(outputs[::-1], rows[::-1], base)
    torch.testing.assert_close(there, back)
    mixed_up = parse(name).loss([o.roll(1, 0) for o in outputs], rows, base)
    assert not torch.allclose(there, mixed_up) or outputs[0].shape == (1,)  # one output has nowhere to roll


@pytest.mark.parametrize("name", ["classification", "multilabel", "tagging"])
def test_an_unknown_label_is_named_with_its_place(name):
    case = CASES[name]
    with pytest.raises(DataError, match=r"^f:1: the (label|tag) '.*' is not one of x, y$"):
        parse(name).encode(TOKENIZER, case.examples(name), ("x", "y"), 64)


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_one_class_is_no_task(name):
    target = ("O", "O") if name == "tagging" else "O"
    with pytest.raises(DataError, match="'O'; expected two"):
        parse(name).labels([Example("a b", words=("a", "b"), target=target, place="f:1")])


def test_labels_are_sorted_by_number_where_they_are_numbers():
    assert in_natural_order(["10", "9", "b", "-1", "a", "2.5", "9"]) == ("-1", "2.5", "9", "10", "a", "b")


@pytest.mark.parametrize("turn", range(6))
def test_words_that_python_takes_for_numbers_do_not_upset_the_order(turn):
    names = ["3", "nan", "1", "inf", "2", "NaN"]
    assert in_natural_order(names[turn:] + names[:turn]) == ("1", "2", "3", "NaN", "inf", "nan")
