"""`inlay.train`: one run or many, side by side, on one host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from inlay.base.load import Base
from inlay.engine.host import Host
from inlay.errors import InlayError, LibraryError, RunError
from inlay.library import card_text
from inlay.library.adapter import Adapter
from inlay.library.library import Entry, Library, check_name
from inlay.runs.members import members_of
from inlay.runs.prepare import Prepared
from inlay.runs.result import Result
from inlay.runs.run import Run, data_name
from inlay.runs.teacher import prepare_taught
from inlay.screen import Lines, console_or_lines
from inlay.tracking.events import Callback
from inlay.tracking.progress import Progress, show_data, show_end, show_runs
from inlay.training.checkpoint import Checkpoint
from inlay.training.ensemble import as_one, refuse
from inlay.training.job import Job
from inlay.training.loop import Loop
from inlay.training.parallel import ALONE, Ranks

if TYPE_CHECKING:
    from rich.console import Console


@overload
def train(
    host: Host,
    runs: Run,
    *,
    name: str | None = ...,
    slots: int | None = ...,
    callbacks: Sequence[Callback] = ...,
    checkpoint: str | os.PathLike[str] | None = ...,
    resume: bool = ...,
    save_every: float = ...,
    library: Library | None = ...,
    ranks: Ranks = ...,
    progress: bool = ...,
    ensemble: int | None = ...,
) -> Result: ...
@overload
def train(
    host: Host,
    runs: Sequence[Run],
    *,
    name: str | None = ...,
    slots: int | None = ...,
    callbacks: Sequence[Callback] = ...,
    checkpoint: str | os.PathLike[str] | None = ...,
    resume: bool = ...,
    save_every: float = ...,
    library: Library | None = ...,
    ranks: Ranks = ...,
    progress: bool = ...,
) -> list[Result]: ...
def train(
    host: Host,
    runs: Run | Sequence[Run],
    *,
    name: str | None = None,
    slots: int | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    save_every: float = 60.0,
    library: Library | None = None,
    ranks: Ranks = ALONE,
    progress: bool = True,
    ensemble: int | None = None,
) -> Result | list[Result]:
    """Train one run, or several side by side. A run with a name is loaded into the host when it is done.

    One run that fails raises. Of several, the others go on, and the result of the one that failed has its `problem`.

    Args:
        name: the name of a single run, instead of its own.
        slots: how many runs at once; by default as many as fit into memory.
        callbacks: called with every event (a dictionary): steps, evaluations, checkpoints.
        checkpoint: a folder to save to, every `save_every` seconds and when interrupted; removed at the end.
        resume: go on from that folder if it holds a checkpoint.
        library: where finished adapters are put, and where teachers are; without one, teachers are in the default one.
        ranks: the processes that share every batch (`parallel.joined`); callbacks and writing are the leader's alone.
        ensemble: train this many adapters that differ in seed and in the rows they leave out; they answer as one.
        progress: show on stderr what was guessed about the data, how far it is (on a terminal or in a notebook), and
            how it went.
    """
    single = isinstance(runs, Run)
    wanted = [runs] if isinstance(runs, Run) else list(runs)
    if name is not None:
        if not single:
            raise RunError("a name is for one run; give each of several runs its own")
        wanted = [wanted[0].model_copy(update={"name": check_name(name)})]
    _refuse_names(host, wanted)
    to_train = wanted
    if ensemble is not None:
        if not single:
            raise RunError("ensemble is for one run")
        to_train = members_of(wanted[0], ensemble, run_name(wanted[0], 0))
    place = None if checkpoint is None else Checkpoint(checkpoint)
    with place.alone() if place is not None and ranks.leads else nullcontext():
        problems: dict[int, str] = {}
        prepared: dict[int, Prepared] = {}
        for i, run in enumerate(to_train):
            try:
                prepared[i] = prepare_taught(run, host, library)
            except InlayError as error:
                if single:
                    raise
                problems[i] = str(error)
        if ensemble is not None:
            refuse(prepared[0].task)
        screen = console_or_lines() if progress and ranks.leads else None
        with _shown(screen, host, prepared, single) as shown:
            all_callbacks = (*callbacks, *shown)
            results = train_prepared(host, prepared, slots, all_callbacks, place, resume, save_every, single, ranks)
        results |= {i: failed(to_train[i], i, problem) for i, problem in problems.items()}
        if ensemble is not None:
            done = [results[i] for i in range(len(to_train))]
            results = {0: as_one(host, wanted[0], run_name(wanted[0], 0), done, list(prepared.values()))}
        for i, run in enumerate(wanted):
            if results[i].ok and library is not None and ranks.leads:
                results[i] = keep(results[i], library, host.base)
            if results[i].ok and run.name:
                host.load(results[i].adapter, run.name)
        if place is not None and ranks.leads:
            place.remove()
    if screen is not None:
        show_end(screen, [results[i] for i in range(len(wanted))])
    return results[0] if single else [results[i] for i in range(len(wanted))]


@contextmanager
def _shown(
    screen: Console | Lines | None, host: Host, prepared: Mapping[int, Prepared], single: bool
) -> Iterator[Sequence[Callback]]:
    """Say what will be trained, then show how far it is: the callbacks that do."""
    if screen is None or not prepared:
        yield ()
        return
    named = {run_name(data.run, i): data for i, data in prepared.items()}
    if single:
        show_data(screen, prepared[0], host)
    else:
        show_runs(screen, named)
    deciding = {name: data.metric for name, data in named.items()}
    with Progress(screen, len(prepared), deciding, evaluations=False) as shown:
        yield (shown,)


def train_prepared(
    host: Host,
    prepared: dict[int, Prepared],
    slots: int | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    resume: bool = False,
    save_every: float = 60.0,
    raise_first: bool = False,
    ranks: Ranks = ALONE,
) -> dict[int, Result]:
    """Train runs whose data is read already; results under the same numbers. The caller removes the checkpoint."""
    jobs = [Job(i, run_name(data.run, number), data) for i, (number, data) in enumerate(prepared.items())]
    if not jobs:
        return {}
    if checkpoint is not None and checkpoint.exists and not resume:
        raise RunError(f"{checkpoint.folder} holds an unfinished training; resume it, or remove the folder")
    loop = Loop(
        host,
        jobs,
        slots=slots,
        callbacks=callbacks if ranks.leads else (),
        checkpoint=checkpoint,
        save_every=save_every,
        isolate=not raise_first,
        ranks=ranks,
    )
    if resume and checkpoint is not None and checkpoint.exists:
        loop.resume()
    loop.run()
    results = dict(zip(prepared, (result_of(host, job, loop.adapters.get(job.index)) for job in jobs), strict=True))
    if raise_first and not results[next(iter(results))].ok:
        raise RunError(results[next(iter(results))].problem)
    return results


def keep(result: Result, library: Library, base: Base, half: bool = False) -> Result:
    """Put a result's adapter into a library, with the other facts of its card; in fp16 if `half`."""
    facts = card_facts(base, result.parameters, result.seconds)
    entry = library.put(result.adapter.to("float16") if half else result.adapter, **facts)
    before = _before(library, entry, result.metric)
    return replace(result, version=entry.version, library=library.root, before=before)


