"""Questions: answers exact to the character, in any window, under any tokenizer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from tasks.other_tokenizers import byte_level, metaspace

from inlay.data.columns import Columns
from inlay.data.record import Record
from inlay.errors import InlayError, SpecError
from inlay.tasks import Answer, Example, Row, Task, parse

TASK = parse("qa:max_length=40,stride=6")
LABELS = ("start", "end")
TOKENIZERS = {"word pieces": tiny.tokenizer(), "byte level": byte_level(), "metaspace": metaspace()}
BASE: Any = None
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


def asked(context: str, answer: str, start: int | None = None, question: str = "where is it?") -> Example:
    return Example(question, context, target=[(answer, context.index(answer) if start is None else start)])


def pointing(rows: list[Row], size: float = 9.0) -> list[torch.Tensor]:
    """Logits that say what the targets say."""
    outputs = []
    for row in rows:
        out = torch.zeros(len(row.ids), 2)
        out[row.target[0], 0] = out[row.target[1], 1] = size
        outputs.append(out)
    return outputs


def learned(example: Example, tokenizer: Any, limit: int = 40, task: Task = TASK) -> Answer:
    """What a model that has learned this example by heart answers."""
    rows = task.encode(tokenizer, [example], LABELS, limit)
    outputs = pointing(rows)
    for out, row in zip(outputs, rows, strict=True):
        if row.target == (0, 0):
            out -= 5.0  # spans in a window without the answer must not win
    return task.decode(outputs, rows, example, LABELS, BASE)


CONTEXTS = [
    ("ana is in paris.", "paris", None),
    ("paris is in paris in paris", "paris", 21),
    ("  paris\n is \t in", "paris", None),
    ("Ána é in São Paulo — paris?", "São Paulo", None),
    ("cafe\u0301 is in pari\u0301s", "pari\u0301s", None),
    ("is 🎉 in é", "🎉", None),
    ("oslo oslo oslo", "oslo", 5),
    ("ana is in paris", "ana is in paris", None),
]


@every_tokenizer
@pytest.mark.parametrize(("context", "text", "start"), CONTEXTS)
def test_answers_are_exact_to_the_character(tokenizer, context, text, start):
    example = asked(context, text, start)
    found = learned(example, tokenizer)
    first = example.target[0][1]
    assert (found["answer"], found["start"], found["end"]) == (text, first, first + len(text))
    assert TASK.score([example], [found], LABELS) == {"f1": 1.0, "exact": 1.0}


@every_tokenizer
def test_space_around_a_given_answer_is_not_part_of_it(tokenizer):
    assert learned(asked("ana is in paris .", " in "), tokenizer)["answer"] == "in"
    assert learned(asked("ana is in ", "in "), tokenizer)["answer"] == "in"


@pytest.mark.thin(4)
@every_tokenizer
@pytest.mark.parametrize("limit", [14, 25, 40])
def test_windows_cover_the_context_and_find_every_word(tokenizer, limit):
    words = ["paris", "oslo", "lima", "soup", "ana"] * 5
    context = " ".join(f"{word} {i} in é" for i, word in enumerate(words))
    rows = TASK.encode(tokenizer, [asked(context, "lima", question="is it?")], LABELS, limit)
    assert len(rows) > 2
    whole = tokenizer(context, add_special_tokens=False)["input_ids"]
    seen: list[int] = []
    for row in rows:
        own = [row.ids[token] for token, _, _ in row.aux]
        stride = next(n for n in range(min(len(seen), len(own)), -1, -1) if seen[len(seen) - n :] == own[:n])
        seen += own[stride:]
    assert seen == whole
    assert {p for row in rows for _, a, b in row.aux for p in range(a, b)} >= {
        i for i, c in enumerate(context) if not c.isspace()
    }
    start = 0
    for word in context.split():
        start = context.index(word, start)
        if len(tokenizer(word, add_special_tokens=False)["input_ids"]) < 3:  # else longer than what windows share
            found = learned(asked(context, word, start, "is it?"), tokenizer, limit)
            assert (found["answer"], found["start"]) == (word, start)
        start += len(word)


def test_the_target_is_nothing_where_the_answer_is_not_whole():
    context = "the film " * 30 + "ana meets bob"
    rows = TASK.encode(TOKENIZERS["word pieces"], [asked(context, "ana meets bob")], LABELS, 40)
    assert [row.target == (0, 0) for row in rows] == [True] * (len(rows) - 1) + [False]


@pytest.mark.parametrize("longest", [1, 3, 30])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_span_is_that_of_brute_force(longest, seed):
    task = parse(f"qa:max_length=30,stride=4,longest={longest}")
    context = "ana meets bob in oslo for soup . " * 5
    rows = task.encode(TOKENIZERS["word pieces"], [Example("who?", context)], LABELS, 30)
    random = torch.Generator().manual_seed(seed)
    outputs = [torch.randn(len(row.ids), 2, generator=random) for row in rows]
    best = (-math.inf, 0.0, 0, 0)
    for out, row in zip(outputs, rows, strict=True):
        p = out.softmax(0)
        for i, (s, begin, _) in enumerate(row.aux):
            for e, _, end in row.aux[i : i + longest]:
                best = max(best, ((out[s, 0] + out[e, 1]).item(), (p[s, 0] * p[e, 1]).item(), begin, end))
    found = task.decode(outputs, rows, Example("who?", context), LABELS, BASE)
    assert (found["start"], found["end"]) == best[2:]
    assert found["score"] == pytest.approx(best[1], rel=1e-5)
    assert found["answer"] == context[best[2] : best[3]]


def test_nothing_is_an_answer_only_where_that_may_be():
    example = Example("who?", "ana meets bob")
    for seen, nothing in (([asked("ana", "ana")], False), ([asked("ana", "ana"), Example("?", "b", target=[])], True)):
        task = TASK.fit(seen)
        assert task.no_answer is nothing
        rows = task.encode(TOKENIZERS["word pieces"], [example], LABELS, 40)
        out = torch.zeros(len(rows[0].ids), 2)
        out[0] = 5.0
        out[rows[0].aux[0][0]] = 4.0
        found = task.decode([out], rows, example, LABELS, BASE)
        assert found["answer"] == ("" if nothing else "ana")
        assert (found["start"] is None) is nothing
        out[0] = 3.0
        assert task.decode([out], rows, example, LABELS, BASE)["answer"] == "ana"
    assert parse("qa:no_answer=true").fit([asked("ana", "ana")]).no_answer  # asked for is asked for


def test_nothing_must_be_likelier_in_every_window():
    task, context = parse("qa:max_length=40,stride=6,no_answer=true"), "ana meets bob " * 20
    rows = task.encode(TOKENIZERS["word pieces"], [Example("who?", context)], LABELS, 40)
    outputs = [torch.zeros(len(row.ids), 2) for row in rows]
    for out in outputs[:-1]:
        out[0] = 9.0
    outputs[-1][rows[-1].aux[0][0]] = 1.0
    assert task.decode(outputs, rows, Example("who?", context), LABELS, BASE)["answer"] in ("ana", "meets", "bob")


def test_loss_is_that_of_padded_positions():
    examples = [
        asked("ana is in paris.", "paris"),
        asked("the film " * 30 + "lima", "lima"),
        Example("?", "a", target=[]),
    ]
    rows = TASK.encode(TOKENIZERS["word pieces"], examples, LABELS, 40)
    random = torch.Generator().manual_seed(0)
    outputs = [torch.randn(len(row.ids), 2, generator=random) for row in rows]
    padded = torch.full((len(rows), 40, 2), -math.inf)
    for i, out in enumerate(outputs):
        padded[i, : len(out)] = out
    p = padded.log_softmax(1)
    each = [-(p[i, row.target[0], 0] + p[i, row.target[1], 1]) / 2 for i, row in enumerate(rows)]
    torch.testing.assert_close(TASK.loss(outputs, rows, BASE), torch.stack(each).mean())


@every_tokenizer
@pytest.mark.parametrize("limit", [8, 12, 16, 24, 40])
def test_a_long_question_leaves_room_for_the_context(tokenizer, limit):
    context = "ana is in paris" + " ana is in paris" * 5
    rows = TASK.encode(tokenizer, [asked(context, "paris", question="who is it in é 🎉? " * 20)], LABELS, limit)
    assert all(len(row.ids) <= limit for row in rows)
    assert all(row.aux for row in rows)
    assert rows[-1].aux[-1][2] == len(context)


def test_without_a_length_a_window_is_what_the_base_takes_or_384():
    context = "ana is in paris " * 200
    for limit, longest in ((64, 64), (512, 384)):
        rows = parse("qa").encode(TOKENIZERS["word pieces"], [Example("who?", context)], LABELS, limit)
        assert max(len(row.ids) for row in rows) == longest


def test_a_question_without_a_context():
    words = TOKENIZERS["word pieces"]
    with pytest.raises(InlayError, match="'who\\?' needs a context"):
        TASK.encode(words, [Example("who?")], LABELS, 40)
    rows = TASK.encode(words, [Example("who?", "")], LABELS, 40)
    found = TASK.decode([torch.zeros(len(r.ids), 2) for r in rows], rows, Example("who?", ""), LABELS, BASE)
    assert found == {"answer": "", "start": None, "end": None, "score": 0.0}


CONTEXT = "bob, ana and bob"


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("bob", [("bob", 0)]),
        (["ana", "bob"], [("ana", 5), ("bob", 0)]),
        ({"text": "bob", "answer_start": 13}, [("bob", 13)]),
        ([{"text": "bob", "answer_start": 13}], [("bob", 13)]),
        ({"text": ["bob", "ana"], "answer_start": [13, 5]}, [("bob", 13), ("ana", 5)]),
        ({"text": ["bob"]}, [("bob", 0)]),
        ({"text": [], "answer_start": []}, []),
        ([], []),
        ("", []),
        (None, []),
    ],
)
def test_answers_in_all_their_forms(value, target):
    record = Record({"q": "who?", "c": CONTEXT, "a": value, "id": 7}, "f:1")
    example = TASK.read(record, Columns(question="q", context="c", answers="a"))
    assert example.target == target
    assert example.id == "7"


@pytest.mark.parametrize("spec", ["qa:stride=-1", "qa:longest=0", "qa:max_length=7"])
def test_options_out_of_range(spec):
    with pytest.raises(SpecError, match="is not valid"):
        parse(spec)
