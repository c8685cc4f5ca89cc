"""`inlay recipe`: the papers' tables, and one's own numbers beside theirs.

Listing and showing read TOML alone and never import torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import compare, options, output, settings, train
from inlay.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.comparison.work import Work
    from inlay.recipes.plan import Chosen

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The papers' tables: how they were made, and your numbers beside."
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="As inlay recipe list has it, or a TOML file of your own.")]


@app.command("list")
def list_(as_json: output.AsJson = False) -> None:
    """List the tables that can be repeated."""
    from inlay.cli.tables import show_recipes
    from inlay.recipes import find, names

    found = [find(name) for name in names()]
    show_recipes(output.console(as_json), found)
    if as_json:
        output.document([recipe.document() for recipe in found])


@app.command()
def show(name: Name, as_json: output.AsJson = False) -> None:
    """Show a table: the paper's numbers, settings, and the datasets it wants."""
    from inlay.cli.tables import show_recipe
    from inlay.recipes import find

    recipe = find(name)
    show_recipe(output.console(as_json), recipe)
    if as_json:
        output.document(recipe.document())


@app.command()
def run(
    name: Name,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Holds a folder or a file for every dataset.")],
    only: Annotated[str | None, typer.Option(metavar="A,B", help="These datasets alone.")] = None,
    rows: Annotated[str | None, typer.Option(metavar="A,B", help="These rows of the table alone.")] = None,
    base: options.Base = None,
    seeds: Annotated[int | None, typer.Option(min=1, metavar="K", help="Seeds.  [default: the paper's]")] = None,
    max_steps: settings.MaxSteps = None,
    train_size: settings.TrainSize = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Values of a setting in the place of the paper's; may be repeated."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="F", help="A SQLite file for results.  [default: in the library]")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget all results, and start over.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="F", help="Write a line per row and dataset.")] = None,
    slots: settings.Slots = None,
    compile: settings.Compile = None,
    save_every: settings.SaveEvery = 60.0,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Repeat a table on your base and data; called again, it goes on."""
    from inlay.cli.tables import show_beside
    from inlay.recipes import find

    screen = output.console(as_json)
    changes = {"only": _list(only), "rows": _list(rows), "seeds": seeds}
    chosen = _chosen(find(name), folder, {**changes, "max_steps": max_steps, "train_size": train_size}, grid or [])
    from inlay.library.library import Library
    from inlay.recipes.api import make_work
    from inlay.recipes.beside import put_beside
    from inlay.recipes.plan import read_all
    from inlay.sweeps.store import Store, remove

    host = train.open_host(base, compile, None, screen)
    parts = read_all(host, chosen)  # whatever is wrong is said before anything is written
    path = store or Library(library).local / "recipes" / f"{chosen.recipe.name}.sqlite"
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
    from inlay.sweeps.grid import read_texts

    values, problems = read_texts(grid)
    for key in sorted({"max_steps", "train_size"} & values.keys()):
        if changes[key] is not None:
            problems.append(f"{key} is given twice")
    if problems:
        raise RunError("; ".join(problems))
    return choose(recipe, folder, Changes(**changes, grid=values))


def _list(text: str | None) -> tuple[str, ...]:
    """Names with commas between them."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if text is not None and not names:
        raise typer.BadParameter("expected names with commas between them")
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
