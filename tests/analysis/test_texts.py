"""Words whatever the tokenizer, and rows as an adapter's task makes them."""

from __future__ import annotations

import pytest
import tiny
from analysis import wished
from tasks import other_tokenizers

from inlay.analysis import texts
from inlay.errors import DataError
from inlay.tasks import Example

SENTENCE = "Paris isn't in Oslo, is it? A well-known 'refunds' café."
WORDS = ["paris", "isn't", "in", "oslo", "is", "it", "a", "well-known", "refunds", "café"]


def host(**task):
    made = tiny.text_host()
    made.add("a", "adapterbias", labels=["x", "y"], **task)
    return made


@pytest.mark.parametrize("tokenizer", [tiny.tokenizer, other_tokenizers.byte_level, other_tokenizers.metaspace])
def test_words_are_the_same_whatever_the_tokenizer(tokenizer):
    made = host()
    made.base.tokenizer = tokenizer()
    (text,) = texts.read(made, "a", [Example(SENTENCE)])
    assert [word for word, _ in text.words] == WORDS
    assert {token for _, own in text.words for token in own} < set(text.plain), "punctuation is of no word"
    pieces = {word: len(own) for word, own in text.words}
    assert pieces["refunds"] > 1


def test_each_piece_is_in_its_own_word():
    made = host()
    (text,) = texts.read(made, "a", [Example("refunds oslo it's")])
    tokens = made.base.tokenizer.convert_ids_to_tokens(text.row.ids)
    assert [(word, [tokens[i] for i in own]) for word, own in text.words] == [
        ("refunds", ["refund", "##s"]),
        ("oslo", ["oslo"]),
        ("it's", ["it", "'", "s"]),
    ]


@pytest.mark.parametrize("task", ["classification", "regression", "multilabel", "tagging", "regression:max_length=6"])
def test_rows_are_those_of_the_task(task):
    made = host(task=task)
    some = [Example("the film was refunds"), Example("a b"), Example("it is not very good , is it ?")]
    found = [list(text.row.ids) for text in texts.read(made, "a", some)]
    assert found == [list(row.ids) for row in wished.rows(made, "a", some)][: len(found)]


def test_pairs_and_single_texts_in_any_order():
    made = host()
    some = [Example("good film", "bad soup"), Example("late"), Example("the book", "the refund came")]
    found = texts.read(made, "a", some)
    assert [[word for word, _ in text.words] for text in found] == [
        ["good", "film", "bad", "soup"],
        ["late"],
        ["the", "book", "the", "refund", "came"],
    ]
    for text, example in zip(found, some, strict=True):
        assert [list(text.row.ids)] == [list(row.ids) for row in wished.rows(made, "a", [example])]
        assert len(text.plain) == len(text.words)


def test_a_special_token_that_a_text_spells_out_is_special_and_an_unknown_one_a_word():
    made = host()
    (text,) = texts.read(made, "a", [Example("good [SEP] [MASK] ω film")])
    assert [word for word, _ in text.words] == ["good", "ω", "film"]
    assert len(text.plain) == 3


def test_words_of_a_tagged_sentence():
    made = host(task="tagging")
    (text,) = texts.read(made, "a", [Example(words=("ana", "meets", "bob"))])
    assert [word for word, _ in text.words] == ["ana", "meets", "bob"]


def test_nothing_to_show():
    with pytest.raises(DataError, match="no text to show a"):
        texts.read(host(), "a", [])
