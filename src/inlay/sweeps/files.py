"""A sweep's results as CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import html
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.errors import RunError
from inlay.sweeps.values import shown

if TYPE_CHECKING:
    from inlay.sweeps.store import Row
    from inlay.sweeps.table import Entry, Sweep

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}
_STATES = {"done": 0, "pruned": 1, "failed": 2}


def header(sweep: Sweep) -> list[str]:
    """The columns of the ranked table."""
    tested = any(entry.test is not None for entry in sweep.ranking)
    test = [f"test {sweep.metric}"] if tested else []
    return ["rank", *sweep.keys, sweep.metric, *test, "seconds", "parameters"]


def cells(sweep: Sweep, entry: Entry, plus: str = " ± ") -> list[str]:
    """A line of the ranked table."""
    values = [shown(entry.setting[key]) if key in entry.setting else "" for key in sweep.keys]
    value = spread(entry.mean, entry.std, plus)
    if sweep.select == "best" and len(entry.runs) > 1:
        value = f"{entry.best.value:.4f} (mean {value})"
    elif len(entry.runs) < entry.seeds:
        value += f" ({len(entry.runs)} of {entry.seeds} seeds)"
    tested = any(one.test is not None for one in sweep.ranking)
    test = [spread(entry.test, entry.test_std, plus)] if tested else []
    return [str(entry.rank), *values, value, *test, f"{entry.seconds:.1f}", f"{entry.parameters:,}"]


def spread(mean: float | None, std: float | None, plus: str = " ± ") -> str:
    """`0.9123 ± 0.0045`."""
    if mean is None:
        return ""
    return f"{mean:.4f}" + ("" if std is None else f"{plus}{std:.4f}")


def write_csv(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """One line per run, in the order of the ranking; what did not end well comes last."""
    place = {row.id: entry.rank for entry in sweep.ranking for row in entry.runs}
    metrics = sorted({(split, name) for row in sweep.rows for split, found in row.metrics.items() for name in found})
    columns = ["rank", "id", *sweep.keys, "seed", "state", "metric", "value"]
    columns += [f"{split} {name}" for split, name in metrics] + ["seconds", "tokens", "parameters", "problem"]

    def line(row: Row) -> list[Any]:
        settings = [shown_exactly(row.setting[key]) if key in row.setting else "" for key in sweep.keys]
        found = [row.metrics.get(split, {}).get(name, "") for split, name in metrics]
        value = "" if row.value is None else row.value
        start = [place.get(row.id, ""), row.id, *settings, row.seed, row.state, row.metric, value]
        return [*start, *found, round(row.seconds, 3), row.tokens, row.parameters.get("adapter", ""), row.error]

    rows = sorted(sweep.rows, key=lambda r: (place.get(r.id, len(place) + 1), _STATES.get(r.state, 3), r.position))
    with _opened(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([columns, *(line(row) for row in rows)])


def shown_exactly(value: Any) -> str:
    """With all its digits, so that it runs again."""
    return repr(value) if isinstance(value, float) else shown(value)


def write_latex(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """A tabular in the style of booktabs; the winner in bold."""
    columns = header(sweep)
    left = {"rank": "r", "seconds": "r", "parameters": "r"}
    lines = ["% \\usepackage{booktabs}", f"\\begin{{tabular}}{{{''.join(left.get(c, 'l') for c in columns)}}}"]
    lines += ["\\toprule", _latex_line(columns), "\\midrule"]
    for entry in sweep.ranking:
        line = _latex_line(cells(sweep, entry))
        if entry.rank == 1:
            line = " & ".join(f"\\textbf{{{cell}}}" for cell in line.removesuffix(" \\\\").split(" & ")) + " \\\\"
        lines.append(line)
    with _opened(path) as file:
        file.write("\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""]))


def _latex_line(values: Sequence[str]) -> str:
    return " & ".join(_escaped(value) for value in values) + r" \\"


def _escaped(text: str) -> str:
    return re.sub(r"[&%$#_{}~^\\]", lambda found: _LATEX[found[0]], text).replace("±", r"$\pm$")


def html_table(sweep: Sweep) -> str:
    """For notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header(sweep))
    lines = [[html.escape(cell) for cell in cells(sweep, entry)] for entry in sweep.ranking]
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f"<b>{html.escape(sweep.name)}</b><table><tr>{head}</tr>{body}</table>"


def _opened(path: str | os.PathLike[str]) -> Any:
    try:
        return Path(path).open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from None
