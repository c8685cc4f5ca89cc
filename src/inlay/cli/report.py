"""`inlay report`: one adapter, or two side by side, as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import eval_data, options, output
from inlay.cli.help import DATA, OUTPUT
from inlay.errors import DataError, InlayError

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.analysis.report.report import Report, Rows
    from inlay.engine.host import Host
    from inlay.library.library import Entry
    from inlay.tasks import Example


def report(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME [DATA]",
            help="An adapter (two with --compare), and a labelled file or folder to measure on.",
        ),
    ],
    compare: Annotated[bool, options.option(DATA, "--compare", None, "Compare two adapters: A B [DATA].")] = False,
    split: options.Split = None,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    base: options.TrainedBase = None,
    weights: options.Weights = None,
    out: Annotated[
        Path | None, options.option(OUTPUT, "--out", "FILE", "The HTML file.  [default: NAME-report.html]")
    ] = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Write an HTML report on an adapter: its card, training, mistakes, calibration, layers, and how to use it.

    Examples:
        inlay report tickets
        inlay report --compare tickets@1 tickets@2 new-tickets.csv --out tickets.html
    """
    count = 2 if compare else 1
    if not count <= len(names) <= count + 1:
        raise typer.BadParameter("expected A B [DATA]" if compare else "expected NAME [DATA]; two adapters: --compare")
    data = names[count] if len(names) > count else None
    screen = output.console(as_json)
    which = {"split": split, "rows": rows, "seed": seed}
    place = {"library": library, "base": base, "weights": weights}
    eval_data.check(names[:count], library, base, data, split, needs_rows=False)
    made = _two(names[:2], data, screen, which, place) if compare else _one(names[0], data, screen, which, place)
    stem = "-".join(name.replace("@", "-") for name in names[:count])
    path = made.write(out or Path(f"{stem}-report.html"))
    _tell(made, path, screen)
    if as_json:
        output.document({**made.numbers, "file": str(path)})


def _one(name: str, data: str | None, screen: Console, which: Any, place: Any) -> Report:
    from inlay.library.library import Library

    host, adapter, entry = eval_data.open_adapter(name, **place)
    rows, reason = _rows(host, name, entry, data, screen, which)
    why = "" if rows is not None else f"Sections that need labelled rows are left out: {reason}"
    if why:
        screen.print(why, style="yellow", soft_wrap=True)
    store = Library(place["library"])
    named = store.aliases(entry.name, skip_damaged=True)
    versions = {v: [alias for alias in sorted(named) if named[alias] == v] for v in store.versions(entry.name)}
    from inlay.analysis.report.report import report as make

    return make(host, name, adapter, entry, rows, why=why, versions=versions, library=place["library"])


def _two(names: list[str], data: str | None, screen: Console, which: Any, place: Any) -> Report:
    from inlay.analysis.report.compare import Subject
    from inlay.analysis.report.compare import compare as make
    from inlay.library.library import Library

    if names[0] == names[1]:
        raise typer.BadParameter(f"{names[0]} is given twice; name two adapters, or two versions of one")
    store = Library(place["library"])
    same = len({store.find(name).card["base"].partition("+")[0] for name in names}) == 1
    host, _, entry = eval_data.open_adapter(names[0], **place)
    other, _, second = eval_data.open_adapter(names[1], **place, host=host if same else None)
    rows, reason = _rows(host, names[0], entry, data, screen, which)
    if rows is None:
        raise InlayError(f"a comparison needs labelled rows: {reason}")
    return make(Subject(host, names[0], entry), Subject(other, names[1], second), rows)


def _rows(
    host: Host, name: str, entry: Entry, data: str | None, screen: Console, which: Any
) -> tuple[Rows | None, str]:
    """What to measure on: DATA, else what the adapter was tested or validated on; or why there is nothing."""
    from inlay.analysis.report.report import Rows

    if entry.card["head"] is None:
        return None, f"{name} has no head, so it has no answers"
    if data is not None:
        where, examples = eval_data.read_labelled(host, name, entry, data, screen, **which)
        return Rows(where, examples), ""
    try:
        where, examples, chosen_by = _own_rows(host, entry, **which)
    except InlayError as error:
        return None, str(error)
    return Rows(where, examples, chosen_by), ""


def _own_rows(
    host: Host, entry: Entry, split: str | None, rows: int | None, seed: int
) -> tuple[str, list[Example], bool]:
    """The rows that an adapter was tested on, else those it was validated on, if its data has not changed since."""
    from inlay.data.split import take
    from inlay.library.card_text import data_name, trained_on

    config = dict(trained_on(entry.card))
    if not config.get("data") or str(config["data"]).endswith("rows given as objects"):
        raise DataError(f"the card of {entry.name} names no file of rows; pass DATA")
    parts = eval_data.own_parts(host, entry)
    chosen = split or ("test" if "test" in parts else "validation")
    examples = eval_data.part_of(entry, parts, chosen)
    if rows is not None and rows < len(examples):
        examples = [examples[i] for i in take(len(examples), rows, seed)]
    own = {"validation": config.get("val"), "test": config.get("test")}.get(chosen)
    file = data_name({"config": {"data": own}}) if own else data_name(entry.card)
    return f"the {chosen} rows of {file}", examples, chosen == "validation"


def _tell(made: Report, path: Path, screen: Console) -> None:
    numbers = made.numbers
    rows = f"{numbers['rows']['from']}, {numbers['rows']['count']:,} rows" if numbers.get("rows") else ""
    if verdict := numbers.get("verdict"):
        screen.print(f"both on {rows}\n{verdict}", soft_wrap=True)
    elif rows:
        metrics = ", ".join(f"{key} {value:.4f}" for key, value in numbers["metrics"].items())
        screen.print(f"{rows}: {metrics}", soft_wrap=True)
    screen.print(f"written: {path}", style="dim", soft_wrap=True)
