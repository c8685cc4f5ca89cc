"""`inlay predict`: the answers of one adapter or of several, from one pass over every text.

Without `--out` all answers are held in memory and shown at the end. With it they are written in parts of a fixed
number of rows (see `resumable_output.py`), so memory does not grow with the input. Batches are cut within a part: an
output does not depend on where a command was stopped and resumed. Parts are read, run and written side by side
(`pipeline.py`).
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import option_checks, options, output, predict_display, preflight, resumable_output
from inlay.cli.help import DATA, METHOD, OUTPUT, RARE, RUNNING, argument
from inlay.cli.named_adapters import (
    HostPredictor,
    NamedAdapter,
    Predictor,
    base_of,
    faster_weights,
    find_in_library,
    find_in_service,
    host_with,
    open_library,
)
from inlay.cli.pipeline import answer_all
from inlay.cli.predict_input import InputRow, of_arguments, of_file, of_lines, of_stdin
from inlay.cli.predict_job import ANSWERS, PredictJob
from inlay.data.folder import files_of
from inlay.errors import InlayError, RunError
from inlay.version import __version__

if TYPE_CHECKING:
    from inlay.cli.resumable_output import OutputParts
    from inlay.library.library import Entry, Library
    from inlay.tasks import Answer

_MUCH = 64 * 1024
"""Bytes of a file, a few hundred rows, from which packing the base's weights pays."""


