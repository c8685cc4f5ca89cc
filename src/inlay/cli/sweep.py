"""`inlay sweep`: many settings of one task side by side, ranked by validation; stopped and called again, it goes on."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import option_checks, options, output, preflight, settings, train
from inlay.cli.help import DATA, METHOD, OUTPUT, RARE, TRAINING
from inlay.cli.option_groups import expand_groups

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.engine.host import Host
    from inlay.sweeps.api import Plan, SweepRunner
    from inlay.sweeps.grid import Space
    from inlay.sweeps.ray import Cluster
    from inlay.sweeps.table import Sweep


@expand_groups(given=settings.Settings())
def sweep(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="A file, a folder with splits, or a hub dataset.")
    ] = None,
    manifest: Annotated[
        Path | None, DATA.option("FILE", "A TOML file that describes the sweep; replaces DATA and settings.")
    ] = None,
    base: options.Base = None,
    grid: options.Grid = None,
    random: Annotated[
        int | None, METHOD.option("N", "Draw N random combinations; --grid may have ranges, KEY=LOW..HIGH.", min=1)
    ] = None,
    search: Annotated[
        str | None,
        METHOD.option(
            "optuna",
            "Let Optuna choose; --grid may have ranges, KEY=LOW..HIGH.",
            check=option_checks.one_of("search", ("optuna",)),
        ),
    ] = None,
    trials: Annotated[int | None, METHOD.option("N", "How many settings a search tries.", min=1)] = None,
    pruner: Annotated[
        str | None,
        RARE.option(
            "PRUNER",
            "How a search stops bad runs: median, hyperband or none.  [default: median]",
            check=option_checks.one_of("pruner", ("median", "hyperband", "none")),
        ),
    ] = None,
    seeds: Annotated[int | None, TRAINING.option("N", "Train every setting with N seeds.  [default: 1]", min=1)] = None,
    select: Annotated[
        str | None,
        METHOD.option(
            "HOW",
            "How the winner is picked: mean (best mean over seeds), best (best single run), or careful (the lowest "
            "validation loss among the settings within one standard error of the best mean).  [default: careful]",
            check=option_checks.one_of("way to select", ("careful", "mean", "best")),
        ),
    ] = None,
    ensemble: Annotated[
        int | None,
        METHOD.option(
            "N",
            "Choose N runs, with repetition, that answer best together; all runs then hold out the same rows.",
            min=2,
        ),
    ] = None,
    report: Annotated[
        str | None,
        OUTPUT.option(
            "METRIC",
            "A metric to show beside the one that decides (--metric).  [default: none]",
            check=option_checks.metric,
        ),
    ] = None,
    slots: options.Slots = None,
    compile: options.Compile = None,
    weights: options.Weights = None,
    restart: options.StartOver = False,
    save_every: options.SaveEvery = 60,
    engine: options.Engine = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    name: Annotated[
        str | None, options.name("The name of the sweep and of its winner.  [default: derived from DATA]")
    ] = None,
    best: Annotated[bool, OUTPUT.flag("--best", "Save the winner, or the ensemble, to the library.")] = False,
    library: options.Library = None,
    store: options.Store = None,
    csv: options.Csv = None,
    latex: options.Latex = None,
    plot: options.Plot = None,
    log: options.Log = None,
    as_json: output.AsJson = False,
    *,
    given: dict[str, Any],
) -> None:
    """Train many settings of one task side by side, and rank them by validation score.

    Run it again to continue after an interruption.

    Examples:
        inlay sweep tickets.csv --grid lr=1e-3,3e-3 --grid method=houlsby:size=8,adapterbias --seeds 3 --ensemble 5
        inlay sweep tickets.csv --search optuna --trials 30 --grid lr=1e-4..1e-2 --best
    """
    asked: dict[str, Any] = {"random": random, "search": search, "trials": trials, "pruner": pruner, "seeds": seeds}
    asked |= {"select": select, "ensemble": ensemble, "report": report}
    choices = {key: value for key, value in asked.items() if value is not None}
    _check_usage(data, name, manifest, grid or [], given, choices)
    from inlay.library.library import Library
    from inlay.library.names import check_name

    screen, kept, wrong = output.console(as_json), Library(library), preflight.Problems()
    values = preflight.read_grid(grid, wrong)
    if data is not None:
        wrong.check(preflight.check_run, {"data": data, **given})
        if given.get("teacher"):
            wrong.check(kept.find, given["teacher"])
    elif manifest is not None and not manifest.is_file():
        wrong.append(f"{manifest}: there is no such file")
    wrong.check(preflight.check_base, base)
    wrong.check(preflight.check_engine, engine, address, workers)
    wrong.check(preflight.check_logs, log)
    wrong.check(preflight.check_writable, csv, latex, plot)
    wrong.stop()
    preflight.check_specs(given.get("method"), given.get("task"))
    plan, runs, problems = _plan(data, name, manifest, values, given, choices)
    from inlay.runs.run import data_name
    from inlay.sweeps.api import SweepRunner
    from inlay.sweeps.ray import read_engine
    from inlay.sweeps.store import Store, remove

    named = check_name(runs.pop("name", None) or data_name(str(runs.get("data", ""))))
    cluster, _ = read_engine(engine, address, workers)
    host, space = _space(plan, runs, problems, cluster, lambda: train.open_host(base, compile, weights, screen))
    path = store or kept.local / "sweeps" / f"{named}.sqlite"
    if restart:
        remove(path)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(Store(path))
        logs = [stack.enter_context(contextlib.closing(one)) for one in train.open_logs(log or ())]
        runner = SweepRunner(host, plan, space, named, opened, slots, logs, save_every, cluster, kept)
        found = _run(runner, screen)
        if best and found.ranking:
            found = runner.put(found, kept)
    _finish(found, screen, csv, latex, plot, as_json)


def _check_usage(
    data: str | None,
    name: str | None,
    manifest: Path | None,
    grid: Sequence[str],
    given: Mapping[str, Any],
    choices: Mapping[str, Any],
) -> None:
    if manifest is None and data is None:
        raise typer.BadParameter("give DATA or --manifest")
    if manifest is not None:
        extra = "DATA" if data is not None else "--name" if name is not None else "--grid" if grid else ""
        extra = extra or next((settings.option(key) for key in (*given, *choices)), "")
        if extra:
            raise typer.BadParameter(f"{extra} cannot be combined with --manifest; set it there")


def _plan(
    data: str | None,
    name: str | None,
    manifest: Path | None,
    values: Mapping[str, str],
    given: Mapping[str, Any],
    choices: Mapping[str, Any],
) -> tuple[Plan, dict[str, Any], list[str]]:
    """What to try, the settings of all runs, and what is wrong so far."""
    from inlay.sweeps.api import Plan
    from inlay.sweeps.sweep_file import read_file

    if manifest is not None:
        return read_file(manifest)
    named = {} if name is None else {"name": name}
    return Plan(values, **choices), {"data": data, **named, **given}, []


def _space(
    plan: Plan, runs: dict[str, Any], problems: Sequence[str], cluster: Cluster | None, load: Any
) -> tuple[Host, Space]:
    """The base, and what can be tried on it; one error names everything that is wrong."""
    space, more = plan.space(runs)
    preflight.Problems([*problems, *more]).stop()
    host = load()
    preflight.Problems([*space.problems(host), *([] if cluster is None else cluster.problems(host))]).stop()
    return host, space


def _run(runner: SweepRunner, screen: Console) -> Sweep:
    from inlay.cli.sweep_display import SweepProgress, show_plan

    show_plan(screen, runner)
    try:
        with train.default_interrupt(), SweepProgress(screen, runner) as progress:
            runner.engine.callbacks = [progress, *runner.engine.callbacks]
            return runner.run()
    except KeyboardInterrupt as stopped:
        again = shlex.join(["inlay", *(a for a in sys.argv[1:] if a != "--restart")])
        screen.print(f"\nstopped; finished work is saved. To continue:\n  {again}", soft_wrap=True)
        raise typer.Exit(train.code_of(stopped)) from None


def _finish(
    found: Sweep, screen: Console, csv: Path | None, latex: Path | None, plot: Path | None, as_json: bool
) -> None:
    """The table, the files and the document."""
    from inlay.cli.sweep_display import show_ranking

    show_ranking(screen, found)
    for path, write in ((csv, found.to_csv), (latex, found.to_latex), (plot, found.plot)):
        if path is not None:
            write(path)
            screen.print(f"written: {path}", style="dim", soft_wrap=True)
    if as_json:
        output.document(found.document())
    if not found.ranking:
        raise typer.Exit(1)
