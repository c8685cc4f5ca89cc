"""`Host.predict`: any mix of tasks in one call gives what each request alone gives, in order."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from inlay.bench.host_cost import python_calls
from inlay.engine.answer_options import AnswerOptions
from inlay.engine.predict import TOKENS, batch_of, cut, decode, encode, row_limit, run, run_rows
from inlay.engine.translate import Translator
from inlay.errors import InlayError, SlotError
from inlay.tasks import Example, Row, Task
from inlay.tasks._packed import PackedRows
from inlay.tasks._text import TextTask
from inlay.tasks.classification import Classification

TEXTS = ["good", "a fine film", "the soup was awful , never"]
LONG = "the film was not very good , and my book came late . " * 12
ADAPTERS: dict[str, dict[str, Any]] = {
    "tone": {"labels": ["bad", "fine", "good"], "task": "classification:temperature=3"},
    "long": {"labels": ["no", "yes"], "task": "classification:max_length=20,long=windows"},
    "topics": {"labels": ["book", "film", "soup"], "task": "multilabel:temperature=2"},
    "stars": {"labels": ["value"], "task": "regression:mean=3,scale=1.5"},
    "names": {"labels": ["B-LOC", "B-PER", "I-LOC", "O"], "task": "tagging:temperature=1.5"},
    "asks": {"labels": ["start", "end"], "task": "qa:stride=8"},
    "words": {"labels": ["word"], "task": "mlm"},
}
METHODS = ["houlsby:size=4", "lora:rank=2", "adapterbias"]
REQUESTS: list[tuple[str, Any]] = [
    ("asks", ("where is bob ?", "ana meets bob in lima . " + LONG)),
    ("tone", "a fine film"),
    ("names", "ana meets bob in Lima!"),
    ("stars", LONG),
    ("tone", ("good soup", "bad soup")),
    ("long", LONG),
    ("words", "we love our soup"),
    ("names", ["ana", "xylophone", "oslo"]),
    ("topics", "a book for ana"),
    ("long", "yes"),
    ("names", LONG),
    ("tone", "a fine film"),
    ("asks", {"question": "who ?", "context": "bob"}),
    ("topics", {"text": "soup", "pair": "film"}),
    ("names", {"tokens": ["bob", "in", "oslo"]}),
    ("stars", Example("good", "bad")),
]


@pytest.fixture(scope="module")
def host() -> Any:
    made = tiny.text_host()
    for i, (name, how) in enumerate(ADAPTERS.items()):
        made.add(name, METHODS[i % len(METHODS)], seed=i, **how)
        tiny.shake(made, name, i)
    return made


def same(one: Any, other: Any) -> bool:
    """Equal but for rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return bool(one == pytest.approx(other, abs=1e-4 if tiny.EXACT else 0.1, rel=1e-4 if tiny.EXACT else 0.1))
    return bool(one == other)


@pytest.mark.skipif(not tiny.EXACT, reason="a close call may go either way")
def test_a_mixed_call_is_the_same_as_one_at_a_time(host):
    together = host.predict(REQUESTS)
    alone = [host.predict([request])[0] for request in REQUESTS]
    assert [answer["task"] for answer in together] == [name for name, _ in REQUESTS]
    for request, one, other in zip(REQUESTS, together, alone, strict=True):
        assert same(one, other), request
    assert same(host.predict(REQUESTS[::-1]), together[::-1])
    assert same(together[1], together[11])
    assert not same(together[1], together[4])


def test_tasks_that_read_texts_alike_share_a_call_of_the_tokenizer(host, monkeypatch):
    rows, calls = Translator.rows, []

    def counted(self: Translator, tokenizer: Any, examples: Any, limit: int) -> Any:
        calls.append((self.name, len(examples)))
        return rows(self, tokenizer, examples, limit)

    monkeypatch.setattr(Translator, "rows", counted)
    host.predict([request for request in REQUESTS if request[0] in ("tone", "long", "topics", "stars")])
    assert calls == [("tone", 7), ("long", 2)]  # the second cuts texts in another way, and elsewhere
    calls.clear()
    encode(host, [("tone", Example("a", target="good")), ("topics", Example("b", target=("soup",)))])
    assert calls == [("tone", 1), ("topics", 1)]  # what is right follows from a task's own labels

    class Mine(Classification):
        def encode(self, *given: Any) -> Any:
            return super().encode(*given)

    assert Mine.asked_options is None


