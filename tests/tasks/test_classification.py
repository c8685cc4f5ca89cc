"""Classification against plain torch and scipy; windows over long texts and pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from inlay.engine.predict import batch_of
from inlay.tasks import Example, Row, parse
from inlay.tasks._text import best_temperature

TASK, WINDOWS = parse("classification"), parse("classification:long=windows")
TOKENIZER = tiny.tokenizer()
BASE: Any = None  # the loss of whole texts asks nothing of it


def words(n: int, seed: int = 0) -> str:
    random = torch.Generator().manual_seed(seed)
    return " ".join(tiny.WORDS[i] for i in torch.randint(len(tiny.WORDS), (n,), generator=random).tolist())


def inner(rows: list[Row]) -> list[list[int]]:
    """Without the special tokens."""
    return [[i for i in row.ids if i not in TOKENIZER.all_special_ids] for row in rows]


def random_logits(rows: int, labels: int) -> tuple[list[torch.Tensor], list[int]]:
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(rows, labels, generator=random) * 3
    noise = torch.rand(rows, generator=random) < 0.3
    targets = torch.where(noise, torch.randint(labels, (rows,), generator=random), logits.argmax(-1))
    return list(logits), targets.tolist()


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0]])
def test_loss(weights):
    logits, targets = random_logits(7, 3)
    w = weights or [1.0] * 3
    total = 0.0
    for row, y in zip(logits, targets, strict=True):
        total += w[y] * (math.log(sum(math.exp(v) for v in row.tolist())) - row[y].item())
    expected = total / sum(w[y] for y in targets)
    given = None if weights is None else torch.tensor(weights)
    rows = [Row([1], target=y) for y in targets]
    assert TASK.loss(logits, rows, BASE, given).item() == pytest.approx(expected, rel=1e-5)


def test_answer_is_a_softmax_at_the_temperature():
    task = parse("classification:temperature=2")
    answer = task.decode([torch.tensor([2.0, -4.0, 6.0])], [], Example(""), ("x", "y", "z"), BASE)
    e = [math.exp(v) for v in (1, -2, 3)]
    assert answer["label"] == "z"
    assert list(answer["scores"]) == ["x", "y", "z"]
    assert list(answer["scores"].values()) == pytest.approx([v / sum(e) for v in e])
    assert answer["score"] == answer["scores"]["z"]


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_temperature(factor):
    logits, targets = random_logits(200, 4)
    logits = [row * factor for row in logits]
    found = TASK.calibrate([[row] for row in logits], [[Row([1], target=y)] for y in targets])
    stacked, y = torch.stack(logits).double(), torch.tensor(targets)

    def loss(log_t: float) -> float:
        likelihood = (stacked / math.exp(log_t)).log_softmax(-1)[range(len(y)), y].sum().item()
        return -likelihood - norm(0, 0.5).logpdf(log_t)

    oracle = minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded", options={"xatol": 1e-8})
    assert found.temperature == pytest.approx(math.exp(oracle.x), rel=1e-3)
    assert loss(math.log(found.temperature)) <= loss(0.0)


def test_the_loss_of_answers_counts_an_example_once_however_many_windows_it_has():
    task, labels, targets = parse("classification:temperature=2.5"), ("x", "y", "z"), [0, 2, 1]
    windows = [torch.randn(count, 3, generator=torch.Generator().manual_seed(count)).unbind() for count in (1, 4, 2)]
    rows = [[Row([1], target=y)] * len(own) for own, y in zip(windows, targets, strict=True)]
    answers = task.answers(windows, rows, [Example("")] * 3, labels, BASE)
    expected = -sum(math.log(answer["scores"][labels[y]]) for answer, y in zip(answers, targets, strict=True)) / 3
    assert task.answer_loss(windows, rows, BASE) == pytest.approx(expected)
    assert task.raw().answer_loss(windows, rows, BASE) != pytest.approx(expected)


def test_without_a_finite_loss_the_temperature_stays():
    assert best_temperature(lambda t: math.nan, 5) == 1.0
    assert best_temperature(lambda t: (t - 3) ** 2, 100_000) == pytest.approx(3, abs=1e-3)


def test_a_few_rows_without_an_error_do_not_make_it_sure():
    sure = [[torch.tensor([2.0, 0.0])]] * 3
    found = TASK.calibrate(sure, [[Row([1], target=0)]] * 3)
    assert 0.6 < found.temperature < 1


def test_a_long_text_is_cut_or_seen_whole():
    text = words(100)
    whole = TOKENIZER(text, add_special_tokens=False, verbose=False)["input_ids"]
    example = [Example(text, target="a")]
    (cut,) = TASK.encode(TOKENIZER, example, ("a", "b"), 20)
    assert inner([cut]) == [whole[:18]]
    parts = inner(WINDOWS.encode(TOKENIZER, example, ("a", "b"), 20))
    assert len(parts) > 5
    joined = list(parts[0])
    for part in parts[1:]:
        assert joined[-5:] == part[:5]  # a quarter of a row
        joined += part[5:]
    assert joined == whole


def test_a_short_text_is_one_row_either_way():
    example = [Example("a fine film", target="a")]
    assert TASK.encode(TOKENIZER, example, ("a",), 20) == WINDOWS.encode(TOKENIZER, example, ("a",), 20)


@pytest.mark.parametrize("first", [1, 5, 9, 30, 200])
def test_windows_of_a_pair_slide_over_the_second_text(first):
    one, two = words(first, 1), words(60, 2)
    rows = WINDOWS.encode(TOKENIZER, [Example(one, two, target="a")], ("a", "b"), 24)
    assert all(len(row.ids) <= 24 and row.target == 0 for row in rows)
    whole = TOKENIZER(two, add_special_tokens=False)["input_ids"]
    seen: list[int] = []
    for row in rows:
        assert row.types is not None
        own = [i for i, kind in zip(row.ids, row.types, strict=True) if kind == 1][:-1]
        at = next(k for k in range(len(seen) + 1) if seen[k:] == own[: len(seen) - k])
        seen = seen[:at] + own
    assert seen == whole
    begin = TOKENIZER(one, add_special_tokens=False)["input_ids"][:10]
    assert all(list(row.ids[1 : 1 + len(begin)]) == begin for row in rows)


def test_pairs_and_single_texts_in_one_call():
    examples = [Example("good"), Example("bad", "film"), Example("fine", "book"), Example("awful")]
    rows = TASK.encode(TOKENIZER, examples, ("a", "b"), 20)
    alone = [TASK.encode(TOKENIZER, [e], ("a", "b"), 20)[0] for e in examples]
    assert [row.ids for row in rows] == [row.ids for row in alone]
    assert [row.example for row in rows] == [0, 1, 2, 3]
    assert [sum(row.types or ()) for row in rows] == [0, 2, 2, 0]


def test_thousands_of_texts_keep_their_order():
    examples = [Example(tiny.WORDS[i % len(tiny.WORDS)], target="a") for i in range(2100)]
    rows = TASK.encode(TOKENIZER, examples, ("a", "b"), 20)
    assert [row.example for row in rows] == list(range(2100))
    assert [row.ids[1] for row in rows] == [TOKENIZER.convert_tokens_to_ids(e.text) for e in examples]


def test_an_answer_over_windows_is_the_mean_of_their_logits():
    host = tiny.text_host()
    host.add("w", "houlsby:size=4", labels=["a", "b", "c"], task="classification:max_length=20,long=windows")
    host.add("cut", "houlsby:size=4", labels=["a", "b", "c"], task="classification:max_length=20")
    for name in ("w", "cut"):
        tiny.shake(host, name)
    text = words(90, 3)
    rows = WINDOWS.encode(TOKENIZER, [Example(text)], ("a", "b", "c"), 20)
    with torch.no_grad():
        logits = [host.logits(batch_of([row]), ["w"])[0].float() for row in rows]
    expected = (sum(logits[1:], logits[0]) / len(logits)).softmax(-1)
    whole, cut = host.predict([("w", text), ("cut", text)])
    tiny.assert_close(torch.tensor(list(whole["scores"].values())), expected.cpu())
    tiny.assert_close(torch.tensor(list(cut["scores"].values())), logits[0].softmax(-1).cpu())
    assert whole["scores"] != cut["scores"]