def predict(
    names: Annotated[str, argument("NAMES", "One or several adapters: sms, or sms,topic@2.")],
    texts: Annotated[list[str] | None, argument("TEXT", "The texts.  [default: the lines of stdin]")] = None,
    file: Annotated[
        str | None, DATA.option("FILE", "A file of texts in any format; - reads lines or JSON lines from stdin.")
    ] = None,
    text: options.Text = None,
    pair: Annotated[
        str | None,
        DATA.option("TEXT|COLUMN", "The second text, or the context of a question; with --file, its column."),
    ] = None,
    label: Annotated[
        str | None, DATA.option("COLUMN", "The column with the labels, so that it is not mistaken for the text.")
    ] = None,
    keep: Annotated[
        str | None, DATA.option("COLUMNS", "Columns of --file to copy to the output: a,b or none.  [default: all]")
    ] = None,
    format: options.Format = None,
    encoding: options.Encoding = None,
    skip_bad_rows: options.SkipBadRows = False,
    base: options.TrainedBase = None,
    top_k: Annotated[int | None, METHOD.option("N", "Keep the N best scores.", min=1)] = None,
    threshold: Annotated[
        str | None,
        METHOD.option(
            "P",
            "Give no label below this score (abstain); uncertainty=P: if the members of an ensemble disagree more.",
            check=option_checks.threshold,
        ),
    ] = None,
    raw: Annotated[bool, METHOD.flag("--raw", "Give uncalibrated scores.")] = False,
    url: Annotated[
        str | None,
        RUNNING.option("URL", "Send the texts to a running service. INLAY_KEY holds its key, if it needs one."),
    ] = None,
    weights: options.PredictWeights = None,
    resume: Annotated[bool, RUNNING.flag("--resume", "Continue an unfinished --out.")] = False,
    out: Annotated[
        Path | None, OUTPUT.option("FILE", "Write the answers to FILE.jsonl, FILE.csv or FILE.parquet.")
    ] = None,
    overwrite: options.Overwrite = False,
    raw_csv: Annotated[
        bool, RARE.flag("--raw-csv", "Write CSV cells unchanged, even if a spreadsheet would run them as formulas.")
    ] = False,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Run one or several adapters on texts, and print their answers.

    Examples:
        inlay predict tickets,tone "the second box came broken"
        inlay predict tickets --file new.csv --text message --out answers.csv
    """
    named = {role: name for role, name in (("text", text), ("pair", pair), ("label", label)) if name is not None}
    for_files = {"--format": format, "--text": text, "--label": label, "--keep": keep}
    stray = next((option for option, value in for_files.items() if value is not None), None)
    no_stdin = not texts and file is None and (sys.stdin is None or sys.stdin.isatty())
    with_url = "--base, --weights and --library cannot be combined with --url: the service has its own"
    wrong = {
        "give texts or --file, not both": texts and file is not None,
        "no text: give one, pass --file, or pipe lines to stdin": no_stdin,
        f"{stray} needs --file": file is None and stray,
        with_url: url is not None and any(value is not None for value in (base, weights, library)),
        "--resume, --overwrite and --raw-csv need --out": out is None and (resume or overwrite or raw_csv),
    }
    preflight.refuse(wrong)
    files = [] if file is None or file == "-" else files_of(file)
    if out is not None:
        _check_out(out, files, resume, from_stdin=not texts and not files)
    limit = float(threshold) if threshold is not None and "=" not in threshold else threshold
    how = {"top_k": top_k, "threshold": limit, "raw": raw}
    before = (resumable_output.begun(out) if out is not None else None) or {}
    begun = before.get("adapters", ()) if resume else ()
    load: Callable[[], Predictor]
    if url is None:
        store = open_library(library)
        chosen = find_in_library(store, names, begun)
        entries = {name: adapter.entry for name, adapter in chosen.items() if adapter.entry is not None}
        base_of(base, list(entries.values()))
        load = functools.partial(_host, base, weights, store, entries, how, _is_much(texts, files, out))
    else:
        chosen, load = find_in_service(url, names, begun, how)
    _check_scores(top_k, limit, chosen)
    if file is not None:
        rows = of_file(file, format, encoding, named, chosen, _columns_of(keep))
    else:
        rows = of_lines(of_arguments(texts) if texts else of_stdin(encoding), pair, chosen)
    screen = output.console(as_json)
    for note in rows.notes:
        screen.print(note, style="dim", soft_wrap=True)
    for path in filter(os.path.isfile, texts or ()):
        note = f"{path!r} is taken as a text; --file {path} reads the file of this name"
        output.console(True).print(note, style="yellow", soft_wrap=True)
    size = resumable_output.size_of(before)
    job = PredictJob(rows, chosen, size, skip_bad_rows)
    answered: Any
    if out is None:
        answered = _all(load(), job)
        if not as_json:
            predict_display.show(screen, answered, len(chosen), top_k)
    else:
        adapters = [f"{name} {adapter.version} {adapter.sha256[:16]}" for name, adapter in chosen.items()]
        command = {"adapters": adapters, **_input(texts, file, files), "--format": format, "--encoding": encoding}
        command |= {f"--{role}": name for role, name in named.items()} | how | {resumable_output.SIZE: size}
        further = {"--weights": weights, "--keep": keep, "--raw-csv": raw_csv, "--skip-bad-rows": skip_bad_rows}
        command |= {option: value for option, value in further.items() if value} | {"inlay": __version__}
        parts = resumable_output.open_parts(
            out, job.columns(), command, resume=resume, overwrite=overwrite, raw=raw_csv
        )
        if resume and not parts.finished and parts.summary is None:
            typer.echo("nothing to resume: starting from the beginning", err=True)
        answered = _to_file(parts, load, job)
        predict_display.tell(screen, answered)
    predict_display.tell_bad(screen, job.bad, skip_bad_rows)
    output.document(answered, as_json)
    if job.bad.count and not job.answered:
        raise typer.Exit(1)


def _check_out(out: Path, files: Sequence[str], resume: bool, from_stdin: bool) -> None:
    resumable_output.check_out(out)
    if resume and from_stdin:
        raise RunError("stdin cannot be resumed, since it may have changed; write the texts to a file and pass --file")
    if out.exists() and any(os.path.exists(path) and out.samefile(path) for path in files):
        raise RunError(f"--out {out} is the input; give it another name")


def _check_scores(top_k: int | None, threshold: float | str | None, chosen: Mapping[str, NamedAdapter]) -> None:
    """Refuse --top-k for adapters without scores of labels, and a threshold that does not fit."""
    from inlay.engine.answer_options import AnswerOptions

    kinds = {name: adapter.kind for name, adapter in chosen.items()}
    without = [f"{name} ({kind})" for name, kind in kinds.items() if "scores" not in ANSWERS.get(kind, ())]
    if top_k is not None and without and ("qa" in kinds.values() or len(without) == len(chosen)):
        raise typer.BadParameter(f"--top-k needs scores of labels, which {', '.join(without)} cannot give")
    try:
        AnswerOptions(threshold=threshold).check(kinds)
    except InlayError as error:
        raise typer.BadParameter(f"--{error}") from None


def _columns_of(keep: str | None) -> list[str] | None:
    """The columns to keep; None for all of them."""
    if keep is None or keep == "all":
        return None
    return [] if keep == "none" else options.listed(keep)


def _input(texts: Sequence[str] | None, file: str | None, files: Sequence[str]) -> dict[str, Any]:
    """What shows that an input is still the same."""
    if texts:
        return {"input": "texts", "its texts": texts}
    if not files:
        return {"input": "stdin"}
    stats = [os.stat(path) for path in files]
    size, changed = sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)
    return {"input": os.path.abspath(str(file)), "its bytes": size, "its time": changed}


def _is_much(texts: Sequence[str] | None, files: Sequence[str], out: Path | None) -> bool:
    """Whether packing the base's weights pays: for a large file, and for stdin into a file."""
    if files:
        return sum(os.path.getsize(path) for path in files if os.path.isfile(path)) >= _MUCH
    return not texts and out is not None


def _host(
    base: str | None,
    weights: str | None,
    store: Library,
    entries: Mapping[str, Entry],
    how: Mapping[str, Any],
    much: bool,
) -> Predictor:
    """The adapters on their base; packed by default for much work on a CPU."""
    form = faster_weights(list(entries.values())) if weights is None and much else weights
    return HostPredictor(host_with(base, form, store, entries), how)


def _all(host: Predictor, job: PredictJob) -> list[Answer]:
    documents: list[Answer] = []
    with predict_display.progress() as advance:

        def finish(number: int, rows: Sequence[InputRow], answers: Sequence[Answer] | None) -> None:
            documents.extend(job.documents(rows, answers or ()))
            advance(len(rows))

        answer_all(host, job, finish)
    return documents


def _to_file(store: OutputParts, load: Callable[[], Predictor], job: PredictJob) -> dict[str, Any]:
    """Write all parts and join them; if something stops it, finished parts are kept."""
    if (done := store.summary) is not None:
        store.remove()
        return done
    try:
        return _write(store, load(), job)
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {_kept(store)}", err=True)
        raise typer.Exit(130) from None
    except InlayError as error:
        raise type(error)(f"{error}{f'; {_kept(store)}' if store.folder.exists() else ''}") from None


def _write(store: OutputParts, host: Predictor, job: PredictJob) -> dict[str, Any]:
    began, rows, new, parts = time.perf_counter(), 0, 0, 0
    table = store.out.suffix != ".jsonl"
    with predict_display.progress() as advance:

        def finish(number: int, part: Sequence[InputRow], answers: Sequence[Answer] | None) -> None:
            nonlocal rows, new, parts
            if answers is not None:
                store.write(number, job.lines(part, answers, table))
                new += len(part)
            rows, parts = rows + len(part), parts + 1
            advance(len(part))

        answer_all(host, job, finish, store.has)
    seconds = time.perf_counter() - began
    summary: dict[str, Any] = {"out": str(store.out), "rows": rows, "answers": rows * len(job.chosen)}
    bad = job.bad.count
    summary |= {"skipped": bad if job.skip else 0, "errors": 0 if job.skip else bad}
    summary |= {"seconds": seconds, "rows_per_second": new / seconds}
    store.join(parts, summary)
    return summary


def _kept(store: OutputParts) -> str:
    """What is saved of a command that stopped, and how to continue; nothing without a finished part."""
    finished, resumable = store.finished, store.command["input"] != "stdin"
    if not finished or not resumable:
        if store.folder.exists():
            store.remove()
        return "nothing is saved" + ("" if resumable else ", since stdin cannot be resumed")
    kept = "1 finished part is" if finished == 1 else f"{finished:,} finished parts are"
    return f"{kept} saved in {store.folder}; run the same command with --resume to continue"