def test_what_is_decoded_together_is_what_each_task_decodes_to_the_bit(host):
    host.add("other", "lora:rank=2", labels=["x", "y", "z"], task="classification:temperature=0.3")  # beside tone
    try:
        requests = [*REQUESTS, ("other", "a fine film"), ("other", LONG)]
        encoded = encode(host, requests)
        outputs = run(host, encoded)
        for manner in (AnswerOptions(), AnswerOptions(raw=True), AnswerOptions(top_k=1), AnswerOptions(threshold=0.4)):
            found = decode(host, encoded, outputs, manner)
            given = zip(requests, encoded.examples, outputs, encoded.rows, found, strict=True)
            for (name, _), example, out, rows, answer in given:
                task = host.task(name).raw() if manner.raw else host.task(name)
                plain = task.decode(out, rows, example, host.labels(name), host.base)
                assert answer["task"] == name
                for key, value in plain.items():
                    assert answer[key] == value or manner not in (AnswerOptions(), AnswerOptions(raw=True)), (name, key)
            assert (found == decode(host, encoded, outputs, AnswerOptions())) == (manner == AnswerOptions())
    finally:
        host.unload("other")


def test_the_three_steps_may_be_taken_in_other_threads(host):
    expected = host.predict(REQUESTS)
    own = copy.deepcopy(host.base.tokenizer)
    with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind:
        made = [ahead.submit(encode, host, REQUESTS, own) for _ in range(4)]
        found = [behind.submit(decode, host, one.result(), run(host, one.result()), AnswerOptions()) for one in made]
        assert all(one.result() == expected for one in found)


def test_an_adapter_that_comes_again_is_asked_as_it_is_now():
    made = tiny.text_host()
    made.add("a", "adapterbias", labels=["x", "y"])
    before = made.translator("a")
    assert made.translator("a") is before
    assert set(made.predict([("a", "good")])[0]["scores"]) == {"x", "y"}
    made.unload("a")
    with pytest.raises(SlotError):
        made.translator("a")
    made.add("a", "adapterbias", labels=["value"], task="regression:mean=7")
    assert set(made.predict([("a", "good")])[0]) == {"task", "text", "value"}


@pytest.mark.parametrize(
    "asked",
    [
        [("tone", TEXTS[i % 3]) for i in range(7)],
        [("tone", (TEXTS[i % 3], "soup")) for i in range(7)],
        [("tone", TEXTS[i % 3] if i % 2 else (TEXTS[i % 3], LONG)) for i in range(7)],
        [(("tone", "topics", "stars")[i % 3], TEXTS[i % 2]) for i in range(9)],
        [(("tone", "topics")[i % 2], LONG) for i in range(4)],
    ],
    ids=["texts", "pairs", "both", "three tasks", "two tasks, cut"],
)
@pytest.mark.parametrize("options", [AnswerOptions(), AnswerOptions(top_k=1, threshold=0.4), AnswerOptions(raw=True)])
def test_rows_in_one_batch_give_what_rows_one_by_one_give_to_the_bit(host, monkeypatch, asked, options):
    monkeypatch.setitem(TOKENS, "cpu", 40)
    encoded = encode(host, asked)
    assert isinstance(encoded.rows, PackedRows)
    found = decode(host, encoded, run(host, encoded), options)
    monkeypatch.setattr(TextTask, "packed", Task.packed)
    plain = encode(host, asked)
    assert isinstance(plain.rows, list)
    assert list(found) == list(decode(host, plain, run(host, plain), options))
    assert ["pair" in answer for answer in found] == [isinstance(what, tuple) for _, what in asked]
    packed, flat = (batch_of([row for own in one.rows for row in own]) for one in (encoded, plain))
    assert np.array_equal(packed.ids, flat.ids)
    assert (packed.types is None) == (flat.types is None)
    assert packed.types is None or np.array_equal(packed.types, flat.types)


