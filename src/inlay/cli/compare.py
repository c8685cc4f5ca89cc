"""`inlay compare`: methods on equal terms, on one or several datasets, beside baselines that need no transformer."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, output, settings, train
from inlay.errors import InlayError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.comparison.plan import Part, Plan
    from inlay.comparison.table import Comparison
    from inlay.comparison.work import Work
    from inlay.engine.host import Host
    from inlay.sweeps.ray import Cluster
    from inlay.training.run import Run


def compare(
    data: Annotated[
        list[str] | None, typer.Argument(metavar="DATA...", help="Files, folders with splits, or hub datasets.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC,SPEC",
            help="What to compare.  [default: frozen,norms,bitfit,adapterbias,lora,houlsby,finetune:top=1]",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="Values of a setting that every method tries; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="K", help="Seeds of every setting.")] = 3,
    tasks: Annotated[
        int | None, typer.Option(metavar="N", help="Add up parameters for N tasks.  [default: one per dataset]")
    ] = None,
    manifest: Annotated[
        Path | None, typer.Option(metavar="F", help="A TOML file of datasets that need settings of their own.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="N", help="What the comparison is called.  [default: its datasets]")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Also the commonest answer, and TF-IDF.")
    ] = True,
    baseline_trials: Annotated[
        int | None, typer.Option(metavar="N", help="Settings that Optuna tries for TF-IDF.  [default: 20]")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="F", help="A SQLite file for results.  [default: in the library]")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget all results, and start over.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="F", help="Write a line per method, dataset and seed.")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="F", help="Write the table.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="F", help="Draw quality against parameters (.png, .pdf, .svg).")
    ] = None,
    task: settings.Task = None,
    base: options.Base = None,
    head: settings.Head = None,
    pool: settings.Pool = None,
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    format: options.Format = None,
    encoding: options.Encoding = None,
    val: settings.Val = None,
    val_size: settings.ValSize = None,
    test: settings.Test = None,
    train_size: settings.TrainSize = None,
    plain: settings.Plain = False,
    lr: settings.Lr = None,
    epochs: settings.Epochs = None,
    max_steps: settings.MaxSteps = None,
    batch_size: settings.BatchSize = None,
    max_length: settings.MaxLength = None,
    long: settings.Long = None,
    warmup: settings.Warmup = None,
    weight_decay: settings.WeightDecay = None,
    decay: settings.Decay = None,
    clip: settings.Clip = None,
    no_dropout: settings.NoDropout = False,
    class_weights: settings.ClassWeights = False,
    eval_every: settings.EvalEvery = None,
    patience: settings.Patience = None,
    metric: settings.Metric = None,
    seed: settings.Seed = None,
    pretrain_on_text: settings.PretrainOnText = False,
    pretrain_epochs: settings.PretrainEpochs = None,
    skip_bad_rows: options.SkipBadRows = False,
    slots: settings.Slots = None,
    compile: settings.Compile = None,
    weights: options.Weights = None,
    save_every: settings.SaveEvery = 60.0,
    engine: options.Engine = "local",
    address: options.Address = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Ray workers.  [default: one per GPU, or per machine]")
    ] = None,
    log: settings.Log = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Compare methods on datasets with equal budgets: parameters, size, time, quality, and what to make of it."""
    given = settings.given(locals())
    screen = output.console(as_json)
    from inlay.cli.comparing import show_plan
    from inlay.comparison.baselines import TRIALS
    from inlay.comparison.plan import METHODS, Plan
    from inlay.comparison.work import Work
    from inlay.library.library import Library, check_name
    from inlay.sweeps.grid import read_texts
    from inlay.sweeps.ray import read_engine
    from inlay.sweeps.store import Store, remove
    from inlay.training.run import data_name

    runs, problems = _runs(data or [], manifest, given)
    values, more = read_texts(grid or [])
    trials = TRIALS if baseline_trials is None else baseline_trials
    plan = Plan(METHODS if methods is None else methods, values, seeds, tasks, baselines, trials)
    cluster, wrong = read_engine(engine, address, workers)
    problems += [*more, *wrong, *_cannot_draw(plot)]
    named = check_name(name or "-".join(run.name or data_name(str(run.data)) for run in runs)[:100] or "comparison")
    kept = Library(library)
    host, parts = _read(plan, runs, problems, cluster, lambda: train.open_host(base, compile, weights, screen))
    path = store or kept.local / "comparisons" / f"{named}.sqlite"
    if restart:
        remove(path)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(Store(path))
        logs = [stack.enter_context(contextlib.closing(one)) for one in train.open_logs(log or ())]
        work = Work(host, parts, plan, named, opened, slots, logs, save_every, cluster)
        show_plan(screen, work)
        found = run(work, screen)
    _finish(found, screen, {"csv": csv, "latex": latex, "plot": plot}, as_json)


