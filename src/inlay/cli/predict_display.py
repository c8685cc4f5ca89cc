"""Answers for people: progress, a table, or a line on what was written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inlay.cli import output
from inlay.library.card_text import shortened
from inlay.screen import counted
from inlay.untrusted import visible

if TYPE_CHECKING:
    from inlay.data.record import Skipped
    from inlay.tasks import Answer

_LEAST = 24
"""Characters of a text that even the narrowest console shows."""


def tell(screen: output.Console, summary: Mapping[str, Any]) -> None:
    """Say how much was written, and how fast."""
    rate = f"{summary['rows_per_second']:,.0f} rows/s"
    amount = f"{counted(summary['answers'], 'answer')} for {counted(summary['rows'], 'row')}"
    screen.print(f"{amount} in {summary['out']} ({rate})", soft_wrap=True)


def tell_bad(screen: output.Console, bad: Skipped, left_out: bool) -> None:
    """Say how many rows an adapter could not use, and what was wrong with the first."""
    if bad.count:
        heading = "rows left out" if left_out else "rows with an error"
        screen.print(f"{heading}: {bad.count:,}; the first: {bad.first[0]}", style="yellow", soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[int], None]]:
    """A line on stderr that counts rows, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    screen = Console(stderr=True)
    line = TextColumn("{task.description}")
    with Progress(
        SpinnerColumn(), line, TimeElapsedColumn(), console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        shown, began = progress.add_task("0 rows", total=None), time.perf_counter()

        def advance(rows: int) -> None:
            done = int(progress.tasks[0].completed) + rows
            rate = done / (time.perf_counter() - began)
            progress.update(shown, completed=done, description=f"{counted(done, 'row')}, {rate:,.0f} rows/s")

        yield advance


def show(screen: output.Console, answers: Sequence[Answer], tasks: int, top_k: int | None) -> None:
    """A row per answer; a text, with its pair, is shown once for all its answers, in the room that they leave."""
    unsure = ["uncertainty"] if any("uncertainty" in answer for answer in answers) else []
    columns = ["text", *(["task"] if tasks > 1 else []), "answer", "score", *unsure, *(["scores"] if top_k else [])]
    table = output.table(*columns, right=("score", *unsure), keep=("task",))
    rows = [_cells(answer, max(_LEAST, screen.width // 3)) for answer in answers]
    taken = sum(_widest([column, *(row[column] for row in rows)]) + output.GAP for column in columns[1:])
    room = max(_LEAST, screen.width - taken)
    for i, cells in enumerate(rows):
        text = "" if i % tasks else _text_and_pair(answers[i : i + tasks], room)
        table.add_row(text, *(cells[column] for column in columns[1:]))
    screen.print(table)


def _cells(answer: Answer, room: int) -> dict[str, str]:
    """All but the text."""
    score, unsure = (f"{answer[key]:.3f}" if key in answer else "" for key in ("score", "uncertainty"))
    scores = "\n".join(f"{name} {score:.3f}" for name, score in answer.get("scores", {}).items())
    text = _in_words(answer, room)
    return {"task": answer["task"], "answer": text, "score": score, "uncertainty": unsure, "scores": scores}


def _widest(cells: Sequence[str]) -> int:
    return max(len(line) for cell in cells for line in cell.split("\n"))


def _text_and_pair(answers: Sequence[Answer], room: int) -> str:
    """A text, and its pair if any of these answers is for one; a short one leaves its room to the other."""
    seconds = (answer.get("pair", answer.get("context")) for answer in answers)
    text, pair = answers[0]["text"] or "", next((second for second in seconds if second is not None), None)
    if pair is None:
        return _cut(text, room)
    room -= len(" / ")
    text = _cut(text, max(room // 2, room - len(_line(pair))))
    return f"{text} / {_cut(pair, room - len(text))}"


def _in_words(answer: Answer, room: int) -> str:
    """An answer for people."""
    if "error" in answer:
        return f"error: {answer['error']}"
    if "spans" in answer:
        spans = (f"{_cut(span['text'], room)} ({span['label']} {span['score']:.2f})" for span in answer["spans"])
        return "\n".join(spans) or "(none)"
    if answer.get("value") is not None:
        return f"{answer['value']:.4g}"
    value = answer.get("label", answer.get("answer"))
    if value is None:
        return "(unsure)"
    if isinstance(value, list):
        return ", ".join(value) or "(none)"
    if "label" in answer:
        return str(value)
    return f"{_cut(value, room)} ({answer['start']}-{answer['end']})" if value else "(no answer)"


def _line(text: str) -> str:
    """A text on one line."""
    return " ".join(visible(text).split())


def _cut(text: str, room: int) -> str:
    return shortened(_line(text), room)