def test_a_task_with_an_encoding_of_its_own_is_not_passed_by(host):
    class Mine(Classification):
        def encode(self, *given: Any) -> list[Row]:
            return super().encode(*given)

    assert Mine().packed(host.base.tokenizer, [Example("good")], 8) is None
    assert Classification().packed(host.base.tokenizer, [Example("good")], 8) is not None
    assert Classification(long="windows").packed(host.base.tokenizer, [Example("good")], 8) is None


def test_encoding_and_decoding_take_few_calls():
    """A function more for every row is what makes a batch of many tasks slow."""
    made = tiny.text_host()
    for i in range(50):
        made.add(f"t{i}", "lora:rank=1", labels=2 + i % 4, seed=i)
    asked = [(f"t{i % 50}", TEXTS[i % 3]) for i in range(64)]
    encoded = encode(made, asked)
    outputs = run(made, encoded)
    decode(made, encoded, outputs, AnswerOptions())  # what is kept is there
    assert python_calls(lambda: encode(made, asked)) < 64 * 3 + 50 * 2 + 50
    assert python_calls(lambda: decode(made, encoded, outputs, AnswerOptions())) < 100
    for one in asked:
        made.predict([one])
    everything = python_calls(lambda: made.predict(asked))
    assert everything < python_calls(lambda: [made.predict([one]) for one in asked]) / 5  # it counts


@pytest.mark.skipif(not tiny.EXACT, reason="a close call may go either way")
def test_small_batches_give_the_same(host, monkeypatch):
    together = host.predict(REQUESTS)
    monkeypatch.setattr("inlay.engine.predict.TOKENS", {tiny.DEVICE.type: 40})
    assert same(host.predict(REQUESTS), together)


def test_an_answer_says_what_was_asked(host):
    answers = host.predict(REQUESTS)
    assert answers[0]["context"].startswith("ana meets bob")
    assert answers[1]["text"] == "a fine film"
    assert "pair" not in answers[1]
    assert (answers[4]["text"], answers[4]["pair"]) == ("good soup", "bad soup")
    assert answers[7]["text"] == "ana xylophone oslo"


def test_the_same_thing_in_other_words(host):
    def one(name: str, what: Any) -> Any:
        return host.predict([(name, what)])[0]

    assert same(one("tone", ("good", "bad")), one("tone", {"text": "good", "pair": "bad"}))
    assert same(one("tone", "good film"), one("tone", ["good", "film"]))
    assert same(one("tone", "good film"), one("tone", {"tokens": ["good", "film"]}))
    assert same(one("tone", "good film"), one("tone", Example("good film")))
    assert same(one("asks", ("who ?", "bob")), one("asks", {"question": "who ?", "context": "bob"}))
    assert same(one("names", ["ana", "meets"]), one("names", {"tokens": ["ana", "meets"]}))
    assert not same(one("tone", "good film"), one("tone", ("good", "film")))


def test_scores_are_those_of_the_logits(host):
    text = "a fine film"
    with torch.no_grad():
        (logits,) = host.logits(host.batch([text]), ["tone"])
    calibrated, raw = host.predict([("tone", text)])[0], host.predict([("tone", text)], raw=True)[0]
    for answer, temperature in ((calibrated, 3), (raw, 1)):
        expected = (logits.float() / temperature).softmax(-1).cpu()
        tiny.assert_close(torch.tensor([answer["scores"][label] for label in host.labels("tone")]), expected)
    assert calibrated["label"] == raw["label"]
    assert calibrated["score"] < raw["score"]


