"""`inlay predict`: the answers of one adapter or of several, from one pass over every text.

Without `--out` all answers are held in memory and shown at the end. With it they are written in parts of so many
rows of the input (see `parts.py`), so memory does not grow with the input. Batches are cut within a part: an output
does not depend on where a command was stopped and resumed.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import answers, options, output
from inlay.cli.chosen import Answering, Chosen, find, find_there, host_with
from inlay.errors import DataError, InlayError, RunError
from inlay.version import __version__

if TYPE_CHECKING:
    from inlay.cli.parts import Parts
    from inlay.cli.texts import Texts
    from inlay.data.record import Bad
    from inlay.tasks import Answer, Example

COLUMNS: Mapping[str, Sequence[str]] = {
    "classification": ("label", "score", "scores"),
    "multilabel": ("label", "score", "scores"),
    "regression": ("value",),
    "tagging": ("spans",),
    "qa": ("context", "answer", "start", "end", "score"),
}
"""Task -> the columns of its answers in a table."""
_ORDER = ("task", "text", "pair", "context", "label", "score", "scores", "spans", "answer", "start", "end", "value")


def predict(
    names: Annotated[str, typer.Argument(metavar="NAMES", help="An adapter, or several: sms,topic@2")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts.  [default: the lines of stdin]")
    ] = None,
    pair: Annotated[
        str | None,
        typer.Option(metavar="TEXT|COLUMN", help="The second text, or the context of a question; a column of --file."),
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="F", help="A file of texts in any format; - is stdin, as lines or JSON lines.")
    ] = None,
    format: Annotated[str | None, typer.Option(metavar="F", help="The format of --file.  [default: found out]")] = None,
    encoding: Annotated[
        str | None, typer.Option(metavar="E", help="The encoding of --file or stdin.  [default: UTF-8]")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of texts, questions or words.")] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of labels; it is not read.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="F", help="Write answers to F.jsonl, F.csv or F.parquet, however many.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out if it is there.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an --out that was not finished.")] = False,
    top_k: Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep the N best scores.")] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="P", help="Below this score, give no label.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Scores without calibration.")] = False,
    url: Annotated[
        str | None, typer.Option(metavar="U", help="Ask a running service; its key, if it wants one: INLAY_KEY.")
    ] = None,
    base: options.TrainedBase = None,
    weights: options.Weights = None,
    library: options.Library = None,
    skip_bad_rows: options.SkipBadRows = False,
    as_json: output.AsJson = False,
) -> None:
    """Answer texts with one adapter or with several at once."""
    given = {role: name for role, name in (("text", text), ("pair", pair), ("label", label)) if name is not None}
    _check_usage(texts, file, {"--format": format, "--text": text, "--label": label})
    if url is not None and any(one is not None for one in (base, weights, library)):
        raise typer.BadParameter("--base, --weights and --library are the service's own: leave them out with --url")
    if out is None and (resume or overwrite):
        raise typer.BadParameter("--resume and --overwrite are for --out")
    from inlay.cli import parts
    from inlay.data.record import Skipped, stop_or_skip
    from inlay.library.library import Library

    if out is not None:
        _check_out(out, file, resume, from_stdin=not texts and file in (None, "-"))
    before = (parts.begun(out) if out is not None else None) or {}
    begun = before.get("adapters", ()) if resume else ()
    load: Callable[[], Answering]
    if url is None:
        chosen = find(Library(library), names, begun)
        load = functools.partial(host_with, base, weights, chosen)
    else:
        chosen, load = find_there(url, names, begun)
    size = parts.size_of(before)
    asked = _texts(texts, pair, file, format, encoding, given, chosen, skip_bad_rows)
    screen = output.console(as_json)
    for note in asked.notes:
        screen.print(note, style="dim", soft_wrap=True)
    bad = Skipped() if skip_bad_rows else stop_or_skip
    how = {"top_k": top_k, "threshold": threshold, "raw": raw}
    found: Any
    if out is None:
        found = _all(load(), asked, size, how, bad)
        if not as_json:
            answers.show(screen, found, len(chosen), top_k)
    else:
        named = {f"--{role}": name for role, name in given.items()}
        said = {**_input(texts, file), "--format": format, "--encoding": encoding, **named, **how, parts.SIZE: size}
        said |= {"--weights": weights} if weights else {}
        columns = _columns(chosen, asked)
        store = parts.open_parts(out, columns, _command(chosen, said), resume=resume, overwrite=overwrite)
        if resume and not store.finished and store.summary is None:
            typer.echo("nothing to resume: starting from the beginning", err=True)
        found = _to_file(store, load, asked, size, how, bad)
        answers.tell(screen, found)
    if isinstance(bad, Skipped) and bad.count:
        screen.print(f"rows left out: {bad.count:,}; the first: {bad.first[0]}", style="yellow", soft_wrap=True)
    if as_json:
        output.document(found)


def _check_usage(texts: Sequence[str] | None, file: str | None, for_files: Mapping[str, str | None]) -> None:
    if texts and file is not None:
        raise typer.BadParameter("give texts or --file, not both")
    if not texts and file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise typer.BadParameter("there is no text: give some, or --file, or lines on stdin")
    stray = next((option for option, value in for_files.items() if value is not None), None)
    if file is None and stray:
        raise typer.BadParameter(f"{stray} is for --file")


def _check_out(out: Path, file: str | None, resume: bool, from_stdin: bool) -> None:
    from inlay.cli import parts

    parts.check_out(out)
    if resume and from_stdin:
        raise RunError("stdin cannot be resumed: it may be another one; write the texts to a file and pass --file")
    if file is not None and out.exists() and os.path.exists(file) and out.samefile(file):
        raise RunError(f"--out {out} is the input; give it another name")


def _texts(
    texts: Sequence[str] | None,
    pair: str | None,
    file: str | None,
    format: str | None,
    encoding: str | None,
    given: Mapping[str, str],
    chosen: Mapping[str, Chosen],
    skip: bool,
) -> Texts:
    from inlay.cli.texts import of_arguments, of_file, of_lines, of_stdin

    tasks = {name: one.task for name, one in chosen.items()}
    about = {name: one.about for name, one in chosen.items()}
    if file is not None:
        return of_file(file, format, encoding, given, tasks, skip, about)
    return of_lines(of_arguments(texts) if texts else of_stdin(encoding), pair, tasks, about)


def _columns(chosen: Mapping[str, Chosen], asked: Texts) -> list[str]:
    """The columns of a table that these tasks need."""
    needed = {"task", "text"} | ({"pair"} if asked.paired else set())
    for one in chosen.values():
        needed |= set(COLUMNS.get(one.task.kind, ()))
    return [column for column in _ORDER if column in needed]


def _input(texts: Sequence[str] | None, file: str | None) -> dict[str, Any]:
    """What tells that an input is still the same."""
    if texts:
        return {"input": "texts", "its texts": texts}
    if file is None or file == "-":
        return {"input": "stdin"}
    found = os.stat(file)
    return {"input": os.path.abspath(file), "its bytes": found.st_size, "its time": found.st_mtime_ns}


def _command(chosen: Mapping[str, Chosen], options: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides what an output holds. Not which rows are bad: parts without one are the same either way."""
    adapters = [f"{name} {one.version} {one.sha256[:16]}" for name, one in chosen.items()]
    return {"adapters": adapters, **options, "inlay": __version__}


