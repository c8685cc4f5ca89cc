"""`inlay report`: one adapter, or two side by side, as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inlay.cli import eval_data, options, output
from inlay.cli.help import DATA, OUTPUT, argument
from inlay.cli.named_adapters import host_with, open_library, versions_of
from inlay.errors import DataError, InlayError
from inlay.library.card_text import data_name, trained_on

if TYPE_CHECKING:
    from inlay.analysis.report.report import Report, Rows
    from inlay.engine.host import Host
    from inlay.library.library import Entry
    from inlay.tasks import Example


def report(
    names: Annotated[
        list[str],
        argument("NAME [DATA]", "An adapter (two with --compare), and a labelled file or folder to measure on."),
    ],
    compare: Annotated[bool, DATA.flag("--compare", "Compare two adapters: A B [DATA].")] = False,
    split: options.Split = None,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    base: options.TrainedBase = None,
    weights: options.Weights = None,
    out: Annotated[Path | None, OUTPUT.option("FILE", "The HTML file.  [default: NAME-report.html]")] = None,
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
    if compare and names[0] == names[1]:
        raise typer.BadParameter(f"{names[0]} is given twice; name two adapters, or two versions of one")
    screen, store = output.console(as_json), open_library(library)
    entries = eval_data.check(store, names[:count], base, data, split, needs_rows=False)
    name, entry = names[0], entries[names[0]]
    bases = {ref: str(subject.card["base"]).partition("+")[0] for ref, subject in entries.items()}
    here = {ref: subject for ref, subject in entries.items() if bases[ref] == bases[name]}
    host = host_with(base, weights, store, here)
    sample = eval_data.Sample(split, rows, seed)
    measured, reason = _rows(host, name, entry, data, screen, sample)
    if compare:
        if measured is None:
            raise InlayError(f"a comparison needs labelled rows: {reason}")
        from inlay.analysis.report import compare as comparison

        second, second_entry = names[1], entries[names[1]]
        away = host if second in here else host_with(base, weights, store, {second: second_entry})
        subjects = (comparison.Subject(host, name, entry), comparison.Subject(away, second, second_entry))
        made = comparison.compare(*subjects, measured)
    else:
        note = "" if measured is not None else f"Sections that need labelled rows are left out: {reason}"
        if note:
            screen.print(note, style="yellow", soft_wrap=True)
        from inlay.analysis.report.report import report as describe

        versions = versions_of(store, entry.name)
        made = describe(host, name, store.read(entry), entry, measured, why=note, versions=versions, library=library)
    stem = "-".join(ref.replace("@", "-") for ref in names[:count])
    path = made.write(out or Path(f"{stem}-report.html"))
    _tell(made, path, screen)
    output.document({**made.numbers, "file": str(path)}, as_json)


def _rows(
    host: Host, name: str, entry: Entry, data: str | None, screen: output.Console, sample: eval_data.Sample
) -> tuple[Rows | None, str]:
    """The rows to measure on: DATA, else those the adapter was tested or validated on; or why there are none."""
    from inlay.analysis.report.report import Rows

    if entry.card["head"] is None:
        return None, f"{name} has no head, so it has no answers"
    if data is not None:
        where, examples = eval_data.read_labelled(host, name, entry, data, screen, sample)
        return Rows(where, examples), ""
    try:
        return Rows(*_own_rows(host, entry, sample)), ""
    except InlayError as error:
        return None, str(error)


def _own_rows(host: Host, entry: Entry, sample: eval_data.Sample) -> tuple[str, list[Example]]:
    """The rows that an adapter was tested on, else validated on, if its data has not changed since."""
    config = dict(trained_on(entry.card))
    if not config.get("data") or str(config["data"]).endswith("rows given as objects"):
        raise DataError(f"the card of {entry.name} names no file of rows; pass DATA")
    parts = eval_data.own_parts(host, entry)
    chosen = sample.split or ("test" if "test" in parts else "validation")
    examples = eval_data.drawn(eval_data.part_of(entry, parts, chosen), sample)
    file = {"validation": config.get("val"), "test": config.get("test")}.get(chosen)
    shown = data_name({"config": {"data": file}}) if file else data_name(entry.card)
    return f"the {chosen} rows of {shown}", examples


def _tell(made: Report, path: Path, screen: output.Console) -> None:
    numbers = made.numbers
    rows = f"{numbers['rows']['from']}, {numbers['rows']['count']:,} rows" if numbers.get("rows") else ""
    if verdict := numbers.get("verdict"):
        screen.print(f"both on {rows}\n{verdict}", soft_wrap=True)
    elif rows:
        metrics = ", ".join(f"{key} {value:.4f}" for key, value in numbers["metrics"].items())
        screen.print(f"{rows}: {metrics}", soft_wrap=True)
    screen.print(f"written: {path}", style="dim", soft_wrap=True)
