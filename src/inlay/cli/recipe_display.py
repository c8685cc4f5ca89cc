"""What people see of recipes: the list, one table of a paper, and their own numbers beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inlay.cli import output
from inlay.cli.compare_display import show_blocks
from inlay.cli.train_display import spent

if TYPE_CHECKING:
    from inlay.recipes.against import Against, Difference
    from inlay.recipes.recipe import Recipe
    from inlay.recipes.table_beside_paper import Line, TableBesidePaper

_NONE = "-"
_COUNTS = ("rows", "columns", "runs")


def show_recipes(screen: output.Console, recipes: Sequence[Recipe]) -> None:
    """A line for every recipe, paper by paper."""
    for paper in dict.fromkeys(recipe.paper for recipe in recipes):
        screen.print(paper, style="bold", soft_wrap=True)
        table = output.table("name", "what of it", "rows", "columns", "runs", right=_COUNTS, keep=["name", *_COUNTS])
        for recipe in (recipe for recipe in recipes if recipe.paper == paper):
            counts = (len(recipe.rows), len(recipe.columns), recipe.runs)
            table.add_row(recipe.name, recipe.table, *(f"{count:,}" for count in counts))
        screen.print(table)
        screen.print()
    screen.print("inlay recipe show NAME: settings and the paper's numbers", style="dim")


def show_recipe(screen: output.Console, recipe: Recipe) -> None:
    """The whole page of a recipe."""
    screen.print(f"{recipe.name}: {recipe.paper}, {recipe.table}", style="bold", soft_wrap=True)
    screen.print(f"{recipe.title}", soft_wrap=True)
    screen.print()
    names = [column.name for column in recipe.columns]
    _show_scores(screen, recipe, names)
    empty = [name for name in names if all(name not in row.scores for row in recipe.rows)]
    if empty:
        missing = "no score" if len(empty) == len(names) else f"no score of {', '.join(empty)}"
        screen.print(f"the text of the paper has {missing}", style="dim", soft_wrap=True)
    if recipe.average != "mean" and any(row.average is not None for row in recipe.rows):
        screen.print(f"the paper's average: {recipe.average}", style="dim", soft_wrap=True)
    screen.print(f"scored on {recipe.measured}", soft_wrap=True)
    spread = "standard error" if recipe.spread == "sem" else "standard deviation"
    reported = "the best of them by validation" if recipe.report == "best" else f"whose mean (± {spread})"
    seeds = "one seed" if recipe.seeds == 1 else f"{recipe.seeds} seeds, {reported} is reported"
    screen.print(f"base: {', '.join(recipe.bases)}; {seeds}; {recipe.runs:,} runs in all", soft_wrap=True)
    screen.print()
    _show_settings(screen, recipe)
    if recipe.protocol:
        screen.print(f"the paper's own: {_in_words(_ones(recipe.protocol))}", soft_wrap=True)
    for note in recipe.notes:
        screen.print(note, style="dim", soft_wrap=True)
    screen.print(f"\ninlay recipe run {recipe.name} FOLDER", style="dim")


def _show_scores(screen: output.Console, recipe: Recipe, names: Sequence[str]) -> None:
    """The paper's table, without columns that are empty; nothing if it has no number at all."""
    mean = [] if recipe.averages or len(names) == 1 else ["mean"]
    columns = ["row", "trained", "in all", *(f"{column.name}\n{column.metric}" for column in recipe.columns)]
    columns += [*mean, *(f"the paper's\n{name}" for name in recipe.groups)]
    lines = []
    for row in recipe.rows:
        cells = [_with_spread(row.scores.get(name), row.spreads.get(name), recipe.digits) for name in names]
        means = [*(row.mean(names) for _ in mean), *(row.printed(name) for name in recipe.groups)]
        printed = ["" if mean is None else _printed(mean, recipe.digits) for mean in means]
        lines.append([row.label, row.trained or "", row.total or "", *cells, *printed])
    filled = [i for i in range(1, len(columns)) if any(line[i].strip(_NONE) for line in lines)]
    if filled:
        lines = [[line[i] for i in (0, *filled)] for line in lines]
        show_blocks(screen, [columns[i] for i in (0, *filled)], lines, right=[columns[i] for i in filled])


def _show_settings(screen: output.Console, recipe: Recipe) -> None:
    """The settings of every row and dataset, and where the datasets are looked for."""
    screen.print(f"all: {_in_words({**_ones(recipe.settings), **recipe.grid})}", soft_wrap=True)
    screen.print("rows, by the names that --lines takes:")
    width = max(len(row.name) for row in recipe.rows)
    for row in recipe.rows:
        extras = {**({"base": row.base} if row.base else {}), **({} if row.shows == "score" else {"shows": row.shows})}
        described = _in_words({**_ones({**extras, **row.settings}), **row.grid})
        line = f"{row.label}: {', '.join(row.methods)}{f'; {described}' if described else ''}"
        screen.print(f"  {row.name:{width}}  {line}", soft_wrap=True)
    screen.print()
    table = output.table("dataset", "folder or file in FOLDER", "of its own", keep=["dataset"])
    for dataset in recipe.datasets:
        table.add_row(dataset.name, " or ".join(dataset.places), _in_words(_ones(dataset.settings)))
    screen.print(table)
    contents = "train, dev and, if you have it, test; rows of a single file are held out"
    contents = "train and dev; scores are for dev" if recipe.dev_is_test else contents
    source = recipe.datasets[0].source
    languages = f"train-{source}.tsv, dev-{source}.tsv, and test-CODE.tsv (or a folder CODE) for each language"
    contents = languages if recipe.datasets[0].languages else contents
    screen.print(f"a folder holds {contents}; formats are those of inlay train\n", soft_wrap=True)