def test_top_k_keeps_the_best_scores(host):
    whole, best = host.predict([("tone", "good")])[0], host.predict([("tone", "good")], top_k=2)[0]
    ranked = sorted(whole["scores"].items(), key=lambda item: -item[1])
    assert list(best["scores"].items()) == ranked[:2]
    assert best["label"] == ranked[0][0]
    assert host.predict([("tone", "good")], top_k=9)[0]["scores"] == whole["scores"]
    host.predict([("stars", "good")], top_k=1)  # nothing to keep, nothing wrong


def test_threshold_makes_the_unsure_say_nothing(host):
    requests = [("tone", "good"), ("topics", "good"), ("asks", ("who ?", "ana meets bob")), ("names", "ana meets bob")]
    plain = host.predict(requests)
    for answer, key in zip(host.predict(requests, threshold=1.0), ("label", "label", "answer"), strict=False):
        assert answer[key] is None
    assert same(host.predict(requests, threshold=0.0), plain)
    middle = plain[0]["score"]
    assert host.predict(requests[:1], threshold=middle - 1e-3)[0]["label"] == plain[0]["label"]
    assert host.predict(requests[:1], threshold=min(1.0, middle + 1e-3))[0]["label"] is None
    spans = plain[3]["spans"]
    assert spans
    kept = host.predict(requests[3:], threshold=min(s["score"] for s in spans) + 1e-3)[0]
    assert len(kept["spans"]) < len(spans)
    assert kept["tags"] == plain[3]["tags"]


def test_a_threshold_needs_a_score(host):
    with pytest.raises(InlayError, match=r"threshold 0.01 needs scores, and stars \(regression\) has none"):
        host.predict([("stars", "good"), ("stars", "bad")], threshold=0.01)
    tone, stars = host.predict([("tone", "good"), ("stars", "good")], threshold=1.0)  # it is for the first
    assert tone["label"] is None
    assert same([stars], host.predict([("stars", "good")]))


@pytest.mark.parametrize("pair", ["sentence2", ""])
def test_an_adapter_is_asked_as_it_was_trained(host, pair):
    other = tiny.text_host()
    columns = {"text": "sentence1", "label": "label"} | ({"pair": pair} if pair else {})
    for name in ("stars", "tone", "names", "asks"):
        other.load(dataclasses.replace(host.adapter(name), about={"columns": columns} if name != "tone" else {}))
    singles = ["good", ["good", "film"], {"text": "good"}, {"tokens": ["good"]}, Example("good")]
    pairs = [("good", "bad"), {"text": "good", "pair": "bad"}, Example("good", "bad")]
    right, wrong = (pairs, singles) if pair else (singles, pairs)
    said = "on pairs of texts, and this is one text" if pair else "on single texts: it takes no pair"
    assert len(other.predict([("stars", what) for what in right])) == len(right)
    for what in wrong:
        with pytest.raises(InlayError) as error:
            other.predict([("stars", what)])
        assert str(error.value).startswith(f"'stars' was trained {said}")
    other.predict([("tone", what) for what in singles + pairs])  # it does not say
    other.predict([("names", "ana meets bob"), ("asks", ("who ?", "bob"))])  # their tasks say


def test_no_requests_no_answers(host):
    assert host.predict([]) == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (("tones", "good"), "no adapter named 'tones'.*tone"),
        (("tone", 3), "a request is a text"),
        (("tone", None), "a request is a text"),
        (("tone", ("a", "b", "c")), "a request is a text"),
        (("tone", ["a", 3]), "a request is a text"),
        (("tone", {}), "a request is text and pair"),
        (("tone", {"txt": "a"}), r"or tokens \(a list\), not \{'txt': 'a'\}"),
        (("tone", {"tokens": "abc"}), r"tokens \(a list\)"),
        (("tone", {"pair": "alone"}), "a request is text and pair"),
        (("tone", {"text": "a", "pair": 3}), "a request is text and pair"),
        (("asks", "who ?"), r"pass \(question, context\)"),
        (("asks", {"question": "who ?"}), "context"),
        (("asks", ["who", "?"]), "context"),
    ],
)
def test_a_wrong_request_is_explained(host, request_, message):
    with pytest.raises(InlayError, match=message):
        host.predict([("tone", "good"), request_])