def _runs(data: Sequence[str], manifest: Path | None, given: Mapping[str, Any]) -> tuple[list[Run], list[str]]:
    """A run for every dataset, and what is wrong so far."""
    from inlay.training.manifest import read_manifest
    from inlay.training.run import make_run

    if manifest is not None:
        if data or given:
            extra = "DATA" if data else settings.option(next(iter(given)))
            raise typer.BadParameter(f"{extra} does not go with --manifest; write it there, under [defaults]")
        return read_manifest(manifest), []
    if not data:
        raise typer.BadParameter("give DATA, or --manifest")
    for key in ("val", "test"):
        if key in given and len(data) > 1:
            raise typer.BadParameter(f"--{key} is for one dataset; give folders with splits, or --manifest")
    found, problems = [], []
    for one in data:
        try:
            found.append(make_run({"data": one, **given}))
        except InlayError as error:
            problems.append(str(error))
    return found, problems


def _cannot_draw(plot: Path | None) -> list[str]:
    from inlay.drawing import plotting

    try:
        if plot is not None:
            plotting("matplotlib")
    except InlayError as error:  # now, and not when everything is trained
        return [str(error)]
    return []


def _read(
    plan: Plan, runs: Sequence[Run], problems: list[str], cluster: Cluster | None, load: Any
) -> tuple[Host, list[Part]]:
    """The base and the datasets; one error names everything that is wrong."""
    from inlay.comparison.plan import read_parts

    parts: list[Part] = []
    host = None
    try:
        host = load()
        parts = read_parts(host, runs, plan, cluster) if runs else []
    except InlayError as error:
        problems = [*problems, str(error)]
        if host is None:  # what can be said without a base
            problems += [*plan.problems(), *(text for run in runs for text in plan.space(run)[1])]
    if problems or host is None:
        raise RunError("; ".join(dict.fromkeys(problems)))
    return host, parts


def run(work: Work, screen: Console) -> Comparison:
    """Run what has not been run, and show how far it has come; Ctrl-C says how to go on."""
    from inlay.cli.comparing import CompareProgress

    try:
        with train.default_interrupt(), CompareProgress(screen, work) as progress:
            work.engine.callbacks = [progress, *work.engine.callbacks]
            return work.run()
    except KeyboardInterrupt as stopped:
        again = shlex.join(["inlay", *(a for a in sys.argv[1:] if a != "--restart")])
        screen.print(f"\nstopped; what is done is saved. To go on:\n  {again}", soft_wrap=True)
        raise typer.Exit(train.code_of(stopped)) from None


def _finish(found: Comparison, screen: Console, files: Mapping[str, Path | None], as_json: bool) -> None:
    """The table, the files and the document."""
    from inlay.cli.comparing import show_comparison

    show_comparison(screen, found)
    writers = {"csv": found.to_csv, "latex": found.to_latex, "plot": found.plot}
    for kind, path in files.items():
        if path is not None:
            writers[kind](path)
            screen.print(f"written: {path}", style="dim", soft_wrap=True)
    if as_json:
        output.document(found.document())
    if all(line.is_baseline for line in found.lines):
        raise typer.Exit(1)