def show_table_beside_paper(screen: output.Console, table: TableBesidePaper) -> None:
    """The table, what was chosen, and what differs from the paper."""
    recipe, digits = table.recipe, table.recipe.digits
    groups = list(dict.fromkeys(name for line in table.lines for name in line.averages))
    groups = groups if len(table.columns) > 1 else []
    total = [f"all {len(recipe.datasets)} tasks"] if any(line.row.total for line in table.lines) else []
    scored = [f"{column.name}\n{column.metric}" for column in table.columns]
    columns = ["paper | ours", "trained", *total, *scored, *groups]
    lines = []
    for line in table.lines:
        values = [line.row.label, _trained(line)]
        values += [f"{line.row.total or _NONE} | {_times(line.total)}"] if total else []
        for cell in (line.cells[column.name] for column in table.columns):
            paper = _with_spread(cell.paper, cell.paper_spread, digits)
            values.append(f"{paper} | {_with_spread(cell.ours, cell.spread, digits)}")
        for name in groups:
            theirs, ours = line.averages.get(name, (None, None))
            values.append(
                f"{_NONE if theirs is None else _printed(theirs, digits)} | {_with_spread(ours, None, digits)}"
            )
        lines.append(values)
    screen.print()
    show_blocks(screen, columns, lines, right=columns[1:])
    if table.against is not None and table.against.names:
        _show_against(screen, table, table.against)
    for line in table.lines:
        if chosen := _chosen(line):
            screen.print(f"{line.row.label}: {chosen}", style="dim", soft_wrap=True)
    for note in table.notes:
        screen.print(note, style="red", soft_wrap=True)
    spread = "standard error of the mean" if recipe.spread == "sem" else "standard deviation"
    about = f"; ± is the {spread} over seeds" if recipe.report == "mean" else ""
    screen.print(f"{spent(table.comparison.rows, table.comparison.store)}{about}", style="dim", soft_wrap=True)
    if table.differences:
        screen.print("\nnot as in the paper:")
    for text in table.differences:
        screen.print(f"- {text}", soft_wrap=True)
    if recipe.notes:
        screen.print("\nabout this recipe:", style="dim")
    for text in recipe.notes:
        screen.print(f"- {text}", style="dim", soft_wrap=True)


def _show_against(screen: output.Console, table: TableBesidePaper, against: Against) -> None:
    labels = {line.row.name: line.row.label for line in table.lines}
    lines = []
    for row, differences in against.differences.items():
        shown = {name: _with_interval(value, table.recipe.digits) for name, value in differences.items()}
        lines.append([labels[row], *(shown.get(name, _NONE) for name in against.names)])
    show_blocks(screen, [f"minus {labels[against.row]}", *against.names], lines, right=against.names)
    about = "means over seeds of the best setting, paired by seed, with 95 % intervals"
    screen.print(f"minus {labels[against.row]}: {about}", style="dim", soft_wrap=True)


def _with_interval(difference: Difference, digits: int) -> str:
    """`+1.9 [-0.2, +4.0]`."""
    if difference.low is None or difference.high is None:
        return f"{difference.mean:+.{digits}f} (one seed)"
    return f"{difference.mean:+.{digits}f} [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]"


def _chosen(line: Line) -> str:
    """What validation chose in each column; once, if it is the same everywhere."""
    from inlay.sweeps.values import short

    choices = {}
    for name, cell in line.cells.items():
        method = [cell.method] if cell.method and len(line.row.methods) > 1 else []
        setting = [f"{key}={short(value, key)}" for key, value in cell.setting.items() if key != "seed"]
        if method or setting:
            choices[name] = " ".join([*method, *setting])
    if len(choices) == len(line.cells) > 1 and len(set(choices.values())) == 1:
        return f"{next(iter(choices.values()))} everywhere"
    return ", ".join(f"{name} {text}" for name, text in choices.items())


def _trained(line: Line) -> str:
    """Parameters in the paper's unit."""
    from inlay.library.card_text import percent

    paper = line.row.trained or _NONE
    if paper.endswith("%"):
        return f"{paper} | {_NONE if line.share is None else percent(line.share).replace(' ', '')}"
    return f"{paper} | {_NONE if line.parameters is None else f'{line.parameters:,}'}"


def _times(value: float | None) -> str:
    from inlay.comparison.exports import times

    return _NONE if value is None else f"{times(value)}x"


def _with_spread(value: float | None, spread: float | None, digits: int) -> str:
    """`83.6 ± 0.3`."""
    if value is None:
        return _NONE
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {_printed(spread, digits)}")


def _printed(value: float, digits: int) -> str:
    """With as many digits as the table has, or as the paper prints."""
    from inlay.recipes.recipe import decimals

    needed = decimals(round(value, 2)) if abs(value - round(value, 2)) < 1e-9 else digits
    return f"{value:.{max(digits, needed)}f}"


def _ones(settings: Any) -> dict[str, tuple[Any, ...]]:
    return {key: (value,) for key, value in settings.items()}


def _in_words(values: Any) -> str:
    """`lr 3e-4, 3e-3; epochs 3`, as the paper writes them."""
    from inlay.recipes.plan import shown_values

    return "; ".join(f"{key} {shown_values(listed)}" for key, listed in values.items())
