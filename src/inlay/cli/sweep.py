"""`inlay sweep`: many settings of one task side by side, ranked by validation; stopped and called again, it goes on."""

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

    from inlay.engine.host import Host
    from inlay.sweeps.api import Plan, Work
    from inlay.sweeps.grid import Space
    from inlay.sweeps.ray import Cluster
    from inlay.sweeps.table import Sweep


def sweep(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="A file, a folder with splits, or a hub dataset.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="N", help="What the sweep, and its winner, is called.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Values of a setting, of the method, or of a method's option; may be given for several keys.",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="F", help="All this in a TOML file.")] = None,
    random: Annotated[int | None, typer.Option(metavar="N", help="Draw N combinations; KEY=LOW..HIGH.")] = None,
    search: Annotated[str | None, typer.Option(metavar="optuna", help="Let Optuna choose; KEY=LOW..HIGH.")] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", help="How many settings a search tries.")] = None,
    pruner: Annotated[
        str | None, typer.Option(metavar="P", help="median, hyperband or none.  [default: median]")
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="K", help="Seeds of every setting.  [default: 1]")] = None,
    select: Annotated[
        str | None, typer.Option(metavar="HOW", help="What wins: mean over seeds, or best run.  [default: mean]")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Put the winner into the library.")] = False,
    store: Annotated[
        Path | None, typer.Option(metavar="F", help="A SQLite file for results.  [default: in the library]")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget all results, and start over.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="F", help="Write a line per run.")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="F", help="Write the ranked table.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="F", help="Draw the metric (.png, .pdf, .svg).")] = None,
    task: settings.Task = None,
    method: settings.Method = None,
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
    """Train many settings of one task side by side, and rank them by validation."""
    given = settings.given(locals())
    choices = {"random": random, "search": search, "trials": trials, "pruner": pruner, "seeds": seeds, "select": select}
    screen = output.console(as_json)
    plan, runs, problems = _plan(data, name, file, grid or [], given, choices)
    from inlay.library.library import Library, check_name
    from inlay.sweeps.api import Work
    from inlay.sweeps.ray import read_engine
    from inlay.sweeps.store import Store, remove
    from inlay.training.run import data_name

    named = check_name(runs.pop("name", None) or data_name(str(runs.get("data", ""))))
    kept = Library(library)
    cluster, more = read_engine(engine, address, workers)
    problems += more
    host, space = _space(plan, runs, problems, cluster, lambda: train.open_host(base, compile, weights, screen))
    path = store or kept.local / "sweeps" / f"{named}.sqlite"
    if restart:
        remove(path)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(Store(path))
        logs = [stack.enter_context(contextlib.closing(one)) for one in train.open_logs(log or ())]
        work = Work(host, plan, space, named, opened, slots, logs, save_every, cluster)
        found = _run(work, screen)
        if best and found.ranking:
            found = work.put(found, kept)
    _finish(found, screen, csv, latex, plot, as_json)


def _plan(
    data: str | None,
    name: str | None,
    file: Path | None,
    grid: Sequence[str],
    given: dict[str, Any],
    choices: Mapping[str, Any],
) -> tuple[Plan, dict[str, Any], list[str]]:
    """What to try, the settings of all runs, and what is wrong so far."""
    from inlay.sweeps.api import Plan
    from inlay.sweeps.file import read_file
    from inlay.sweeps.grid import read_texts

    asked = {key: value for key, value in choices.items() if value is not None}
    if file is not None:
        extra = "DATA" if data is not None else "--name" if name is not None else "--grid" if grid else ""
        extra = extra or next((settings.option(key) for key in (*given, *asked)), "")
        if extra:
            raise typer.BadParameter(f"{extra} does not go with --file; write it there")
        return read_file(file)
    if data is None:
        raise typer.BadParameter("give DATA, or --file")
    values, problems = read_texts(grid)
    named = {} if name is None else {"name": name}
    return Plan(values, **asked), {"data": data, **named, **given}, problems


def _space(
    plan: Plan, runs: dict[str, Any], problems: list[str], cluster: Cluster | None, load: Any
) -> tuple[Host, Space]:
    """The base, and what can be tried on it; one error names everything that is wrong."""
    space, more = plan.space(runs)
    found = [*problems, *more]
    host = None
    try:
        host = load()
        found += space.problems(host) + ([] if cluster is None else cluster.problems(host))
    except InlayError as error:
        found.append(str(error))
    if found or host is None:
        raise RunError("; ".join(dict.fromkeys(found)))
    return host, space


def _run(work: Work, screen: Console) -> Sweep:
    from inlay.cli.sweeping import SweepProgress, show_plan

    show_plan(screen, work)
    try:
        with train.default_interrupt(), SweepProgress(screen, work) as progress:
            work.engine.callbacks = [progress, *work.engine.callbacks]
            return work.run()
    except KeyboardInterrupt as stopped:
        again = shlex.join(["inlay", *(a for a in sys.argv[1:] if a != "--restart")])
        screen.print(f"\nstopped; what is done is saved. To go on:\n  {again}", soft_wrap=True)
        raise typer.Exit(train.code_of(stopped)) from None


def _finish(
    found: Sweep, screen: Console, csv: Path | None, latex: Path | None, plot: Path | None, as_json: bool
) -> None:
    """The table, the files and the document."""
    from inlay.cli.sweeping import show_ranking

    show_ranking(screen, found)
    for path, write in ((csv, found.to_csv), (latex, found.to_latex), (plot, found.plot)):
        if path is not None:
            write(path)
            screen.print(f"written: {path}", style="dim", soft_wrap=True)
    if as_json:
        output.document(found.document())
    if not found.ranking:
        raise typer.Exit(1)
