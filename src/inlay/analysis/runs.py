"""The common part of a sweep's figures: its rows by data set, grouped by setting.

A row's setting is what varied in its own sweep. Figures of several sweeps, or of sizes inside specs
(`method=houlsby:size=8,houlsby:size=64`), need the values that each run *had*: they are read from its full settings.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inlay.bank.delta import Method, parse
from inlay.errors import RunError
from inlay.library.card_text import data_name
from inlay.runs.few import own_rate
from inlay.runs.run import Run
from inlay.sweeps.store import Row
from inlay.sweeps.table import Entry, key, rank

_ASIDE = ("name", "data", "method", "lr", "seed")


@dataclass(frozen=True)
class DataSet:
    """The runs on one data set, with one metric."""

    name: str
    metric: str
    rows: tuple[Row, ...]

    @property
    def done(self) -> list[Row]:
        """The runs that have finished."""
        return [row for row in self.rows if row.state == "done" and row.value is not None]

    @property
    def varied(self) -> list[str]:
        """The settings in which these runs differ, other than method, learning rate and seed."""
        keys = dict.fromkeys(k for row in self.rows for k in row.config if k not in _ASIDE)
        return [k for k in keys if len({str(row.config.get(k, _default(k))) for row in self.rows}) > 1]

    def others(self, row: Row) -> dict[str, Any]:
        """A run's values of the varied settings."""
        return {k: row.config.get(k, _default(k)) for k in self.varied}

    def setting(self, row: Row) -> dict[str, Any]:
        """A run's method, learning rate and varied settings."""
        return {"method": method_of(row).spec, "lr": lr_of(row), **self.others(row)}

    @property
    def split(self) -> str:
        """The split that counts: test if every run was measured on it."""
        return "test" if all(self.metric in row.metrics.get("test", {}) for row in self.done) else "validation"

    def values(self, rows: Iterable[Row]) -> tuple[float, ...]:
        """The metric of finished runs on that split."""
        on_test = self.split == "test"
        values = (row.metrics["test"][self.metric] if on_test else row.value for row in rows)
        return tuple(float(value) for value in values if value is not None)

    def entries(self, setting: Callable[[Row], Mapping[str, Any] | None]) -> list[Entry]:
        """The settings that were tried, the best on validation first; rows without a setting are left out."""
        known = [replace(row, setting=dict(values)) for row in self.rows if (values := setting(row)) is not None]
        seeds = Counter(key(row.setting) for row in known)
        return list(rank(known, self.metric, "mean", max(seeds.values(), default=1)))


def data_sets(rows: Iterable[Row]) -> list[DataSet]:
    """Rows by their data; an error if none has finished, or if one data set was measured in two ways."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row.config.get("data", "")), []).append(row)
    names = _names(list(groups))
    sets = []
    for data, rows_of_data in groups.items():
        metrics = list(dict.fromkeys(row.metric for row in rows_of_data))
        if len(metrics) > 1:
            raise RunError(
                f"runs on {names[data]} are measured by {' and by '.join(metrics)}, which cannot be compared"
            )
        sets.append(DataSet(names[data], metrics[0], tuple(rows_of_data)))
    sets = [data_set for data_set in sets if data_set.done]
    if not sets:
        raise RunError("no run of this sweep has finished")
    return sets


def best_of(entries: Iterable[Entry], *keys: str) -> dict[tuple[Any, ...], Entry]:
    """Values of these keys -> the best setting that has them; the entries are ranked."""
    best: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        best.setdefault(tuple(entry.setting[key] for key in keys), entry)
    return best


def method_of(row: Row) -> Method:
    """The method of a run, with its options."""
    return parse(str(row.config.get("method") or Run.model_fields["method"].default))


def lr_of(row: Row) -> float:
    """The peak learning rate of a run: the one set, else the method's default."""
    lr = row.config.get("lr")
    return float(own_rate(method_of(row), row.config.get("few_shot")) if lr is None else lr)


def size_of(row: Row) -> str | None:
    """How many rows a run trained on: a count, or a share as `10%`; None for all."""
    if row.config.get("train_size") is None:
        return None
    size = str(row.config["train_size"]).strip()
    return size if size.isdecimal() else f"{100 * _share(size):g}%"


def size_order(size: str | None) -> tuple[int, float]:
    """Counts go before shares, and all rows come last."""
    if size is None:
        return 2, 0.0
    return (0, float(size)) if size.isdecimal() else (1, _share(size))


def rows_in_words(size: str | None) -> str:
    """A number of rows in words."""
    if size is None:
        return "all"
    return f"{int(size):,}" if size.isdecimal() else size.replace("%", " %")


def _share(size: str) -> float:
    return float(size.rstrip("% ")) / (100 if size.endswith("%") else 1)


def by_train_size(sets: Iterable[DataSet]) -> list[DataSet]:
    """Split data sets by the number of training rows, if it varies."""
    by_size = []
    for data in sets:
        sizes = sorted({size_of(row) for row in data.rows}, key=size_order)
        if len(sizes) == 1:
            by_size.append(data)
            continue
        for size in sizes:
            rows = tuple(row for row in data.rows if size_of(row) == size)
            of_size = DataSet(f"{data.name}, {rows_in_words(size)} rows", data.metric, rows)
            by_size += [of_size] if of_size.done else []
    return by_size


def option_of(method: Method, names: Sequence[str]) -> tuple[str, Any] | None:
    """The first of these options that a method has, and its value."""
    options = {field.name for field in dataclasses.fields(method)}
    return next(((name, getattr(method, name)) for name in names if name in options), None)


def _default(key: str) -> Any:
    return Run.model_fields[key].default if key in Run.model_fields else None


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Short names for data: the last part of the path, and more of it if two would be the same."""
    short = {path: data_name({"config": {"data": path}}) or "data" for path in paths}
    twice = {name for name in short.values() if list(short.values()).count(name) > 1}
    names = {path: "/".join(path.split(os.sep)[-3:]) if name in twice else name for path, name in short.items()}
    return names if len({*names.values()}) == len(names) else {path: path for path in paths}