def _answers(host: Answering, rows: Sequence[Mapping[str, Example]], how: Mapping[str, Any]) -> list[Answer]:
    requests = [(name, example) for row in rows for name, example in row.items()]
    return host.predict(requests, **how) if requests else []


def _chunks(asked: Texts, size: int, bad: Bad) -> Iterator[list[Mapping[str, Example]]]:
    """The usable rows among every so many of the input."""
    rows = asked.rows(bad)
    while chunk := list(itertools.islice(rows, size)):
        yield [row for row in chunk if row is not None]


def _all(host: Answering, asked: Texts, size: int, how: Mapping[str, Any], bad: Bad) -> list[Answer]:
    found: list[Answer] = []
    with answers.progress() as advance:
        for chunk in _chunks(asked, size, bad):
            found += _answers(host, chunk, how)
            advance(len(chunk))
    return found


def _to_file(
    store: Parts, load: Callable[[], Answering], asked: Texts, size: int, how: Mapping[str, Any], bad: Bad
) -> dict[str, Any]:
    """Write all parts and join them; what is finished when something stops it is kept."""
    if (done := store.summary) is not None:
        store.remove()
        return done
    try:
        return _write(store, load(), asked, size, how, bad)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {_kept(store)}", err=True)
        raise typer.Exit(130) from None
    except InlayError as error:
        kept = f"; {_kept(store)}" + (" (--skip-bad-rows may be added)" if isinstance(error, DataError) else "")
        raise type(error)(f"{error}{kept if store.folder.exists() else ''}") from None


def _write(store: Parts, host: Answering, asked: Texts, size: int, how: Mapping[str, Any], bad: Bad) -> dict[str, Any]:
    began, rows, new, parts = time.perf_counter(), 0, 0, 0
    with answers.progress() as advance:
        for chunk in _chunks(asked, size, bad):
            if not store.has(parts):
                store.write(parts, _answers(host, chunk, how))
                new += len(chunk)
            parts, rows = parts + 1, rows + len(chunk)
            advance(len(chunk))
    seconds = time.perf_counter() - began
    found: dict[str, Any] = {"out": str(store.out), "rows": rows, "answers": rows * len(host.names)}
    found |= {"skipped": getattr(bad, "count", 0), "seconds": seconds, "rows_per_second": new / seconds}
    store.join(parts, found)
    return found


def _kept(store: Parts) -> str:
    """What is left of a command that stopped, and how to go on; without a finished part nothing is left."""
    finished, resumable = store.finished, store.command["input"] != "stdin"
    if not finished or not resumable:
        if store.folder.exists():
            store.remove()
        return "nothing is kept" + ("" if resumable else ", since stdin cannot be resumed")
    kept = "1 finished part is" if finished == 1 else f"{finished:,} finished parts are"
    return f"{kept} kept in {store.folder}: the same command with --resume goes on"
