"""`inlay compare`: methods on equal terms, on one or several datasets, beside baselines that need no transformer."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import option_checks, options, output, preflight, settings, train
from inlay.cli.help import DATA, METHOD, OUTPUT, RARE
from inlay.cli.option_groups import expand_groups
from inlay.runs.run import data_name, make_run

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.comparison.plan import Part, Plan
    from inlay.comparison.runner import ComparisonRunner
    from inlay.comparison.table import Comparison
    from inlay.engine.host import Host
    from inlay.runs.run import Run
    from inlay.sweeps.ray import Cluster


@expand_groups(given=settings.Settings(without=("method", "teacher", "unlabelled")))
def compare(
    data: Annotated[
        list[str] | None, typer.Argument(metavar="DATA...", help="Files, folders with splits, or hub datasets.")
    ] = None,
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
    slots: options.Slots = None,
    compile: options.Compile = None,
    weights: options.Weights = None,
    restart: options.StartOver = False,
    save_every: options.SaveEvery = 60,
    engine: options.Engine = "local",
    address: options.Address = None,
    workers: options.Workers = None,
    name: Annotated[
        str | None, options.name("The name of the comparison.  [default: derived from the datasets]")
    ] = None,
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
    """Compare methods on equal terms: parameters, size, time and quality.

    Run it again to continue after an interruption.

    Examples:
        inlay compare tickets.csv --methods houlsby,adapterbias,finetune --seeds 3
        inlay compare tickets.csv reviews.tsv --grid lr=1e-3,3e-3 --csv table.csv
    """
    from inlay.library.library import Library
    from inlay.library.names import check_name

    screen, kept, wrong = output.console(as_json), Library(library), preflight.Problems()
    runs = _runs(data or [], manifest, given, wrong)
    named = check_name(name or "-".join(run.name or data_name(str(run.data)) for run in runs)[:100] or "comparison")
    values = preflight.read_grid(grid, wrong)
    wrong.check(preflight.check_base, base)
    wrong.check(preflight.check_engine, engine, address, workers)
    wrong.check(preflight.check_logs, log)
    wrong.check(preflight.check_writable, csv, latex, plot)
    wrong.check(_check_drawing, plot)
    wrong.stop()
    preflight.check_specs(task=given.get("task"))
    from inlay.cli.compare_display import show_plan
    from inlay.comparison.baselines import TRIALS
    from inlay.comparison.plan import METHODS, Plan
    from inlay.comparison.runner import ComparisonRunner
    from inlay.sweeps.ray import read_engine
    from inlay.sweeps.store import Store, remove

    trials = TRIALS if baseline_trials is None else baseline_trials
    plan = Plan(METHODS if methods is None else methods, values, seeds, task_count, baselines, trials)
    cluster, _ = read_engine(engine, address, workers)
    host, parts = _read(plan, runs, cluster, lambda: train.open_host(base, compile, weights, screen))
    path = store or kept.local / "comparisons" / f"{named}.sqlite"
    if restart:
        remove(path)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(Store(path))
        logs = [stack.enter_context(contextlib.closing(one)) for one in train.open_logs(log or ())]
        runner = ComparisonRunner(host, parts, plan, named, opened, slots, logs, save_every, cluster)
        show_plan(screen, runner)
        found = run(runner, screen)
    _finish(found, screen, {"csv": csv, "latex": latex, "plot": plot}, as_json)


def _runs(
    data: Sequence[str], manifest: Path | None, given: Mapping[str, Any], problems: preflight.Problems
) -> list[Run]:
    """A run for every dataset."""
    from inlay.runs.inputs import check
    from inlay.runs.manifest import read_manifest

    if manifest is not None:
        if data or given:
            extra = "DATA" if data else settings.option(next(iter(given)))
            raise typer.BadParameter(f"{extra} cannot be combined with --manifest; set it there, under [defaults]")
    elif not data:
        raise typer.BadParameter("give DATA or --manifest")
    for key in ("val", "test"):
        if key in given and len(data) > 1:
            raise typer.BadParameter(f"--{key} is for a single dataset; give folders with splits, or use --manifest")
    runs = [make_run({"data": one, **given}) for one in data] if manifest is None else read_manifest(manifest)
    for run in runs:
        problems.check(check, run)
    return runs


def _check_drawing(plot: Path | None) -> None:
    """Matplotlib is there now, and not only missed when everything is trained."""
    from inlay.drawing import plotting

    if plot is not None:
        plotting("matplotlib")


def _read(plan: Plan, runs: Sequence[Run], cluster: Cluster | None, load: Any) -> tuple[Host, list[Part]]:
    """The base and the datasets; one error names everything that is wrong."""
    from inlay.comparison.plan import read_parts

    problems = preflight.Problems([*plan.problems(), *(text for run in runs for text in plan.space(run)[1])])
    problems.stop()
    host = load()
    return host, read_parts(host, runs, plan, cluster)


def run(runner: ComparisonRunner, screen: Console, do: Callable[[], Comparison] | None = None) -> Comparison:
    """Run what has not been run, and show how far it has come; Ctrl-C says how to go on.

    Args:
        do: what runs it, if not `runner.run`.
    """
    from inlay.cli.compare_display import CompareProgress

    try:
        with train.default_interrupt(), CompareProgress(screen, runner) as progress:
            runner.engine.callbacks = [progress, *runner.engine.callbacks]
            return (do or runner.run)()
    except KeyboardInterrupt as stopped:
        again = shlex.join(["inlay", *(a for a in sys.argv[1:] if a != "--restart")])
        screen.print(f"\nstopped; finished work is saved. To continue:\n  {again}", soft_wrap=True)
        raise typer.Exit(train.code_of(stopped)) from None


def _finish(found: Comparison, screen: Console, files: Mapping[str, Path | None], as_json: bool) -> None:
    """The table, the files and the document."""
    from inlay.cli.compare_display import show_comparison

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
