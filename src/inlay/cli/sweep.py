"""`inlay sweep`: many settings of one task side by side, ranked by validation; stopped and called again, it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import option_checks, options, output, preflight, settings, train
from inlay.cli.help import DATA, METHOD, OUTPUT, RARE, TRAINING, argument
from inlay.cli.many_runs import ManyRuns, run_shown
from inlay.cli.option_groups import expand_groups
from inlay.cli.sweep_display import SweepProgress, show_plan, show_ranking
from inlay.library.names import check_name
from inlay.runs.run import data_name

if TYPE_CHECKING:
    from inlay.sweeps.api import Plan


@expand_groups(how=ManyRuns, given=settings.Settings())
def sweep(
    data: Annotated[str | None, argument("DATA", "A file, a folder with splits, or a hub dataset.")] = None,
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
    name: Annotated[
        str | None, options.name("The name of the sweep and of its winner.  [default: derived from DATA]")
    ] = None,
    best: Annotated[bool, OUTPUT.flag("--best", "Save the winner, or the ensemble, to the library.")] = False,
    *,
    how: ManyRuns,
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
    named = [settings.option(key) for key in (*given, *choices)]
    extra = [*(["--name"] if name is not None else []), *(["--grid"] if grid else []), *named]
    preflight.check_source(data, manifest, extra)
    from inlay.library.library import Library

    screen, kept, wrong = output.console(how.as_json), Library(how.library), preflight.Problems()
    values = preflight.read_grid(grid, wrong)
    if data is not None:
        wrong.check(preflight.check_run, {"data": data, **given})
        if given.get("teacher"):
            wrong.check(kept.find, given["teacher"])
    elif manifest is not None and not manifest.is_file():
        wrong.append(f"{manifest}: there is no such file")
    how.check(base, wrong)
    wrong.stop()
    preflight.check_specs(given.get("method"), given.get("task"))
    plan, runs, problems = _plan(data, name, manifest, values, given, choices)
    from inlay.sweeps.api import SweepRunner
    from inlay.sweeps.ray import read_engine

    called = check_name(runs.pop("name", None) or data_name(str(runs.get("data", ""))))
    space, more = plan.space(runs)
    preflight.Problems([*problems, *more]).stop()
    cluster, _ = read_engine(how.engine, how.address, how.workers)
    host = train.open_host(base, how.compile, how.weights, screen)
    preflight.Problems([*space.problems(host), *([] if cluster is None else cluster.problems(host))]).stop()
    with how.opened(kept.local / "sweeps" / f"{called}.sqlite") as (store, logs):
        runner = SweepRunner(host, plan, space, called, store, how.slots, logs, how.save_every, cluster, kept)
        show_plan(screen, runner)
        found = run_shown(runner, SweepProgress(screen, runner), screen, runner.run)
        if best and found.ranking:
            found = runner.put(found, kept)
    show_ranking(screen, found)
    how.finish(screen, found)
    if not found.ranking:
        raise typer.Exit(1)


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
