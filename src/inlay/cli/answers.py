"""Answers for people: how far it is, a table, or a line on what was written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inlay.cli import output

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.tasks import Answer

_WIDEST = 48


def tell(screen: Console, found: Mapping[str, Any]) -> None:
    """Say how much was written, and how fast."""
    rate = f"{found['rows_per_second']:,.0f} rows/s"
    screen.print(f"{found['answers']:,} answers for {found['rows']:,} rows in {found['out']} ({rate})", soft_wrap=True)


@contextmanager
def progress() -> Iterator[Callable[[int], None]]:
    """A line on stderr that counts rows, where people can see it."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    screen = Console(stderr=True)
    line = TextColumn("{task.completed:,} rows, {task.fields[rate]:,.0f} rows/s")
    with Progress(
        SpinnerColumn(), line, TimeElapsedColumn(), console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        shown, began = progress.add_task("", total=None, rate=0.0), time.perf_counter()

        def advance(rows: int) -> None:
            done = progress.tasks[0].completed + rows
            progress.update(shown, completed=done, rate=done / (time.perf_counter() - began))

        yield advance


def show(screen: Console, answers: Sequence[Answer], tasks: int, top_k: int | None) -> None:
    """A row per answer; a text is shown once for all its answers."""
    columns = ["text", *(["task"] if tasks > 1 else []), "answer", "score", *(["scores"] if top_k else [])]
    table = output.table(*columns, right=("score",), keep=("task",))
    for i, answer in enumerate(answers):
        cells = {"text": "" if i % tasks else _cut(answer["text"]), "task": answer["task"], "answer": _said(answer)}
        cells["score"] = f"{answer['score']:.3f}" if "score" in answer else ""
        cells["scores"] = "\n".join(f"{name} {score:.3f}" for name, score in answer.get("scores", {}).items())
        table.add_row(*(cells[column] for column in columns))
    screen.print(table)


def _said(answer: Answer) -> str:
    """An answer for people."""
    if "spans" in answer:
        spans = (f"{_cut(one['text'])} ({one['label']} {one['score']:.2f})" for one in answer["spans"])
        return "\n".join(spans) or "(none)"
    if "value" in answer:
        return f"{answer['value']:.4g}"
    said = answer.get("label", answer.get("answer"))
    if said is None:
        return "(unsure)"
    if isinstance(said, list):
        return ", ".join(said) or "(none)"
    return said if "label" in answer else f"{_cut(said)} ({answer['start']}-{answer['end']})" if said else "(no answer)"


def _cut(text: str) -> str:
    """A text on one line, without what a terminal would act on."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."
