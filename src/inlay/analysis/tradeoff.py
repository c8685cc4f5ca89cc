"""What more parameters gain: the metric against trained parameters, over tasks (Houlsby et al. 2019, figures 1 and 3).

For every method and data set, the setting that is best on validation counts. Values are relative to full fine-tuning
on the same data; if that was not run, to the largest top-n fine-tuning that all have, else to the best method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inlay import metrics
from inlay.analysis.finding import Finding
from inlay.analysis.runs import DataSet, best_of, data_sets, option_of
from inlay.bank.delta import parse
from inlay.comparison import tradeoff as picture
from inlay.comparison.tradeoff import Point, family
from inlay.errors import RunError
from inlay.sweeps.store import Row
from inlay.sweeps.table import Entry

COLUMNS = ("family", "method", "parameters", "data sets", "20th percentile", "median", "80th percentile")


def tradeoff(rows: Sequence[Row]) -> Finding:
    """The metric against trained parameters: a line for every family of methods, percentiles over data sets."""
    sets = data_sets(rows)
    lower = {data.metric in metrics.LOWER_IS_BETTER for data in sets}
    if len(lower) > 1:
        raise RunError("in some of these sweeps more is better, in others less: draw them apart")
    best = {data.name: _best(data) for data in sets}
    if len({method for entries in best.values() for method in entries}) < 2:
        raise RunError(
            "there is one method only; sweep several, as in --grid method=houlsby:size=8,houlsby:size=64,norms"
        )
    split = "test" if all(data.split == "test" for data in sets) else "validation"
    values = {name: {m: _value(e, split) for m, e in entries.items()} for name, entries in best.items()}
    reference, baselines = _reference(values, lower == {True})
    points = [
        Point(family(method), method, entry.parameters, name, values[name][method], baselines[name])
        for name, entries in best.items()
        for method, entry in entries.items()
    ]
    names = list(dict.fromkeys(data.metric for data in sets))
    metric = names[0] if len(names) == 1 else "metric"
    lines = [
        (family, p.method, p.parameters, p.datasets, p.low, p.middle, p.high)
        for family, places in picture.places(points).items()
        for p in places
    ]
    about = f"{split} {metric} of {', '.join(best)}, relative to {reference}"
    summary: dict[str, Any] = {"data sets": len(sets), "relative to": reference}
    summary |= {f"{line[1]} ({line[2]:,.0f} parameters)": line[5] for line in lines}
    title = next(iter(best)) if len(sets) == 1 else f"{len(sets)} data sets"
    texts = {"metric": f"{split} {metric}" if lower != {True} else metric, "reference": reference, "title": title}
    return Finding("tradeoff", about, COLUMNS, lines, lambda: picture.draw(points, **texts), summary)


def _best(data: DataSet) -> dict[str, Entry]:
    """method -> its best setting, by validation."""
    return {method: entry for (method,), entry in best_of(data.entries(data.setting), "method").items()}


def _value(entry: Entry, split: str) -> float:
    return entry.test if split == "test" and entry.test is not None else entry.mean


def _reference(values: Mapping[str, Mapping[str, float]], lower: bool) -> tuple[str, dict[str, float]]:
    common = set.intersection(*(set(of_method) for of_method in values.values()))
    if "finetune" in common:
        return "full fine-tuning", {name: of_method["finetune"] for name, of_method in values.items()}
    tops = {spec: option[1] for spec in common if (option := option_of(parse(spec), ("top",))) and option[1]}
    if tops:
        top = max(tops, key=lambda spec: tops[spec])
        return f"fine-tuning of the top {tops[top]}", {name: of_method[top] for name, of_method in values.items()}
    best = min if lower else max
    return "the best method", {name: best(of_method.values()) for name, of_method in values.items()}
