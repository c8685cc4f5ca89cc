"""A sweep's results as CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import html
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import IO, TYPE_CHECKING, Any

from inlay.errors import RunError
from inlay.metrics import sample_std
from inlay.sweeps.values import shown

if TYPE_CHECKING:
    from inlay.sweeps.store import Row
    from inlay.sweeps.table import Entry, Sweep

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
}
_STATES = {"done": 0, "pruned": 1, "failed": 2}


def header(sweep: Sweep) -> list[str]:
    """The columns of the ranked table."""
    tested = any(entry.test is not None for entry in sweep.ranking)
    test = [f"test {sweep.metric}"] if tested else []
    reported = [f"{split} {sweep.report}" for entry in sweep.ranking[:1] for split in sweep.reported(entry)]
    return ["rank", *sweep.keys, sweep.metric, *test, *reported, "seconds", "parameters"]


def cells(sweep: Sweep, entry: Entry) -> list[str]:
    """A line of the ranked table."""
    values = [shown(entry.setting[key], key) if key in entry.setting else "" for key in sweep.keys]
    value = spread(entry.mean, entry.std)
    if sweep.select == "best" and len(entry.runs) > 1:
        value = f"{entry.best.value:.4f} (mean {value})"
    elif len(entry.runs) < entry.seeds:
        value += f" ({len(entry.runs)} of {entry.seeds} seeds)"
    tested = any(other.test is not None for other in sweep.ranking)
    test = [spread(entry.test, entry.test_std)] if tested else []
    test += [spread(fmean(scores), sample_std(scores)) for scores in sweep.reported(entry).values()]
    return [str(entry.rank), *values, value, *test, f"{entry.seconds:.1f}", f"{entry.parameters:,}"]


def spread(mean: float | None, std: float | None) -> str:
    """`0.9123 ± 0.0045`."""
    if mean is None:
        return ""
    return f"{mean:.4f}" + ("" if std is None else f" ± {std:.4f}")


def write_csv(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """A CSV file: one line per run, in the order of the ranking; runs that are not done come last."""
    place = {row.id: entry.rank for entry in sweep.ranking for row in entry.runs}
    metrics = sorted({(split, name) for row in sweep.rows for split, scores in row.metrics.items() for name in scores})
    columns = ["rank", "id", *sweep.keys, "seed", "state", "metric", "value"]
    columns += [f"{split} {name}" for split, name in metrics] + ["seconds", "tokens", "parameters", "problem"]

    def line(row: Row) -> list[Any]:
        settings = [shown_exactly(row.setting[key], key) if key in row.setting else "" for key in sweep.keys]
        scores = [row.metrics.get(split, {}).get(name) for split, name in metrics]
        start = [place.get(row.id), row.id, *settings, row.seed, row.state, row.metric, row.value]
        return [*start, *scores, round(row.seconds, 3), row.tokens, row.parameters.get("adapter"), row.error]

    rows = sorted(sweep.rows, key=lambda r: (place.get(r.id, len(place) + 1), _STATES.get(r.state, 3), r.position))
    write_rows(path, [columns, *map(line, rows)])


def shown_exactly(value: Any, key: str = "") -> str:
    """As `shown`, but with all digits, so that the run can be repeated."""
    return repr(value) if isinstance(value, float) else shown(value, key)


def write_latex(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """The ranked table as a tabular in the style of booktabs; the winner in bold."""
    lines = [cells(sweep, entry) for entry in sweep.ranking]
    bold = [entry is sweep.best for entry in sweep.ranking]
    write_text(path, latex_table(header(sweep), lines, bold, ("rank", "seconds", "parameters")))


def latex_table(
    columns: Sequence[str], lines: Sequence[Sequence[str]], bold: Sequence[bool], right: Sequence[str]
) -> str:
    """A tabular of plain cells; columns in `right` hold numbers."""
    places = "".join("r" if column in right else "l" for column in columns)
    table = ["% \\usepackage{booktabs}", f"\\begin{{tabular}}{{{places}}}"]
    table += ["\\toprule", _latex_line(columns), "\\midrule", *map(_latex_line, lines, bold)]
    return "\n".join([*table, "\\bottomrule", "\\end{tabular}", ""])


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """A file of text."""
    with _opened(path) as file:
        file.write(text)


def write_rows(path: str | os.PathLike[str], rows: Iterable[Sequence[Any]]) -> None:
    """A file of CSV; None is an empty cell."""
    with _opened(path) as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _latex_line(values: Sequence[str], bold: bool = False) -> str:
    cells = [re.sub(r"[&%$#_{}~^\\±]", lambda match: _LATEX[match[0]], value) for value in values]
    return " & ".join(f"\\textbf{{{cell}}}" if bold else cell for cell in cells) + r" \\"


def html_table(sweep: Sweep) -> str:
    """For notebooks."""
    return html_cells(sweep.name, header(sweep), [cells(sweep, entry) for entry in sweep.ranking])


def html_cells(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of plain cells."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"<b>{html.escape(title)}</b><table><tr>{head}</tr>{body}</table>"


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """A file to write to; a full disk is an error when the file is closed, if not before."""
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from None
