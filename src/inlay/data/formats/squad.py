"""SQuAD's own JSON, 1.1 and 2.0: one record per question.

A question is a bad row if an answer's text does not stand at its offset: training on it would silently teach the
wrong span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inlay.data.formats.jsondoc import Document, Value
from inlay.data.formats.jsonl import kind, unusable
from inlay.data.formats.text import Text
from inlay.data.record import Bad, Record, Source, shown

COLUMNS = ("id", "question", "context", "answers")
HINTS = {"task": "qa", "question": "question", "context": "context", "answers": "answers", "id": "id", "metric": "f1"}


def open_squad(text: Text) -> Source:
    """`data` / `paragraphs` / `qas`; the document is read whole."""

    def read(bad: Bad) -> Iterator[Record]:
        document = Document(text.name, text.read())
        start = document.skip(0)
        articles = _array(document, start, "data")
        if articles is None:
            raise document.wrong(start, 'no array "data"; expected a SQuAD document {"data": [...]}')
        document.ends()
        for article in document.values(articles):
            yield from _article(document, article, bad)

    return Source(text.name, "squad", COLUMNS, HINTS, text.notes(), read)


def _article(document: Document, article: Value, bad: Bad) -> Iterator[Record]:
    paragraphs = _array(document, article.start, "paragraphs")
    if paragraphs is None:
        bad(document.place(article.start), 'no array "paragraphs" in this article')
        return
    for paragraph in document.values(paragraphs):
        questions = _array(document, paragraph.start, "qas")
        if questions is None or not isinstance(paragraph.value.get("context"), str):
            bad(document.place(paragraph.start), 'expected a paragraph {"context": "...", "qas": [...]}')
            continue
        if problem := unusable(paragraph.value, document.source[paragraph.start : paragraph.end]):
            bad(document.place(paragraph.start), problem)
            continue
        for question in document.values(questions):
            place = document.place(question.start)
            if problem := _problem(question.value, paragraph.value["context"]):
                bad(place, problem)
            else:
                yield Record(_fields(question.value, paragraph.value["context"], place), place)


def _array(document: Document, start: int, key: str) -> int | None:
    """Where the array under this key begins, if the value here is an object that has it."""
    if document.at(start) != "{":
        return None
    starts = [v.start for v in document.values(start) if v.key == key and isinstance(v.value, list)]
    return starts[0] if starts else None


def _fields(question: Mapping[str, Any], context: str, place: str) -> dict[str, Any]:
    fields = {"id": str(question.get("id", place)), "question": question["question"], "context": context}
    if question.get("is_impossible"):
        return {**fields, "answers": []}
    if "answers" not in question:
        return fields
    return {**fields, "answers": [{"text": a["text"], "answer_start": a["answer_start"]} for a in question["answers"]]}


def _problem(question: object, context: str) -> str:
    if not isinstance(question, dict):
        return f"{kind(question)} {shown(question)} where a question {{...}} is expected"
    if not isinstance(question.get("question"), str):
        return 'no text under "question"'
    if question.get("is_impossible"):
        return ""
    answers = question.get("answers", [])
    if not isinstance(answers, list):
        return f'"answers" is {kind(answers)}; expected an array of {{"text": ..., "answer_start": ...}}'
    return next(filter(None, (answer_problem(answer, context) for answer in answers)), "")


def answer_problem(answer: object, context: str) -> str:
    """Why an answer cannot be used; "" if it can."""
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        return f'answer {shown(answer)} has no text; expected {{"text": ..., "answer_start": ...}}'
    start, text = answer.get("answer_start"), answer["text"]
    if not isinstance(start, int) or isinstance(start, bool):
        return f"answer {shown(text)} has no whole number as answer_start"
    if start < 0 or not text or not context.startswith(text, start):
        there = shown(context[start : start + max(len(text), 1)]) if 0 <= start < len(context) else "nothing"
        return f"answer {shown(text)} is not at character {start} of the context, where there is {there}"
    return ""
