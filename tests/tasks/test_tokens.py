"""The backend of a fast tokenizer gives what the tokenizer's own call gives; other tokenizers are called."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import transformers as t
from tasks import other_tokenizers

from inlay.base.places import DEFAULT, locate
from inlay.tasks import Example, Task, parse
from inlay.tasks import _text as texts
from inlay.tasks._tokens import is_plain, token_ids

TEXTS = [
    "a good film",
    "the soup was awful , never again in oslo !",
    "x",
    "café [MASK] <s> [SEP] 北京 👍",
    "",
    "  ",
    "1 2 3 " * 40,
]
PAIRS = ["bob", "the film was not very good . " * 20, "", "x", "a b", "oslo", "ana meets bob " * 9]


def left_cut() -> Any:
    made = tiny.tokenizer()
    made.truncation_side = "left"
    return made


def split_special() -> Any:
    made = tiny.tokenizer()
    made.split_special_tokens = True
    return made


def without_types() -> Any:
    made = tiny.tokenizer()
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


def real() -> Any:
    return t.AutoTokenizer.from_pretrained(locate(DEFAULT)[0])


class Shouting(t.PreTrainedTokenizerFast):
    """It encodes in a way of its own."""

    def _encode_plus(self, text: Any, *given: Any, **more: Any) -> Any:
        return super()._encode_plus([one.upper() for one in text], *given, **more)


def shouting() -> Any:
    return Shouting(tokenizer_object=tiny.tokenizer().backend_tokenizer, pad_token="[PAD]")


MADE = [tiny.tokenizer, left_cut, split_special, without_types, other_tokenizers.byte_level, other_tokenizers.metaspace]
every_tokenizer = pytest.mark.parametrize("made", [*MADE, real, shouting], ids=lambda made: made.__name__)


@every_tokenizer
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["texts", "pairs"])
def test_it_is_the_tokenizers_own_call(made: Any, pairs: list[str] | None):
    asked, plain = made(), made()
    for limit in (None, 8, 23, None, 64):  # truncation is a state: what was asked before must not matter
        options = {"verbose": False} if limit is None else {"truncation": True, "max_length": limit}
        expected = plain(TEXTS, pairs, **options)
        ids, types = token_ids(asked, TEXTS, pairs, limit)
        assert ids == expected["input_ids"]
        given = expected.get("token_type_ids")
        assert types == (given if given and any(map(any, given)) else None)
        # another thread's call, or a task's, in between
        for one in (asked, plain):
            one("a b c d e f", truncation="only_first", max_length=7, stride=2, padding="max_length")


def test_the_positive_control():
    """Else these tokenizers would all do without truncation, special tokens and types."""
    assert token_ids(tiny.tokenizer(), TEXTS, None, 8)[0] != token_ids(tiny.tokenizer(), TEXTS, None, 23)[0]
    assert token_ids(tiny.tokenizer(), TEXTS, None, 8)[0] != token_ids(left_cut(), TEXTS, None, 8)[0]
    assert token_ids(tiny.tokenizer(), TEXTS, None, None)[0] != token_ids(split_special(), TEXTS, None, None)[0]
    assert token_ids(without_types(), TEXTS, None, 8)[1] is None


def test_which_tokenizers_are_asked_directly():
    assert all(is_plain(type(made())) for made in (*MADE, real))
    assert not is_plain(Shouting)
    assert not is_plain(object)

    class Translating(t.PreTrainedTokenizerFast):
        def _switch_to_input_mode(self) -> None:
            """It would have to be called."""

    assert not is_plain(Translating)


def test_a_tokenizer_without_a_backend_is_called():
    class Words:
        def __call__(self, given: Any, pairs: Any = None, **options: Any) -> Any:
            assert options == {"truncation": True, "max_length": 3}
            return {"input_ids": [[len(word) for word in text.split()][:3] for text in given]}

    assert token_ids(Words(), ["a bb ccc dddd", "e"], None, 3) == ([[1, 2, 3], [1]], None)


SPECS = ["classification", "classification:long=windows", "multilabel", "regression", "mlm", "tagging", "qa:stride=4"]


@every_tokenizer
@pytest.mark.parametrize("spec", SPECS)
def test_every_task_makes_the_same_rows(made: Any, spec: str, monkeypatch: pytest.MonkeyPatch):
    if made is shouting and spec in ("tagging", "qa:stride=4", "mlm"):
        pytest.skip("it has no mask, and loses characters")
    task: Task = parse(spec)
    kept = [text for text in TEXTS if text.strip()]
    examples = [Example(text) for text in kept]
    if task.kind not in ("tagging", "mlm"):
        examples += [Example(text, pair or "bob") for text, pair in zip(kept, PAIRS, strict=False)]
    if task.kind == "qa":
        examples = [example for example in examples if example.pair]
    labels = ("O", "B-X") if task.kind == "tagging" else ("a", "b")
    found = task.encode(made(), examples, labels, 24)
    monkeypatch.setattr("inlay.tasks._tokens.is_plain", lambda kind: False)
    assert found == task.encode(made(), examples, labels, 24)
    assert len(found) >= len(examples)
    assert texts.token_ids is token_ids
