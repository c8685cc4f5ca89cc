"""A tag for every word: whatever its length, its characters, and the tokenizer's idea of spaces."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from tasks.other_tokenizers import byte_level, metaspace

from inlay.data.columns import Columns
from inlay.data.record import Record
from inlay.tasks import Answer, Example, Row, Task, parse

TASK = parse("tagging")
LABELS = ("B-LOC", "B-PER", "I-LOC", "O")
TOKENIZERS = {"word pieces": tiny.tokenizer(), "byte level": byte_level(), "metaspace": metaspace()}
SENTENCE = "ana meets bob in oslo for xylophone soup , oslo oslo oslo not 2024 !"
WORDS = tuple(SENTENCE.split())
BASE: Any = None
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())


def tagged(words: tuple[str, ...], seed: int = 0) -> Example:
    random = torch.Generator().manual_seed(seed)
    tags = tuple(LABELS[i] for i in torch.randint(len(LABELS), (len(words),), generator=random).tolist())
    return Example(words=words, target=tags, place="f:1")


def say(row: Row, words: int, tag_of: dict[int, str], size: float = 8.0) -> torch.Tensor:
    """[tokens, labels]: logits that give every word of a row this tag, and nonsense elsewhere."""
    out = torch.randn(len(row.ids), len(LABELS), generator=torch.Generator().manual_seed(words))
    for piece, word in row.aux:
        out[piece] = 0.0
        out[piece, LABELS.index(tag_of[word])] = size
    return out


def answer(example: Example, tags: list[str], tokenizer: Any, limit: int = 64, task: Task = TASK) -> Answer:
    rows = task.encode(tokenizer, [example], LABELS, limit)
    outputs = [say(row, len(tags), dict(enumerate(tags))) for row in rows]
    return task.decode(outputs, rows, example, LABELS, BASE)


@every_tokenizer
@pytest.mark.parametrize("limit", [8, 13, 40])
@pytest.mark.parametrize("times", [1, 7])
def test_every_word_has_its_first_piece_in_one_row(tokenizer, limit, times):
    example = tagged(WORDS * times)
    rows = TASK.encode(tokenizer, [example], LABELS, limit)
    assert [word for row in rows for _, word in row.aux] == list(range(len(example.words)))
    assert all(len(row.ids) <= limit for row in rows)
    for row in rows:
        shown = tokenizer.convert_ids_to_tokens(row.ids)
        for piece, word in row.aux:
            text = shown[piece].strip("Ġ▁")
            assert example.words[word].startswith(text)


def test_word_pieces_are_those_of_words_given_apart():
    words = TOKENIZERS["word pieces"]
    (row,) = TASK.encode(words, [tagged(WORDS)], LABELS, 64)
    apart = words(list(WORDS), is_split_into_words=True)
    assert row.ids == apart["input_ids"]
    assert row.aux == [(apart.word_ids().index(w), w) for w in range(len(WORDS))]


@every_tokenizer
def test_words_look_as_they_do_in_a_text(tokenizer):
    (row,) = TASK.encode(tokenizer, [tagged(WORDS)], LABELS, 100)
    assert row.ids == tokenizer(" ".join(WORDS))["input_ids"]


def test_the_space_in_front_of_a_word_is_kept():
    shown = byte_level().convert_ids_to_tokens(TASK.encode(byte_level(), [tagged(("in", "oslo"))], LABELS, 64)[0].ids)
    assert shown == ["<s>", "i", "n", "Ġoslo", "</s>"]


@every_tokenizer
@pytest.mark.parametrize("limit", [8, 40])
def test_gold_and_answers_align(tokenizer, limit):
    examples = [tagged(WORDS * 4, 1), tagged(WORDS, 2), tagged(("oslo",), 3)]
    answers = [answer(e, list(e.target), tokenizer, limit) for e in examples]
    assert [a["tags"] for a in answers] == [list(e.target) for e in examples]
    assert TASK.score(examples, answers, LABELS) == {"accuracy": 1.0, "f1": 1.0, "precision": 1.0, "recall": 1.0}
    late = [answer(e, [*e.target[-1:], *e.target[:-1]], tokenizer, limit) for e in examples]
    assert TASK.score(examples, late, LABELS)["f1"] < 0.5  # one word off is noticed


def test_targets_are_numbers_of_the_labels_at_the_words_of_the_row():
    example = tagged(WORDS * 3)
    for row in TASK.encode(TOKENIZERS["word pieces"], [example], LABELS, 13):
        assert [LABELS[t] for t in row.target] == [example.target[word] for _, word in row.aux]


def test_words_that_the_tokenizer_does_not_know_or_drops():
    words = ("ana", "漢字", "", "\u200b", "ж" * 300, "bob")
    rows = TASK.encode(TOKENIZERS["word pieces"], [tagged(words)], LABELS, 20)
    assert [word for row in rows for _, word in row.aux] == [0, 1, 4, 5]
    example = Example(words=words)
    found = answer(example, ["B-PER"] * 6, TOKENIZERS["word pieces"])
    assert found["tokens"] == list(words)
    assert found["tags"] == ["B-PER", "B-PER", "O", "O", "B-PER", "B-PER"]


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0, 3.0, 4.0])])
def test_a_row_without_a_word_costs_nothing(weights):
    rows = TASK.encode(TOKENIZERS["word pieces"], [tagged(("\u200b",))], LABELS, 20)
    out = torch.randn(len(rows[0].ids), 4, requires_grad=True)
    loss = TASK.loss([out], rows, BASE, weights)
    loss.backward()
    assert loss.item() == 0
    assert out.grad is not None
    assert not out.grad.any()
    assert TASK.calibrate([[out]], [rows]) == TASK


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 0.1]])
def test_loss_is_that_of_padded_labels(weights):
    examples = [tagged(WORDS, 1), tagged(("oslo", "xylophone"), 2), tagged(WORDS * 2, 3)]
    words, random = TOKENIZERS["word pieces"], torch.Generator().manual_seed(0)
    rows = TASK.encode(words, examples, LABELS, 64)
    outputs = [torch.randn(len(row.ids), 4, generator=random) for row in rows]
    longest = max(len(row.ids) for row in rows)
    logits, labels = torch.zeros(3, longest, 4), torch.full((3, longest), -100)
    for i, example in enumerate(examples):
        logits[i, : len(outputs[i])] = outputs[i]
        before = None
        for piece, word in enumerate(words(list(example.words), is_split_into_words=True).word_ids()):
            if word is not None and word != before:
                labels[i, piece] = LABELS.index(example.target[word])
            before = word
    given = None if weights is None else torch.tensor(weights)
    expected = F.cross_entropy(logits.view(-1, 4), labels.view(-1), given, ignore_index=-100)
    torch.testing.assert_close(TASK.loss(outputs, rows, BASE, given), expected)


def test_temperature():
    random = torch.Generator().manual_seed(0)
    examples = [tagged(WORDS * 3, seed) for seed in range(4)]
    rows = TASK.encode(TOKENIZERS["word pieces"], examples, LABELS, 30)
    outputs = [torch.randn(len(row.ids), 4, generator=random) for row in rows]
    for out, row in zip(outputs, rows, strict=True):
        for (piece, _), target in zip(row.aux, row.target, strict=True):
            out[piece, target] += 2.0
    scaled = [out * 5 for out in outputs]
    groups = [[i for i, row in enumerate(rows) if row.example == e] for e in range(4)]
    found = TASK.calibrate([[scaled[i] for i in g] for g in groups], [[rows[i] for i in g] for g in groups])
    pairs = [
        (out[piece].double(), target)
        for out, row in zip(scaled, rows, strict=True)
        for (piece, _), target in zip(row.aux, row.target, strict=True)
    ]

    def loss(log_t: float) -> float:
        likelihood = sum((x / math.exp(log_t)).log_softmax(-1)[y].item() for x, y in pairs)
        return -likelihood - norm(0, 0.5).logpdf(log_t)

    oracle = minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), method="bounded", options={"xatol": 1e-6})
    assert found.temperature == pytest.approx(math.exp(oracle.x), rel=1e-3)
    likelihoods = [(x / found.temperature).log_softmax(-1)[y].item() for x, y in pairs]
    loss_of_answers = found.answer_loss(
        [[scaled[i] for i in g] for g in groups], [[rows[i] for i in g] for g in groups], BASE
    )
    assert loss_of_answers == pytest.approx(-sum(likelihoods) / len(likelihoods))


def test_spans_of_a_text_have_exact_characters():
    text = "Ána  meets\tBob in São Paulo — or Lima!"
    words = ["Ána", "meets", "Bob", "in", "São", "Paulo", "—", "or", "Lima", "!"]
    tags = ["B-PER", "O", "B-PER", "O", "B-LOC", "I-LOC", "O", "O", "I-LOC", "O"]
    found = answer(Example(text), tags, TOKENIZERS["word pieces"], 12)
    assert found["tokens"] == words
    assert found["tags"] == tags
    assert [(s["label"], s["text"]) for s in found["spans"]] == [
        ("PER", "Ána"),
        ("PER", "Bob"),
        ("LOC", "São Paulo"),
        ("LOC", "Lima"),
    ]
    for span in found["spans"]:
        assert text[span["start"] : span["end"]] == span["text"]
    assert found["spans"][2]["start"] == text.index("São")


def test_spans_of_given_words_have_word_positions():
    found = answer(Example(words=("in", "são", "paulo")), ["O", "B-LOC", "I-LOC"], TOKENIZERS["word pieces"])
    (span,) = found["spans"]
    assert {k: span[k] for k in ("label", "start", "end", "text")} == {
        "label": "LOC",
        "start": 1,
        "end": 3,
        "text": "são paulo",
    }


def test_a_span_is_as_sure_as_its_least_sure_word():
    task = parse("tagging:temperature=2")
    example = Example(words=("são", "paulo"))
    rows = task.encode(TOKENIZERS["word pieces"], [example], LABELS, 64)
    out = torch.zeros(len(rows[0].ids), 4)
    (first, _), (second, _) = rows[0].aux
    out[first, 0], out[second, 2] = 6.0, 2.0
    (span,) = task.decode([out], rows, example, LABELS, BASE)["spans"]
    assert span["score"] == pytest.approx(math.exp(1) / (math.exp(1) + 3))


@pytest.mark.parametrize(("tags", "spans"), [(["O", "O"], []), (["PER", "O"], ["PER"])])
def test_tags_without_b_and_i_are_spans_of_one_word(tags, spans):
    labels, example = ("LOC", "O", "PER"), Example("ana meets")
    rows = TASK.encode(TOKENIZERS["word pieces"], [example], labels, 64)
    out = torch.zeros(len(rows[0].ids), 3)
    for piece, word in rows[0].aux:
        out[piece, labels.index(tags[word])] = 5.0
    assert [s["label"] for s in TASK.decode([out], rows, example, labels, BASE)["spans"]] == spans


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("don't stop", ["don", "'", "t", "stop"]),
        ("東京 is 大", ["東", "京", "is", "大"]),
        ("iPhone東京", ["iPhone", "東", "京"]),
        ("cafe\u0301s!", ["cafe\u0301s", "!"]),
        ("हिन्दी में।", ["हिन्दी", "में", "।"]),
        ("می\u200cکنم", ["می\u200cکنم"]),
        ("", []),
        ("  ", []),
    ],
)
def test_words_of_a_text(text, words):
    rows = TASK.encode(TOKENIZERS["word pieces"], [Example(text)], LABELS, 64)
    assert rows
    outputs = [torch.zeros(len(row.ids), 4) for row in rows]
    found = TASK.decode(outputs, rows, Example(text), LABELS, BASE)
    assert found["tokens"] == words
    assert len(found["tags"]) == len(words)


def test_a_text_stands_in_for_words_only_without_tags():
    columns = Columns(tokens="w", tags="g")
    with_tags = TASK.read(Record({"w": "ana meets", "g": "O O"}, "f:1"), columns)
    assert (with_tags.words, with_tags.target) == (("ana", "meets"), ("O", "O"))
    without = TASK.read(Record({"w": "ana meets"}, "f:1"), Columns(tokens="w"))
    assert (without.text, without.words, without.target) == ("ana meets", (), None)


def test_f1_decides_for_entities_and_accuracy_for_other_tags():
    assert TASK.primary(None, LABELS) == "f1"
    assert TASK.primary(None, ("NOUN", "VERB")) == "accuracy"
