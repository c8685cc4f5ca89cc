"""Columns: given beats hinted beats guessed, a guess is told, and what is missing is an error that helps."""

from __future__ import annotations

from typing import Any

import pytest

from inlay.data.columns import OWN, Columns, choose, parts
from inlay.data.record import Record
from inlay.errors import DataError, SpecError

LONG = [
    "the flight was late and nobody told us",
    "thank you for the quick help today",
    "I am still waiting for my bag, third day",
    "what time does the desk open tomorrow?",
]


def pick(
    rows: list[dict[str, Any]],
    task: str | None = None,
    given: dict[str, str] | None = None,
    hints: dict[str, str] | None = None,
    names: list[str] | None = None,
    labelled: bool = True,
) -> tuple[str, Columns, str]:
    sample = [Record(row, f"f.csv:{i + 2}") for i, row in enumerate(rows)]
    return choose(task, names or list(rows[0]), sample, given or {}, hints or {}, "f.csv", labelled)


def table(**columns: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def crowd(question: str, answers: list[str], **more: list[Any]) -> list[dict[str, Any]]:
    """A file of judgements as annotation platforms export them."""
    columns: dict[str, list[Any]] = {
        "_unit_id": ["681448150", "681448153", "681448156", "681448158"],
        "_golden": ["FALSE", "FALSE", "TRUE", "FALSE"],
        "_unit_state": ["finalized", "finalized", "golden", "finalized"],
        "_trusted_judgments": ["3", "3", "156", "3"],
        "_last_judgment_at": ["2/25/15 5:24", "2/25/15 1:53", "", "2/25/15 10:01"],
        question: answers,
        f"{question}:confidence": ["1", "0.3486", "0.6837", "1"],
        f"{question}_gold": ["", "", answers[2], ""],
        **more,
    }
    return table(**columns)


# Files as they are found; the guess in the last place.
GUESSES: dict[str, tuple[list[dict[str, Any]], str, Columns]] = {
    "plain": (
        table(text=LONG, label=["neg", "pos", "neg", "neu"]),
        "classification",
        Columns(text="text", label="label"),
    ),
    "order of columns does not matter": (
        table(Label=["0", "1", "0", "1"], Sentence=LONG),
        "classification",
        Columns(text="Sentence", label="Label"),
    ),
    "pair": (
        table(index=list("0123"), sentence1=LONG, sentence2=LONG[::-1], label=["a", "b", "a", "b"]),
        "classification",
        Columns(text="sentence1", pair="sentence2", label="label"),
    ),
    "pair with the hypothesis first": (
        table(hypothesis=LONG, premise=LONG[::-1], gold_label=["a", "b", "a", "b"]),
        "classification",
        Columns(text="premise", pair="hypothesis", label="gold_label"),
    ),
    "two texts are not a pair": (
        table(title=["late", "thanks", "bag", "time"], body=LONG, stars=[1, 5, 1, 3]),
        "classification",
        Columns(text="body", label="stars"),
    ),
    "question and context with a label, and no answers": (
        table(question=LONG, context=LONG[::-1], label=["yes", "no", "no", "yes"]),
        "classification",
        Columns(text="question", pair="context", label="label"),
    ),
    "scores that are not whole": (
        table(sentence1=LONG, sentence2=LONG[::-1], score=["5.000", "4.750", "0.2", "3.0"]),
        "regression",
        Columns(text="sentence1", pair="sentence2", label="score"),
    ),
    "scores that are whole": (
        table(review=LONG, rating=[1.0, 5.0, 1.0, 3.0]),
        "classification",
        Columns(text="review", label="rating"),
    ),
    "whole numbers, most of them different": (
        table(text=LONG * 5, score=[1_000_000 + 7 * i for i in range(19)] + [1_000_000]),
        "regression",
        Columns(text="text", label="score"),
    ),
    "many whole numbers that repeat": (
        table(text=LONG * 5, score=[i % 10 for i in range(20)]),
        "classification",
        Columns(text="text", label="score"),
    ),
    "lists of labels": (
        table(text=LONG, labels=[["late", "staff"], ["staff"], [], ["time"]], id=list("abcd")),
        "multilabel",
        Columns(text="text", label="labels"),
    ),
    "lists of labels beside lists of as many ints": (
        table(text=LONG, topics=[["late", "staff"], ["staff"], ["bag"], ["time"]], votes=[[3, 1], [2], [3], [1]]),
        "multilabel",
        Columns(text="text", label="topics"),
    ),
    "lists of one label beside lists of one region": (
        table(memo=LONG, labels=[["late"], ["staff"], ["bag"], ["time"]], region=[["n"], ["s"], ["n"], ["s"]]),
        "multilabel",
        Columns(text="memo", label="labels"),
    ),
    "one number is wrong": (
        table(text=LONG * 5, score=[0.5] * 19 + ["n/a"]),
        "regression",
        Columns(text="text", label="score"),
    ),
    "words and tags": (
        table(id=list("ab"), tokens=[["He", "saw", "Rome"], ["Yes"]], ner_tags=[["O", "O", "B-LOC"], ["O"]]),
        "tagging",
        Columns(tokens="tokens", tags="ner_tags"),
    ),
    "words and tags by content": (
        table(b=[["N", "V", "N"], ["N", "N"]], a=[["he", "saw", "Rome"], ["yes", "no"]]),
        "tagging",
        Columns(tokens="a", tags="b"),
    ),
    "one row with a tag too few is still tagging": (
        table(tokens=[["a", "b"], ["c", "d"], ["e", "f"]], tags=[["X", "Y"], ["X"], ["X", "Y"]]),
        "tagging",
        Columns(tokens="tokens", tags="tags"),
    ),
    "answers in a context": (
        table(context=LONG, question=LONG[::-1], answers=[[{"text": "late", "answer_start": 15}], [], [], []]),
        "qa",
        Columns(question="question", context="context", answers="answers"),
    ),
    "no header": (
        table(column1=["ham", "ham", "spam", "ham"], column2=LONG),
        "classification",
        Columns(text="column2", label="column1"),
    ),
    "no header, and a column of marks that is mostly blank": (
        table(c1=["gj04", "gj04", "cj99", "ks08"], c2=["", "?", "*", ""], c3=["1", "1", "0", "1"], c4=LONG),
        "classification",
        Columns(text="c4", label="c3"),
    ),
    "one class so far": (
        table(a=["ham"] * 4, b=LONG),
        "classification",
        Columns(text="b", label="a"),
    ),
    "airline": (
        crowd(
            "airline_sentiment",
            ["neutral", "positive", "neutral", "negative"],
            negativereason=["", "", "", "Late Flight"],
            **{"negativereason:confidence": ["", "0", "", "0.7"]},
            airline=["Virgin America"] * 4,
            name=["cairdin", "jnardino", "yvonnalynn", "jnardino"],
            retweet_count=["0", "0", "0", "0"],
            text=LONG,
            tweet_created=["2/24/15 11:35"] * 4,
            tweet_location=["", "", "Lets Play", ""],
            user_timezone=["Eastern Time (US & Canada)", "Pacific Time (US & Canada)"] * 2,
        ),
        "classification",
        Columns(text="text", label="airline_sentiment"),
    ),
    "disasters": (
        crowd("choose_one", ["Relevant", "No", "Relevant", "Unsure"], keyword=["fire", "flood"] * 2, text=LONG),
        "classification",
        Columns(text="text", label="choose_one"),
    ),
}


@pytest.mark.parametrize("name", GUESSES)
def test_guess(name: str):
    rows, task, columns = GUESSES[name]
    found = pick(rows)
    assert found[:2] == (task, columns)
    assert f"task = {task}" in found[2]
    # Each guessed column, and no other, is told.
    told = {f'{field} = "{value}"' for field, value in vars(columns).items() if value}
    assert set(found[2].removeprefix("guessed: ").partition(", task")[0].split(", ")) == told


def test_the_line():
    rows = GUESSES["pair"][0]
    assert pick(rows)[2] == (
        'guessed: text = "sentence1", pair = "sentence2", label = "label", task = classification '
        "(pass --text, --pair, --label or --task to choose)"
    )
    assert pick(rows, "classification", {"text": "sentence1"})[2] == 'guessed: label = "label" (pass --label to choose)'
    assert pick(rows, "classification", {"text": "sentence1", "label": "label"})[2] == ""
    assert pick(GUESSES["words and tags"][0])[2].endswith("(pass --text, --label or --task to choose)")


def test_given_wins_over_hints_and_hints_over_guesses():
    rows = table(text=LONG, other=LONG[::-1], label=["a", "b", "a", "b"], mark=["x", "x", "y", "y"])
    hints = {"task": "classification", "text": "other", "label": "mark", "metric": "f1"}
    assert pick(rows)[1] == Columns(text="text", label="label")
    assert pick(rows, hints=hints) == ("classification", Columns(text="other", label="mark"), "")
    assert pick(rows, given={"label": "label"}, hints=hints)[1] == Columns(text="other", label="label")
    assert pick(rows, "mlm", hints=hints)[:2] == ("mlm", Columns(text="other"))


def test_a_hint_for_a_column_that_is_not_there_is_no_error():
    rows = table(sentence=LONG)
    hints = {"task": "classification", "text": "sentence", "label": "label"}
    assert pick(rows, hints=hints, labelled=False) == ("classification", Columns(text="sentence"), "")


def test_the_layouts_pair_goes_with_the_layouts_text():
    rows = table(a=LONG, b=LONG[::-1], c=LONG, label=["x", "y", "x", "y"])
    hints = {"task": "classification", "text": "a", "pair": "b", "label": "label"}
    assert pick(rows, given={"text": "a"}, hints=hints)[1] == Columns(text="a", pair="b", label="label")
    assert pick(rows, given={"text": "c"}, hints=hints)[1] == Columns(text="c", label="label")
    assert pick(rows, given={"text": "b"}, hints=hints)[1] == Columns(text="b", label="label")


def test_a_given_text_stands_alone_and_a_given_pair_finds_its_partner():
    rows = GUESSES["pair"][0]
    assert pick(rows, given={"text": "sentence2"})[1] == Columns(text="sentence2", label="label")
    assert pick(rows, given={"pair": "sentence2"})[1] == Columns(text="sentence1", pair="sentence2", label="label")


def test_a_given_pair_is_not_tagging():
    rows = table(a=LONG, b=LONG, words=[["x", "y"]] * 4, tags=[["N", "V"], ["N", "N"]] * 2)
    assert pick(rows)[0] == "tagging"
    assert pick(rows, given={"text": "a", "pair": "b"})[:2] == ("multilabel", Columns(text="a", pair="b", label="tags"))
    assert pick(rows, given={"pair": "b"})[:2] == ("multilabel", Columns(text="a", pair="b", label="tags"))


def test_a_column_is_used_once():
    rows = table(a=LONG, b=["x", "y", "x", "y"])
    hints = {"task": "classification", "text": "b"}
    assert pick(rows, given={"label": "b"}, hints=hints)[1] == Columns(text="a", label="b")


def test_text_pair_and_label_stand_for_the_parts_of_other_tasks():
    rows = table(words=[["a", "b"], ["c", "d"]], ner=[["O", "O"], ["O", "X"]], pos=[["N", "V"], ["N", "N"]])
    assert pick(rows)[1] == Columns(tokens="words", tags="ner")
    assert pick(rows, given={"text": "words", "label": "pos"}) == (
        "tagging",
        Columns(tokens="words", tags="pos"),
        "guessed: task = tagging (pass --task to choose)",
    )
    assert pick(rows, given={"tags": "pos"})[:2] == ("tagging", Columns(tokens="words", tags="pos"))
    rows = table(q=LONG, c=LONG[::-1], a=["late", "quick", "bag", "desk"])
    given = {"text": "q", "pair": "c", "label": "a"}
    assert pick(rows, "qa", given) == ("qa", Columns(question="q", context="c", answers="a"), "")


def test_a_task_chooses_among_labels():
    rows = table(text=LONG, label=["a", "b", "a", "b"], score=[0.5, 1.5, 2.0, 0.1], tags=[["x"], ["x", "y"], [], ["y"]])
    assert pick(rows, "classification")[1].label == "label"
    assert pick(rows, "regression")[1].label == "score"
    assert pick(rows, "multilabel")[1].label == "tags"
    assert pick(rows, "mlm")[1] == Columns(text="text")


@pytest.mark.parametrize("bad", ["many", "", None])
def test_a_bad_value_in_the_sample_does_not_hide_the_column(bad: Any):
    rows = table(text=LONG, score=[0.5, bad, 2.0, 0.1])
    assert pick(rows, "regression")[1].label == "score"
    assert pick(table(text=LONG, label=[["a"], bad, ["b"], ["a"]]), "multilabel")[1].label == "label"


def test_a_file_without_rows_goes_by_name():
    found = choose(None, ["id", "text", "label"], [], {}, {}, "f.csv")
    assert found[:2] == ("classification", Columns(text="text", label="label"))


def test_unlabelled():
    rows = table(text=LONG, label=["a", "b", "a", "b"])
    assert pick(rows, "classification", labelled=False)[1] == Columns(text="text")
    assert pick(rows, "classification", {"label": "label"}, labelled=False)[1] == Columns(text="text", label="label")
    assert pick(table(tokens=[["a", "b"]]), "tagging", labelled=False)[1] == Columns(tokens="tokens")
    assert pick(table(question=LONG, context=LONG), labelled=False)[:2] == (
        "qa",
        Columns(question="question", context="context"),
    )


def test_ids_and_confidences_are_never_guessed():
    rows = table(
        text=LONG, pairID=["1", "1", "2", "2"], label_confidence=["0.5", "1", "0.5", "1"], lang=["en", "de"] * 2
    )
    with pytest.raises(DataError, match="no column looks like the label"):
        pick(rows)
    assert pick(rows, given={"label": "lang"})[1].label == "lang"  # unless the user says so
    with pytest.raises(DataError, match="no column looks like the label"):
        pick(table(text=LONG, _golden=["TRUE", "FALSE"] * 2))


def test_a_long_text_is_no_label():
    with pytest.raises(DataError, match="no column looks like the label"):
        pick(table(title=LONG, answer=[text * 3 for text in LONG]))


@pytest.mark.parametrize(
    ("task", "given", "words"),
    [
        (None, {"label": "lable"}, ["no column 'lable' (--label)", "Did you mean label?", "Valid: label, text"]),
        (None, {"text": "label", "label": "label"}, ["--text and --label both name the column 'label'"]),
        ("tagging", {"pair": "text"}, ["tagging has no pair column; it has tokens and tags"]),
        ("tagging", {}, ["no column looks like the tokens (task tagging)", "pass --text COLUMN"]),
        ("qa", {}, ["question or answers", "columns are text, label", "pass --text COLUMN and --label COLUMN"]),
        ("regression", {"text": "label"}, ["no column looks like the label", "pass --label COLUMN"]),
    ],
)
def test_errors(task: str | None, given: dict[str, str], words: list[str]):
    rows = table(text=LONG, label=["a", "b", "a", "b"])
    if task == "regression":
        rows = table(text=LONG, label=LONG)
    with pytest.raises(DataError) as caught:
        pick(rows, task, given)
    message = str(caught.value)
    assert message.startswith("f.csv: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_no_label_names_the_columns_and_the_option():
    with pytest.raises(
        DataError, match=r"f\.csv: no column looks like the label .*columns are title, body; pass --label"
    ):
        pick(table(title=[text[:20] for text in LONG], body=LONG))


def test_no_such_task():
    with pytest.raises(SpecError, match=r"unknown task 'clasification'\. Did you mean classification"):
        pick(GUESSES["plain"][0], "clasification")


def test_every_part_is_a_field_of_columns():
    found = {part for task in OWN for part in parts(task)}
    assert found == set(vars(Columns()))


HEADERLESS: dict[str, tuple[list[dict[str, Any]], Columns]] = {
    "pairs as XNLI has them": (
        table(column1=LONG * 3, column2=LONG[::-1] * 3, column3=["neutral", "entailment", "contradiction"] * 4),
        Columns(text="column1", pair="column2", label="column3"),
    ),
    "pairs without spaces": (
        table(
            column1=["他说妈妈我回来了今天很好"] * 4 + ["我们今天去看电影吧好不好"] * 4,
            column2=[f"校车把他放下后他立即给{name}打了电话" for name in "一二三四五六七八"],
            column3=["neutral", "entailment"] * 4,
        ),
        Columns(text="column1", pair="column2", label="column3"),
    ),
    "one text": (
        table(column1=["ham", "spam"] * 2, column2=LONG),
        Columns(text="column2", label="column1"),
    ),
    "a text beside ids": (
        table(column1=[f"train-2023-{i:04}" for i in range(4)], column2=LONG, column3=["a", "b"] * 2),
        Columns(text="column2", label="column3"),
    ),
    "classes of several words": (
        table(column1=LONG * 5, column2=["not relevant", "very relevant"] * 10),
        Columns(text="column1", label="column2"),
    ),
    "three texts are no pair": (
        table(column1=LONG, column2=LONG[::-1], column3=[text + text for text in LONG], column4=["a", "b"] * 2),
        Columns(text="column3", label="column4"),
    ),
}


@pytest.mark.parametrize("name", HEADERLESS)
def test_without_a_header_two_columns_of_texts_are_a_pair(name: str):
    rows, columns = HEADERLESS[name]
    assert pick(rows)[1] == columns


def test_an_adapter_decides_whether_there_are_pairs():
    rows = table(sentence1=LONG, sentence2=LONG[::-1], label=["a", "b"] * 2)
    sample = [Record(row, "f.csv:2") for row in rows]

    def asked(names: list[str], hints: dict[str, str], pairs: bool) -> Columns:
        return choose("classification", names, sample, {}, hints, "f.csv", pairs=pairs)[1]

    names, hints = list(rows[0]), {"text": "sentence1", "pair": "sentence2"}
    assert asked(names, {}, True) == asked(names, hints, True) == Columns("sentence1", "sentence2", "label")
    assert asked(names, hints, False) == Columns("sentence1", "", "label")
    with pytest.raises(DataError, match=r"trained on pairs .* pass --pair COLUMN"):
        asked(["sentence1", "label"], {}, True)