@pytest.mark.parametrize("how", [{"top_k": 0}, {"threshold": 1.5}, {"threshold": -0.1}])
def test_wrong_options_are_explained(host, how):
    with pytest.raises(InlayError, match=f"{next(iter(how))} must be"):
        host.predict([("tone", "good")], **how)


def test_an_adapter_without_a_task():
    made = tiny.text_host()
    made.add("bare", "adapterbias")
    with pytest.raises(SlotError, match="'bare' has no task"):
        made.predict([("bare", "good")])


def test_row_limits(host):
    assert row_limit(host, None) == 64
    assert row_limit(host, 20) == 20
    with pytest.raises(InlayError, match=r"max_length=65 is more than .* takes: 64"):
        row_limit(host, 65)


@given(lengths=st.lists(st.integers(1, 50), max_size=40), tokens=st.integers(1, 120))
@example(lengths=[5, 1, 9, 30, 2, 2, 8, 40], tokens=20)
def test_batches_hold_so_many_tokens_and_every_row_once(lengths: list[int], tokens: int):
    found = [some.tolist() for some in cut(lengths, tokens)]
    longest_first = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    assert [i for batch in found for i in batch] == longest_first
    assert all(len(batch) == 1 or sum(lengths[i] for i in batch) <= tokens for batch in found)
    even = -(-sum(lengths) // max(1, -(-sum(lengths) // tokens))) + max(lengths, default=0)
    for batch, after in itertools.pairwise(found):  # a batch ends where the next row has no room
        assert sum(lengths[i] for i in [*batch, after[0]]) > min(even, tokens)


@pytest.mark.skipif(not tiny.EXACT, reason="other batches round otherwise")
def test_rows_come_back_in_order_whatever_the_batches(host):
    examples = [(name, what if isinstance(what, Example) else Example(LONG, "bob")) for name, what in REQUESTS]
    encoded = encode(host, examples)
    outputs = run(host, encoded)
    flat = [(name, row) for (name, _), own in zip(REQUESTS, encoded.rows, strict=True) for row in own]
    expected = [out for own in outputs for out in own]
    for tokens in (1, 100, 10**6):
        found = run_rows(host, [row for _, row in flat], [name for name, _ in flat], tokens)
        for one, other in zip(found, expected, strict=True):
            tiny.assert_close(one, other)
    with torch.no_grad():
        for (name, row), out in zip(flat, expected, strict=True):
            tiny.assert_close(host.logits(batch_of([row]), [name])[0].cpu(), out, name)


def test_predictions_survive_saving_and_loading(host):
    other = tiny.text_host()
    for name in ADAPTERS:
        other.load(host.adapter(name))
    assert same(other.predict(REQUESTS), host.predict(REQUESTS))


@pytest.mark.skipif(not tiny.EXACT, reason="other batches round otherwise")
def test_a_batch_that_does_not_fit_is_halved(host, monkeypatch):
    rows = [Row([5, 6, 7][: 1 + i % 3]) for i in range(11)]
    names = [("names", "tone")[i % 2] for i in range(11)]
    expected = run_rows(host, rows, names)
    real, sizes = host.logits_on_cpu, []

    def logits(batch: Any, *rest: Any) -> Any:
        sizes.append(len(batch.lengths))
        if len(batch.lengths) > 3:
            raise torch.OutOfMemoryError("no room")
        return real(batch, *rest)

    monkeypatch.setattr(host, "logits_on_cpu", logits)
    for one, other in zip(run_rows(host, rows, names), expected, strict=True):
        tiny.assert_close(one, other)
    assert sizes[:2] == [11, 5]
    assert sum(n for n in sizes if n <= 3) == 11

    def never(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(host, "logits_on_cpu", never)
    with pytest.raises(torch.OutOfMemoryError):
        run_rows(host, rows, names)
