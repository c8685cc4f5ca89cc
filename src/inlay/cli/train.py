"""`inlay train`: from a file to an adapter in the library; or many, from a manifest."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, output, preflight, settings
from inlay.cli.help import DATA, METHOD, argument
from inlay.cli.option_groups import expand_groups
from inlay.cli.train_display import Progress, show_data, show_result, show_summary
from inlay.errors import InlayError, RunError
from inlay.runs.length import FEW_TO_VALIDATE
from inlay.runs.members import members_of
from inlay.runs.run import Run, data_name, make_run

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.library.library import Library
    from inlay.runs.prepare import Prepared
    from inlay.runs.result import Result
    from inlay.tracking.logs import Log
    from inlay.training.checkpoint import Checkpoint
    from inlay.training.parallel import Ranks


@expand_groups(run_settings=settings.Settings())
def train(
    data: Annotated[str | None, argument("DATA", "A file, a folder with splits, or a hub dataset.")] = None,
    manifest: Annotated[
        Path | None, DATA.option("FILE", "A TOML file that lists many tasks; replaces DATA and settings.")
    ] = None,
    base: options.Base = None,
    ensemble: Annotated[
        int | None,
        METHOD.option(
            "N",
            "Train N adapters that answer as one; each has its own seed and leaves out another part of the rows.",
            min=2,
        ),
    ] = None,
    slots: options.Slots = None,
    compile: options.Compile = None,
    weights: options.TrainWeights = None,
    resume: options.Resume = False,
    restart: options.Restart = False,
    save_every: options.SaveEvery = 60,
    name: Annotated[str | None, options.name("The adapter's name.  [default: derived from DATA]")] = None,
    library: options.Library = None,
    log: options.Log = None,
    half: options.Half = False,
    as_json: output.AsJson = False,
    *,
    run_settings: dict[str, Any],
) -> None:
    """Train an adapter on a file, or many side by side from a manifest.

    Examples:
        inlay train tickets.csv --name tickets --method houlsby:size=64 --ensemble 5
        inlay train --manifest tasks.toml --json
    """
    wrong = {
        "--ensemble cannot be combined with --manifest": ensemble is not None and manifest is not None,
        "--resume and --restart cannot be combined": resume and restart,
    }
    preflight.refuse(wrong)
    whole, folder = _runs(data, name, manifest, run_settings)
    runs = whole if ensemble is None else members_of(whole[0], ensemble, whole[0].name)
    from inlay.library.library import Library

    store = Library(library)
    preflight.check_base(base)
    preflight.check_logs(log)
    problems = _check(runs, store, many=manifest is not None)
    from inlay.training.api import failed, keep
    from inlay.training.checkpoint import Checkpoint
    from inlay.training.parallel import joined

    checkpoint = Checkpoint(store.local / "runs" / folder)
    with contextlib.ExitStack() as alone:
        with contextlib.ExitStack() as stack:
            ranks = stack.enter_context(joined())
            screen = output.console(as_json, quiet=not ranks.leads)
            if ranks.leads:
                alone.enter_context(checkpoint.alone())
            settle(checkpoint, resume, restart, screen)
            logs = stack.enter_context(open_logs(log if ranks.leads else None))
            host = open_host(base, compile, weights, screen)
            prepared = _prepare(runs, host, store, screen, problems, many=manifest is not None)
            if ensemble is not None:
                from inlay.training.ensemble import as_one, refuse, scored_rows

                refuse(prepared[0].task)
            results = train_shown(host, prepared, slots, checkpoint, resume, save_every, logs, screen, ranks)
        if not ranks.leads:
            raise typer.Exit(int(bool(problems) or not all(result.ok for result in results.values())))
        if ensemble is not None:
            every = list(prepared.values())
            results = {0: as_one(host, whole[0], folder, list(results.values()), every)}
            prepared = {0: scored_rows(every)}
        ended = [results[i] if i in results else failed(run, i, problems[i]) for i, run in enumerate(whole)]
        kept = [keep(result, store, host.base, half) if result.ok else result for result in ended]
        checkpoint.remove()
    if manifest is not None:
        show_summary(screen, kept, store.root, prepared)
    elif kept[0].ok:
        show_result(screen, kept[0], prepared[0])
    else:
        raise RunError(kept[0].problem)
    documents = [result.document() for result in kept]
    output.document(documents if manifest is not None else documents[0], as_json)
    if not all(result.ok for result in kept):
        raise typer.Exit(1)


def _runs(
    data: str | None, name: str | None, manifest: Path | None, run_settings: Mapping[str, Any]
) -> tuple[list[Run], str]:
    """The runs to train, and the name of their checkpoint."""
    others = [settings.option(key) for key in (*run_settings, *([] if name is None else ["name"]))]
    preflight.check_source(data, manifest, others, ", under [defaults]")
    if manifest is not None:
        from inlay.runs.manifest import read_manifest

        # two manifests of one name are two trainings
        return read_manifest(manifest), f"{manifest.stem}-{sha256(bytes(manifest.resolve())).hexdigest()[:8]}"
    name = name or data_name(str(data))
    return [make_run({"data": data, "name": name, **run_settings})], name


def _check(runs: Sequence[Run], store: Library, many: bool) -> dict[int, str]:
    """Run -> what is wrong with it, as far as that shows before a base is loaded."""
    from inlay.runs.inputs import check

    problems: dict[int, str] = {}
    for i, run in enumerate(runs):
        try:
            check(run)
            if run.teacher is not None:
                store.find(run.teacher)
        except InlayError as error:
            if not many:
                raise
            problems[i] = str(error)
    if not many:
        preflight.check_specs(runs[0].method, runs[0].task)
    return problems


def settle(checkpoint: Checkpoint, resume: bool, restart: bool, screen: output.Console) -> None:
    """Keep, remove or refuse a training that was stopped before its end."""
    if restart:
        checkpoint.remove()
    elif checkpoint.exists and not resume:
        raise RunError(
            "an earlier run with this name was interrupted; pass --resume to continue it, or --restart to start over"
        )
    if resume and not checkpoint.exists:
        screen.print("nothing to resume: starting from the beginning", style="yellow")


@contextlib.contextmanager
def open_logs(specs: Sequence[str] | None) -> Iterator[list[Log]]:
    """The logs of these specs."""
    from inlay.tracking.logs import make

    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(make(spec))) for spec in specs or ()]


def open_host(base: str | None, compile: bool | None, weights: str | None, screen: output.Console) -> Host:
    """Load the base, and show a line on it."""
    from inlay.engine.host import Host

    host = Host(base, compile=compile, weights=weights)
    dtype = str(host.base.dtype).removeprefix("torch.")
    where = host.base.device.type + ("" if dtype == "float32" else f", {host.base.form or dtype}")
    screen.print(f"base: {host.base.name}, {host.base.sites.size:,} parameters ({where})", soft_wrap=True)
    return host


def _prepare(
    runs: Sequence[Run], host: Host, store: Library, screen: output.Console, problems: dict[int, str], many: bool
) -> dict[int, Prepared]:
    """The runs that can be trained; what is wrong with the others goes to `problems`."""
    from inlay.runs.teacher import prepare_taught
    from inlay.tracking.progress import few_to_validate

    prepared: dict[int, Prepared] = {}
    for i, run in enumerate(runs):
        try:
            if i not in problems:
                prepared[i] = prepare_taught(run, host, store)
        except InlayError as error:
            if not many:
                raise
            problems[i] = str(error)
        if i in problems:
            screen.print(f"{run.name}: cannot be trained, see below", style="red")
        elif i and not many:
            continue  # the other members of an ensemble
        elif many:
            rows = f"{len(prepared[i].train.examples):,} rows"
            screen.print(f"{run.name}: {prepared[i].task.name}, {rows}, {prepared[i].method.spec}")
            for warning in prepared[i].warnings:
                screen.print(f"{run.name}: {warning}", style="yellow", soft_wrap=True)
        else:
            show_data(screen, prepared[i], host)
    few = [data.run.name for data in prepared.values() if few_to_validate(data)] if many else []
    if few:
        names = ", ".join(few[:5]) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
        note = f"Fewer than {FEW_TO_VALIDATE} validation rows, so scores may be far off: {names}"
        screen.print(note, style="yellow", soft_wrap=True)
    return prepared


def train_shown(
    host: Host,
    prepared: dict[int, Prepared],
    slots: int | None,
    checkpoint: Checkpoint,
    resume: bool,
    save_every: float,
    logs: Sequence[Log],
    screen: output.Console,
    ranks: Ranks,
) -> dict[int, Result]:
    """Train, and show progress; Ctrl-C saves, and says how to continue."""
    from inlay.training.api import train_prepared

    deciding = {data.run.name: data.metric for data in prepared.values()}
    try:
        with default_interrupt(), Progress(screen, len(prepared), deciding) as progress:
            return train_prepared(host, prepared, slots, [progress, *logs], checkpoint, resume, save_every, ranks=ranks)
    except KeyboardInterrupt as stopped:
        if checkpoint.exists:
            arguments = [a for a in sys.argv[1:] if a not in ("--resume", "--restart")]
            again = shlex.join(["inlay", *arguments, "--resume"])
            how = "" if ranks.size == 1 else f", started by torchrun with {ranks.size} processes again"
            screen.print(f"\nstopped; finished work is saved. To continue{how}:\n  {again}", soft_wrap=True)
        else:
            screen.print("\nstopped before anything could be saved")
        raise typer.Exit(code_of(stopped)) from None


def code_of(stopped: KeyboardInterrupt) -> int:
    """The exit code of a command that a signal has stopped: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (stopped.args[0] if stopped.args else signal.SIGINT)


@contextlib.contextmanager
def default_interrupt() -> Iterator[None]:
    """Put back Python's own handler of Ctrl-C: the loop replaces only that one, to finish the step and save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
