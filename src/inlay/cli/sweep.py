"""`inlay sweep`: many settings of one task side by side, ranked by validation; it continues when run again."""

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


@expand_groups(how=ManyRuns, run_settings=settings.Settings())
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
    run_settings: dict[str, Any],
) -> None:
    """Train many settings of one task side by side, and rank them by validation score.

    Run it again to continue after an interruption.

    Examples:
        inlay sweep tickets.csv --grid lr=1e-3,3e-3 --grid method=houlsby:size=8,adapterbias --seeds 3 --ensemble 5
        inlay sweep tickets.csv --search optuna --trials 30 --grid lr=1e-4..1e-2 --best
    """
    choices: dict[str, Any] = {"random": random, "search": search, "trials": trials, "pruner": pruner, "seeds": seeds}
    choices |= {"select": select, "ensemble": ensemble, "report": report}
    choices = {key: value for key, value in choices.items() if value is not None}
    options_given = [settings.option(key) for key in (*run_settings, *choices)]
    extra = [*(["--name"] if name is not None else []), *(["--grid"] if grid else []), *options_given]
    preflight.check_source(data, manifest, extra)
    from inlay.library.library import Library

    screen, library, problems = output.console(how.as_json), Library(how.library), preflight.Problems()
    values = preflight.read_grid(grid, problems)
    if data is not None:
        problems.check(preflight.check_run, {"data": data, **run_settings})
        if run_settings.get("teacher"):
            problems.check(library.find, run_settings["teacher"])
    elif manifest is not None and not manifest.is_file():
        problems.append(f"{manifest}: there is no such file")
    how.check(base, problems)
    problems.stop()
    preflight.check_specs(run_settings.get("method"), run_settings.get("task"))
    plan, runs, plan_problems = _plan(data, name, manifest, values, run_settings, choices)
    from inlay.sweeps.api import SweepRunner
    from inlay.sweeps.ray import read_engine

    sweep_name = check_name(runs.pop("name", None) or data_name(str(runs.get("data", ""))))
    space, space_problems = plan.space(runs)
    preflight.Problems([*plan_problems, *space_problems]).stop()
    cluster, _ = read_engine(how.engine, how.address, how.workers)
    host = train.open_host(base, how.compile, how.weights, screen)
    preflight.Problems([*space.problems(host), *([] if cluster is None else cluster.problems(host))]).stop()
    with how.opened(library.local / "sweeps" / f"{sweep_name}.sqlite") as (store, logs):
        runner = SweepRunner(host, plan, space, sweep_name, store, how.slots, logs, how.save_every, cluster, library)
        show_plan(screen, runner)
        result = run_shown(runner, SweepProgress(screen, runner), screen, runner.run)
        if best and result.ranking:
            result = runner.put(result, library)
    show_ranking(screen, result)
    how.finish(screen, result)
    if not result.ranking:
        raise typer.Exit(1)


def _plan(
    data: str | None,
    name: str | None,
    manifest: Path | None,
    values: Mapping[str, str],
    run_settings: Mapping[str, Any],
    choices: Mapping[str, Any],
) -> tuple[Plan, dict[str, Any], list[str]]:
    """What to try, the settings of all runs, and what is wrong so far."""
    from inlay.sweeps.api import Plan
    from inlay.sweeps.sweep_file import read_file

    if manifest is not None:
        return read_file(manifest)
    named = {} if name is None else {"name": name}
    return Plan(values, **choices), {"data": data, **named, **run_settings}, []
