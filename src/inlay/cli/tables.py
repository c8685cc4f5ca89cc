"""What people see of recipes: the list, one table of a paper, and their own numbers beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inlay.cli import output
from inlay.cli.progress import clock

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.recipes.beside import Beside, Line
    from inlay.recipes.recipe import Recipe

_NONE = "-"


def show_recipes(screen: Console, recipes: Sequence[Recipe]) -> None:
    """A line for every recipe."""
    columns = ["name", "paper", "datasets", "methods", "runs"]
    table = output.table(*columns, right=["runs"], keep=["name", "datasets", "methods"])
    for recipe in recipes:
        methods = list(dict.fromkeys(spec.partition(":")[0] for row in recipe.rows for spec in row.methods))
        datasets = output.fold([one.name for one in recipe.datasets], 22)
        paper = f"{recipe.paper.partition(',')[0]}, {recipe.table}"
        table.add_row(recipe.name, paper, datasets, "\n".join(methods), f"{recipe.runs:,}")
    screen.print(table)
    screen.print("\ninlay recipe show NAME: settings and the paper's numbers", style="dim")


def show_recipe(screen: Console, recipe: Recipe) -> None:
    """All of it."""
    screen.print(f"{recipe.name}: {recipe.paper}, {recipe.table}", style="bold", soft_wrap=True)
    screen.print(f"{recipe.title}", soft_wrap=True)
    screen.print()
    names = [one.name for one in recipe.datasets]
    columns = ["row", "trained", *(f"{one.name}\n{one.metric}" for one in recipe.datasets), "mean", "the paper's"]
    lines = []
    for row in recipe.rows:
        scores = [*(row.scores.get(name) for name in names), row.mean(names), row.average]
        lines.append([row.label, row.trained or "", *("" if score is None else _score(score) for score in scores)])
    filled = [i for i in range(len(columns)) if any(line[i] for line in lines)]
    columns = [columns[i] for i in filled]
    _print(screen, columns, [[line[i] for i in filled] for line in lines])
    if recipe.average != "mean" and "the paper's" in columns:
        screen.print(f"the paper's: {recipe.average}", style="dim", soft_wrap=True)
    screen.print(f"scored on {recipe.measured}", soft_wrap=True)
    of = "the best of them by validation" if recipe.report == "best" else "whose mean"
    seeds = "one seed" if recipe.seeds == 1 else f"{recipe.seeds} seeds, {of} is reported"
    screen.print(f"base: {recipe.base}; {seeds}; {recipe.runs:,} runs in all", soft_wrap=True)
    screen.print()
    _show_settings(screen, recipe)
    for note in recipe.notes:
        screen.print(note, style="dim", soft_wrap=True)
    screen.print(f"\ninlay recipe run {recipe.name} FOLDER", style="dim")


def _show_settings(screen: Console, recipe: Recipe) -> None:
    """What every row and dataset is run with; and where the datasets are looked for."""
    screen.print(f"all: {_told({**_ones(recipe.settings), **recipe.grid})}", soft_wrap=True)
    rows = output.table("row", "name", "methods", "of its own", keep=["row", "name", "methods"])
    for row in recipe.rows:
        rows.add_row(row.label, row.name, "\n".join(row.methods), _told({**_ones(row.settings), **row.grid}))
    screen.print(rows)
    screen.print()
    table = output.table("dataset", "folder or file in FOLDER", "of its own", keep=["dataset"])
    for one in recipe.datasets:
        table.add_row(one.name, " or ".join(one.places), _told(_ones(one.settings)))
    screen.print(table)
    how = "train, dev and, if you have it, test; rows of a single file are held out"
    how = "train and dev; scores are for dev" if recipe.dev_is_test else how
    screen.print(f"a folder holds {how}; formats are those of inlay train\n", soft_wrap=True)


def show_beside(screen: Console, found: Beside) -> None:
    """The table, what was chosen, and what is not as the paper has it."""
    columns = ["paper | ours", "trained", *(f"{one.name}\n{one.metric}" for one in found.datasets)]
    columns += ["average"] if len(found.datasets) > 1 else []
    lines = []
    for line in found.lines:
        cells = [line.cells[one.name] for one in found.datasets]
        own = [_score(cell.ours) + ("" if cell.std is None else f" ± {cell.std:.1f}") for cell in cells]
        values = [f"{_score(cell.paper)} | {score}" for cell, score in zip(cells, own, strict=True)]
        values += [f"{_score(line.paper)} | {_score(line.ours)}"] if len(cells) > 1 else []
        lines.append([line.row.label, _trained(line), *values])
    screen.print()
    _print(screen, columns, lines)
    for line in found.lines:
        if len(line.row.methods) > 1:
            chosen = ", ".join(f"{name} {cell.method}" for name, cell in line.cells.items() if cell.method)
            screen.print(f"{line.row.label}: {chosen or 'nothing'}", style="dim", soft_wrap=True)
    for note in found.comparison.notes:
        screen.print(note, style="red", soft_wrap=True)
    rows = found.comparison.rows
    seconds, tokens = sum(row.seconds for row in rows), sum(row.tokens for row in rows)
    screen.print(f"{clock(seconds)} and {tokens:,} tokens of training; {found.comparison.store}", style="dim")
    if found.differences:
        screen.print("\nnot as in the paper:")
    for text in found.differences:
        screen.print(f"- {text}", soft_wrap=True)


def _print(screen: Console, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from inlay.cli.comparing import blocks

    for block in blocks(columns, lines, screen.width):
        table = output.table(*(columns[i] for i in block), right=columns[1:], keep=columns)
        for line in lines:
            table.add_row(*(line[i] for i in block))
        screen.print(table)
        screen.print()


def _trained(line: Line) -> str:
    """Parameters in the paper's unit."""
    from inlay.comparison.files import share

    paper = line.row.trained or _NONE
    if paper.endswith("%"):
        return f"{paper} | {_NONE if line.share is None else share(line.share).replace(' ', '')}"
    return f"{paper} | {_NONE if line.parameters is None else f'{line.parameters:,}'}"


def _score(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1f}"


def _ones(settings: Any) -> dict[str, tuple[Any, ...]]:
    return {key: (value,) for key, value in settings.items()}


def _told(values: Any) -> str:
    """`lr 0.0003, 0.003; epochs 3`, as the paper has them."""

    def one(value: Any) -> str:
        return (
            f"{value:g}" if isinstance(value, float) else str(value).lower() if value in (True, False) else str(value)
        )

    return "; ".join(f"{key} {', '.join(one(v) for v in listed)}" for key, listed in values.items())
