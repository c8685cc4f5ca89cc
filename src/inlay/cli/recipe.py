"""`inlay recipe`: the papers' tables, and one's own numbers beside theirs.

Listing and showing read TOML alone and never import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import compare, early, options, output, settings, train
from inlay.cli.bundles import bundled
from inlay.cli.help import DATA, METHOD, App

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.comparison.work import Work
    from inlay.recipes.plan import Chosen

app = App("Reproduce the papers' tables on your data, next to the published numbers.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `inlay recipe list`, or your own TOML file.")]


@app.command("list")
def list_(as_json: output.AsJson = False) -> None:
    """List the tables that can be reproduced.

    Examples:
        inlay recipe list
        inlay recipe list --json
    """
    from inlay.cli.tables import show_recipes
    from inlay.recipes import find, names

    found = [find(name) for name in names()]
    show_recipes(output.console(as_json), found)
    if as_json:
        output.document([recipe.document() for recipe in found])


@app.command()
def show(name: Name, as_json: output.AsJson = False) -> None:
    """Show a table: the paper's numbers and settings, and the datasets it needs.

    Examples:
        inlay recipe show houlsby-glue
        inlay recipe show my-table.toml --json
    """
    from inlay.cli.tables import show_recipe
    from inlay.recipes import find

    recipe = find(name)
    show_recipe(output.console(as_json), recipe)
    if as_json:
        output.document(recipe.document())


@app.command()
@bundled(given=settings.Settings(only=("max_steps", "train_size")))
def run(
    name: Name,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder with a folder or file per dataset.")],
    only: Annotated[
        str | None, options.option(DATA, "--only", "A,B", "Use only these datasets.  [default: all that are there]")
    ] = None,
    lines: Annotated[
        str | None, options.option(DATA, "--lines", "A,B", "Run only these rows of the table.  [default: all]")
    ] = None,
    base: options.Base = None,
    grid: options.Grid = None,
    seeds: Annotated[
        int | None,
        options.option(METHOD, "--seeds", "N", "Train every setting with N seeds.  [default: the paper's]", min=1),
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
    given: dict[str, Any],
) -> None:
    """Reproduce a table with your base and data. Run it again to continue after an interruption.

    Examples:
        inlay recipe run houlsby-glue glue --only SST-2,MRPC --lines finetune,adapters-64
        inlay recipe run houlsby-glue glue --seeds 1 --max-steps 60 --csv table.csv
    """
    from inlay.cli.tables import show_beside
    from inlay.library.library import Library
    from inlay.recipes import find

    screen, kept = output.console(as_json), Library(library)
    early.check_base(base)
    early.check_writable(csv)
    changes = {"only": _list(only), "rows": _list(lines), "seeds": seeds, "max_steps": None, "train_size": None}
    chosen = _chosen(find(name), folder, {**changes, **given}, grid or [])
    from inlay.recipes.api import make_work
    from inlay.recipes.beside import put_beside
    from inlay.recipes.plan import read_all
    from inlay.sweeps.store import Store, remove

    host = train.open_host(base, compile, None, screen)
    parts = read_all(host, chosen)  # whatever is wrong is said before anything is written
    path = store or kept.local / "recipes" / f"{chosen.recipe.name}.sqlite"
    if restart:
        remove(path)
    with Store(path) as opened:
        work = make_work(host, chosen, parts, opened, slots, save_every=save_every)
        _show_plan(screen, chosen, work)
        found = put_beside(chosen, compare.run(work, screen), host.base.name)
    show_beside(screen, found)
    if csv is not None:
        found.to_csv(csv)
        screen.print(f"written: {csv}", style="dim", soft_wrap=True)
    if as_json:
        output.document(found.document())
    if all(cell.ours is None for line in found.lines for cell in line.cells.values()):
        raise typer.Exit(1)


def _chosen(recipe: Any, folder: str, changes: dict[str, Any], grid: list[str]) -> Chosen:
    from inlay.recipes.plan import Changes, choose

    problems = early.Problems()
    values = early.read_grid(grid, problems)
    problems += [f"{key} is given twice" for key in ("max_steps", "train_size") if key in values and changes[key]]
    problems.stop()
    return choose(recipe, folder, Changes(**changes, grid=values))


def _list(text: str | None) -> tuple[str, ...]:
    """Names separated by commas."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if text is not None and not names:
        raise typer.BadParameter("expected names separated by commas")
    return names


def _show_plan(screen: Console, chosen: Chosen, work: Work) -> None:
    """What will be run on what, and what is done already."""
    from inlay.cli.comparing import show_done, show_part

    for text in chosen.missing:
        screen.print(f"left out: {text}", style="yellow", soft_wrap=True)
    for one, part in zip(chosen.found, work.parts, strict=False):  # the first group has every dataset
        show_part(screen, part, one.dataset.name)
    counts = [(len(chosen.rows), "row"), (len(chosen.found), "dataset"), (chosen.seeds, "seed")]
    told = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
    screen.print(f"{chosen.recipe.name}: {work.runs} runs: {told}", soft_wrap=True)
    show_done(screen, work)
