"""`inlay compare`: methods on equal terms, on one or several datasets, beside baselines that need no transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import option_checks, options, output, preflight, settings, train
from inlay.cli.compare_display import CompareProgress, show_comparison, show_plan
from inlay.cli.help import DATA, METHOD, OUTPUT, RARE, argument
from inlay.cli.many_runs import ManyRuns, run_shown
from inlay.cli.option_groups import expand_groups
from inlay.library.names import check_name
from inlay.runs.run import data_name, make_run

if TYPE_CHECKING:
    from inlay.runs.run import Run


@expand_groups(how=ManyRuns, run_settings=settings.Settings(without=("method", "teacher", "unlabelled", "folds")))
def compare(
    data: Annotated[list[str] | None, argument("DATA...", "Files, folders with splits, or hub datasets.")] = None,
    manifest: Annotated[
        Path | None, DATA.option("FILE", "A TOML file that lists datasets, each with its own settings.")
    ] = None,
    methods: Annotated[
        str | None,
        METHOD.option(
            "SPEC,SPEC",
            "The methods to compare.  [default: frozen,norms,bitfit,adapterbias,lora,houlsby,finetune:top=1]",
            check=option_checks.methods,
        ),
    ] = None,
    base: options.Base = None,
    grid: options.Grid = None,
    seeds: Annotated[int, METHOD.option("N", "Train every setting with N seeds.", min=1)] = 3,
    baselines: Annotated[
        bool,
        METHOD.flag(
            "--baselines/--no-baselines",
            "Include two baselines: the most common answer and TF-IDF.  [default: yes]",
            show_default=False,
        ),
    ] = True,
    baseline_trials: Annotated[
        int | None, RARE.option("N", "How many settings Optuna tries for TF-IDF.  [default: 20]", min=1)
    ] = None,
    task_count: Annotated[
        int | None, OUTPUT.option("N", "Show total parameters for N tasks.  [default: one per dataset]", min=1)
    ] = None,
    name: Annotated[
        str | None, options.name("The name of the comparison.  [default: derived from the datasets]")
    ] = None,
    *,
    how: ManyRuns,
    run_settings: dict[str, Any],
) -> None:
    """Compare methods on equal terms: parameters, size, time and quality.

    Run it again to continue after an interruption.

    Examples:
        inlay compare tickets.csv --methods houlsby,adapterbias,finetune --seeds 3
        inlay compare tickets.csv reviews.tsv --grid lr=1e-3,3e-3 --csv table.csv
    """
    from inlay.library.library import Library

    screen, library, problems = output.console(how.as_json), Library(how.library), preflight.Problems()
    runs = _runs(data or [], manifest, run_settings, problems)
    name = check_name(name or "-".join(run.name or data_name(str(run.data)) for run in runs)[:100] or "comparison")
    values = preflight.read_grid(grid, problems)
    how.check(base, problems)
    problems.stop()
    preflight.check_specs(task=run_settings.get("task"))
    from inlay.comparison.baselines import TRIALS
    from inlay.comparison.plan import METHODS, Plan, read_parts
    from inlay.comparison.runner import ComparisonRunner
    from inlay.sweeps.ray import read_engine

    trials = TRIALS if baseline_trials is None else baseline_trials
    plan = Plan(METHODS if methods is None else methods, values, seeds, task_count, baselines, trials)
    preflight.Problems([*plan.problems(), *(text for run in runs for text in plan.space(run)[1])]).stop()
    cluster, _ = read_engine(how.engine, how.address, how.workers)
    host = train.open_host(base, how.compile, how.weights, screen)
    parts = read_parts(host, runs, plan, cluster)
    with how.opened(library.local / "comparisons" / f"{name}.sqlite") as (store, logs):
        runner = ComparisonRunner(host, parts, plan, name, store, how.slots, logs, how.save_every, cluster)
        show_plan(screen, runner)
        comparison = run_shown(runner, CompareProgress(screen, runner), screen, runner.run)
    show_comparison(screen, comparison)
    how.finish(screen, comparison)
    if all(line.is_baseline for line in comparison.lines):
        raise typer.Exit(1)


def _runs(
    data: Sequence[str], manifest: Path | None, run_settings: Mapping[str, Any], problems: preflight.Problems
) -> list[Run]:
    """A run for every dataset."""
    from inlay.runs.inputs import check
    from inlay.runs.manifest import read_manifest

    preflight.check_source(data, manifest, [settings.option(key) for key in run_settings], ", under [defaults]")
    for key in ("val", "test"):
        if key in run_settings and len(data) > 1:
            raise typer.BadParameter(f"--{key} is for a single dataset; give folders with splits, or use --manifest")
    runs = [make_run({"data": source, **run_settings}) for source in data]
    runs = runs if manifest is None else read_manifest(manifest)
    for run in runs:
        problems.check(check, run)
    return runs