def _before(library: Library, entry: Entry, metric: str) -> dict[str, Any] | None:
    """The version before, on the rows that this one is measured on; None if it was not measured on them."""
    earlier = [version for version in library.versions(entry.name) if version < entry.version]
    try:
        old = library.find(f"{entry.name}@{earlier[-1]}").card if earlier else {}
    except LibraryError:  # removed a moment ago, or damaged
        return None
    for split in ("test", "validation"):
        rows = [card_text.section(card, "scored_on").get(split) for card in (old, entry.card)]
        values = [card_text.metrics(card).get(split, {}).get(metric) for card in (old, entry.card)]
        if rows[0] is not None and rows[0] == rows[1] and None not in values:
            return {"version": earlier[-1], "split": split, "value": values[0], "now": values[1]}
    return None


def card_facts(base: Base, parameters: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What a card should say beyond what the adapter itself knows."""
    return {
        "base_name": base.place,
        "base_parameters": base.sites.size,
        "parameters": dict(parameters),
        "seconds": round(seconds, 2),
    }


def run_name(run: Run, index: int) -> str:
    """A run's own name, or one made from its data."""
    if run.name:
        return run.name
    return f"{data_name(run.data)}-{index}" if isinstance(run.data, str) else f"run-{index}"


def _refuse_names(host: Host, runs: Sequence[Run]) -> None:
    names = [run.name for run in runs if run.name]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise RunError(f"two runs are named {twice!r}")
    taken = next((n for n in names if n in host), None)
    if taken is not None:
        raise RunError(f"an adapter named {taken!r} is already loaded; unload it, or choose another name")


def failed(run: Run, index: int, problem: str) -> Result:
    """The result of a run that could not begin."""
    return Result(run_name(run, index), run.method, run.config(), run.metric or "", problem=problem)


def result_of(host: Host, job: Job, adapter: Adapter | None) -> Result:
    """A run's result."""
    data = job.data
    method, sites = data.method, host.base.sites
    best: dict[str, Any] = adapter.about["best"] if adapter is not None else {"step": 0, "epoch": 0.0}
    head = 0 if adapter is None else sum(t.numel() for n, t in adapter.tensors.items() if n.startswith("head."))
    count = method.count(sites)
    return Result(
        name=job.name,
        method=method.spec,
        config=data.run.config(),
        metric=data.metric,
        metrics=(job.result or {}).get("metrics", {}),
        history=job.history,
        losses=job.losses,
        parameters={"adapter": count, "head": head, "share_of_base": count / sites.size},
        best_epoch=best["epoch"],
        best_step=best["step"],
        seconds=job.seconds,
        problem=job.problem,
        _adapter=adapter,
    )
