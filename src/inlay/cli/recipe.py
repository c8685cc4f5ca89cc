"""`inlay recipe`: the papers' tables, and your own numbers beside theirs.

Listing and showing read TOML alone and never import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, output, preflight, settings, train
from inlay.cli.compare_display import CompareProgress, show_part
from inlay.cli.help import DATA, METHOD, RUNNING, App, argument
from inlay.cli.many_runs import open_store, run_shown
from inlay.cli.option_groups import expand_groups
from inlay.cli.recipe_display import show_recipe, show_recipes, show_table_beside_paper
from inlay.cli.train_display import show_done
from inlay.screen import counted

if TYPE_CHECKING:
    from inlay.comparison.runner import ComparisonRunner
    from inlay.recipes.plan import Chosen
    from inlay.recipes.recipe import Recipe

app = App("Reproduce the papers' tables on your data, next to the published numbers.")
Name = Annotated[str, argument("NAME", "A name from `inlay recipe list`, or your own TOML file.")]


@app.command("list")
def list_(as_json: output.AsJson = False) -> None:
    """List the tables that can be reproduced, by paper.

    Examples:
        inlay recipe list
        inlay recipe list --json
    """
    from inlay.recipes import find, names

    recipes = sorted((find(name) for name in names()), key=lambda recipe: recipe.paper)
    show_recipes(output.console(as_json), recipes)
    output.document([recipe.document() for recipe in recipes], as_json)


@app.command()
def show(name: Name, as_json: output.AsJson = False) -> None:
    """Show a table: the paper's numbers and settings, and the datasets it needs.

    Examples:
        inlay recipe show houlsby-glue
        inlay recipe show my-table.toml --json
    """
    from inlay.recipes import find

    recipe = find(name)
    show_recipe(output.console(as_json), recipe)
    output.document(recipe.document(), as_json)


@app.command()
@expand_groups(run_settings=settings.Settings(only=("max_steps", "train_size")))
def run(
    name: Name,
    folder: Annotated[str, argument("FOLDER", "A folder with a folder or file per dataset.")],
    only: Annotated[str | None, DATA.option("A,B", "Use only these datasets.  [default: all that are there]")] = None,
    lines: Annotated[str | None, DATA.option("A,B", "Run only these rows of the table.  [default: all]")] = None,
    against: Annotated[
        str | None, DATA.option("ROW", "Show how far the other rows are from this one, with 95 % intervals.")
    ] = None,
    base: options.Base = None,
    grid: options.Grid = None,
    tune: Annotated[
        str | None,
        METHOD.option(
            "lr[=A,B]",
            "Add a line to every row with the learning rate that validation picks, from equally many values per row.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, METHOD.option("N", "Train every setting with N seeds.  [default: the paper's]", min=1)
    ] = None,
    minutes: Annotated[
        float | None,
        RUNNING.option(
            "N", "Stop after N minutes and show what is done; 0 only shows it. Run again to continue.", min=0
        ),
    ] = None,
    slots: options.Slots = None,
    compile: options.Compile = None,
    restart: options.StartOver = False,
    save_every: options.SaveEvery = 60,
    library: options.Library = None,
    store: options.Store = None,
    csv: options.Csv = None,
    as_json: output.AsJson = False,
    *,
    run_settings: dict[str, Any],
) -> None:
    """Reproduce a table with your base and data. Run it again to continue after an interruption.

    Examples:
        inlay recipe run houlsby-glue glue --only SST-2,MRPC --lines finetune,adapters-64
        inlay recipe run he-glue-1k glue --tune lr --minutes 8 --against finetune
    """
    from inlay.library.library import Library
    from inlay.recipes import find

    screen, adapters = output.console(as_json), Library(library)
    preflight.check_base(base)
    preflight.check_writable(csv)
    changes = {"only": _list(only), "rows": _list(lines), "seeds": seeds, "max_steps": None, "train_size": None}
    arguments = (find(name), folder, {**changes, **run_settings}, grid or [], tune)
    planned = _chosen(*arguments, base)  # problems are reported before torch is imported
    if against is not None:
        planned.row(against)
    from inlay.recipes.api import make_runner, within
    from inlay.recipes.plan import fitted, read_all
    from inlay.recipes.table_beside_paper import put_beside_paper

    host = train.open_host(base, compile, None, screen)
    chosen = fitted(host, _chosen(*arguments, host.base.name))
    if against is not None:
        chosen.row(against)  # the base may be too small for it
    parts = read_all(host, chosen)  # problems are reported before anything is written
    path = store or adapters.local / "recipes" / f"{chosen.recipe.name}.sqlite"
    with open_store(path, restart) as opened:
        runner = make_runner(host, chosen, parts, opened, slots, save_every=save_every)
        _show_plan(screen, chosen, runner)
        progress = CompareProgress(screen, runner)
        ran = run_shown(runner, progress, screen, lambda: within(minutes, runner, runner.run))
        table = put_beside_paper(chosen, runner, ran, against)
    show_table_beside_paper(screen, table)
    if csv is not None:
        table.to_csv(csv)
        screen.print(f"written: {csv}", style="dim", soft_wrap=True)
    output.document(table.document(), as_json)
    if minutes is None and all(cell.ours is None for line in table.lines for cell in line.cells.values()):
        raise typer.Exit(1)


def _chosen(
    recipe: Recipe, folder: str, changes: dict[str, Any], grid: list[str], tune: str | None, base: str | None
) -> Chosen:
    from inlay.recipes.plan import Changes, choose

    problems = preflight.Problems()
    values = preflight.read_grid(grid, problems)
    problems += [f"{key} is given twice" for key in ("max_steps", "train_size") if key in values and changes[key]]
    tuned = _tuned(tune, problems)
    problems.stop()
    return choose(recipe, folder, Changes(**changes, grid=values, tune=tuned), base)


def _tuned(text: str | None, problems: preflight.Problems) -> dict[str, tuple[float, ...]]:
    """`lr`, or `lr=1e-4,1e-3`."""
    if text is None:
        return {}
    key, equals, values = text.partition("=")
    try:
        return {key.strip(): tuple(float(value) for value in values.split(",")) if equals else ()}
    except ValueError:
        problems.append(f"--tune {text!r} is not lr, or lr=1e-4,1e-3")
        return {}


def _list(text: str | None) -> tuple[str, ...]:
    """Names separated by commas."""
    names = tuple(options.listed(text or ""))
    if text is not None and not names:
        raise typer.BadParameter("expected names separated by commas")
    return names


def _show_plan(screen: output.Console, chosen: Chosen, runner: ComparisonRunner) -> None:
    """What will be run, on which datasets, and what is done already."""
    for text in (*chosen.missing, *chosen.unfit):
        screen.print(f"left out: {text}", style="yellow", soft_wrap=True)
    for located, part in zip(chosen.found, runner.parts, strict=False):  # the first group has every dataset
        show_part(screen, part, located.dataset.name, located.dataset.metric)
        if located.languages:
            names = ", ".join(column.name for column in chosen.columns)
            screen.print(f"  then scored in {names}", style="dim", soft_wrap=True)
    counts = [(len(chosen.rows), "row"), (len(chosen.found), "dataset"), (chosen.seeds, "seed")]
    summary = ", ".join(counted(count, noun) for count, noun in counts)
    screen.print(f"{chosen.recipe.name}: {counted(runner.runs, 'run')}: {summary}", soft_wrap=True)
    show_done(screen, runner.rows())
