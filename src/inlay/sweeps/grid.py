"""What a sweep varies: `--grid key=a,b,c`, and every combination of it.

A key is a setting of `inlay.Run`, `method`, or an option of a method. An option belongs to the methods that have it;
the others are not multiplied by its values. So a grid is not one product but one for every method: a *branch*.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inlay import config
from inlay.bank.delta import Method, parse
from inlay.engine.host import Host
from inlay.errors import InlayError, suggest
from inlay.heads.head import head_part
from inlay.heads.pool import choose as choose_pool
from inlay.registry import methods as registry
from inlay.runs.run import Run, make_run
from inlay.sweeps.values import Range, Values, read_values, shown, split_specs

Grid = Mapping[str, Any]
"""key -> values: a list, one value, or text as on the command line (`a,b,c` or `low..high`)."""
Setting = dict[str, Any]
"""One combination: the branch's method, and a value for each of its keys."""

FIXED = frozenset(
    "name data task label format encoding val val_size test test_size stratify metric skip_bad_rows split_seed".split()
)
"""Settings that decide what is measured; results that differ in them cannot be ranked."""
MOST = 10_000
"""Combinations of a grid."""


@dataclass(frozen=True)
class Axis:
    """One key and its values."""

    key: str
    values: Values
    is_option: bool


@dataclass(frozen=True)
class Branch:
    """A method and what varies with it."""

    method: str
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int | None:
        """How many combinations it has; None with a range, which has any number."""
        total = 1
        for axis in self.axes:
            if isinstance(axis.values, Range):
                return None
            total *= len(axis.values)
        return total

    def settings(self) -> Iterator[Setting]:
        """Every combination, the last key fastest; of a range its ends."""
        lists = [axis.values.ends if isinstance(axis.values, Range) else axis.values for axis in self.axes]
        for values in itertools.product(*lists):
            yield {"method": self.method, **{a.key: v for a, v in zip(self.axes, values, strict=True)}}


@dataclass(frozen=True)
class Space:
    """All that a sweep may try, around settings that stay."""

    data: Any
    given: Mapping[str, Any]
    """Other settings of `inlay.Run` that stay."""
    branches: tuple[Branch, ...]

    @property
    def keys(self) -> list[str]:
        """What varies, in the order of the grid; the method first."""
        axes = (axis for branch in self.branches for axis in branch.axes)
        varying = dict.fromkeys(a.key for a in axes if isinstance(a.values, Range) or len(a.values) > 1)
        return [*(["method"] if len(self.branches) > 1 else []), *varying]

    @property
    def ranges(self) -> list[str]:
        """Keys with a range instead of a list."""
        axes = (axis for branch in self.branches for axis in branch.axes)
        return list(dict.fromkeys(axis.key for axis in axes if isinstance(axis.values, Range)))

    @property
    def size(self) -> int | None:
        """How many combinations there are; None with a range, which has any number."""
        sizes = [branch.size for branch in self.branches]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def settings(self) -> Iterator[Setting]:
        """Every combination; of ranges their ends."""
        return itertools.chain.from_iterable(branch.settings() for branch in self.branches)

    def branch(self, setting: Mapping[str, Any]) -> Branch:
        """The branch that a combination belongs to."""
        return next(branch for branch in self.branches if branch.method == setting["method"])

    def method(self, setting: Mapping[str, Any]) -> Method:
        """The method of a combination, with its options."""
        axes = self.branch(setting).axes
        return dataclasses.replace(parse(setting["method"]), **{a.key: setting[a.key] for a in axes if a.is_option})

    def run(self, setting: Mapping[str, Any], **extra: Any) -> Run:
        """The run of a combination."""
        settings = {a.key: setting[a.key] for a in self.branch(setting).axes if not a.is_option}
        run = make_run({"data": "", **self.given, **settings, "method": self.method(setting).spec, **extra})
        return run.model_copy(update={"data": self.data})  # not checked, and so not copied, for every run

    def problems(self, host: Host) -> list[str]:
        """Values that no run could have, or not on this base: sizes, layers, heads, pooling."""
        problems: dict[str, None] = {}
        for branch in self.branches:
            options = Branch(branch.method, tuple(axis for axis in branch.axes if axis.is_option))
            for setting in itertools.islice(options.settings(), MOST):
                problems |= dict.fromkeys(refused(lambda s: self.method(s).params(host.base.sites), setting))
        for key, check in _CHECKS.items():
            values = [a.values for b in self.branches[:1] for a in b.axes if a.key == key]
            listed = values[0] if values and isinstance(values[0], tuple) else [self.given.get(key, _default(key))]
            for value in listed:
                problems |= dict.fromkeys(refused(check, value, host))
        return list(problems)


_CHECKS: dict[str, Any] = {
    "head": lambda value, host: head_part(value, 1, host.base.sites.hidden),
    "pool": lambda value, host: choose_pool(value, host.base),
}


def refused(do: Callable[..., Any], *arguments: Any) -> list[str]:
    """Why something cannot be done; empty if it can."""
    try:
        do(*arguments)
    except InlayError as error:
        return [str(error)]
    return []


def read_grid(settings: Mapping[str, Any], grid: Grid, ranges: bool = False) -> tuple[Space, list[str]]:
    """The space of a grid around settings that stay, and everything that is wrong with it.

    Args:
        ranges: whether `low..high` may stand for a list.
    """
    problems: list[str] = []
    methods = _methods(settings, grid, problems)
    all_options = {name: _options(registry.find(name)) for name in registry.names()}
    # a method that could not be read may be the one that has an option
    unread = len(methods) < _count(grid)
    known = list(all_options.values()) if unread else [_options(type(method)) for method in methods.values()]
    axes: dict[str, list[Axis]] = {spec: [] for spec in methods}
    for key in grid:
        problem = _key_problem(key, settings, known, all_options)
        if problem:
            problems.append(problem)
        elif key in Run.model_fields and key != "method":
            _add_setting(key, grid[key], axes, problems)
        elif key != "method":
            _add_option(key, grid[key], methods, axes, problems)
    branches = tuple(Branch(spec, tuple(axes_of_method)) for spec, axes_of_method in axes.items())
    fixed = {key: value for key, value in settings.items() if key not in grid and key != "data"}
    space = Space(settings.get("data", ""), fixed, branches)
    problems += refused(make_run, {"data": "", **space.given})
    if not ranges:
        problems += [
            f"{key} has a range, which needs random draws or a search; list its values" for key in space.ranges
        ]
    elif not space.keys:
        problems.append("nothing varies: give a grid")
    if not ranges and (space.size or 0) > MOST:
        problems.append(f"the grid has {space.size:,} combinations; at most {MOST:,} are possible, or draw at random")
    return space, list(dict.fromkeys(problems))


def _methods(settings: Mapping[str, Any], grid: Grid, problems: list[str]) -> dict[str, Method]:
    """Methods by their specs as written."""
    specs = split_specs(grid["method"], problems) if "method" in grid else [settings.get("method", _default("method"))]
    methods: dict[str, Method] = {}
    for spec in specs:
        try:
            method = parse(spec)
        except InlayError as error:
            problems.append(str(error))
            continue
        if method in methods.values():
            problems.append(f"method has {method.spec} twice")
        else:
            methods[spec] = method
    return methods


def _count(grid: Grid) -> int:
    return len(split_specs(grid["method"], [])) if "method" in grid else 1


def _options(cls: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init]


def _default(key: str) -> Any:
    return Run.model_fields[key].default


def _key_problem(
    key: str, settings: Mapping[str, Any], known: Sequence[Sequence[str]], all_options: Mapping[str, Sequence[str]]
) -> str:
    if key == "seed":
        return "seed is not a key of a grid; --seeds K (seeds=K) runs every combination with K seeds"
    if key in FIXED:
        return f"{key} cannot vary: it decides what is measured, and results would not be comparable"
    options = {option for names in known for option in names}
    if key not in Run.model_fields and key not in options:
        having = [name for name, names in all_options.items() if key in names]
        if having:
            return f"{key} is an option of {', '.join(having)}, and no method here has it"
        return f"no setting or option {key!r} to vary. {suggest(key, {*Run.model_fields, *options} - FIXED - {'seed'})}"
    if key in settings and key in Run.model_fields:
        return f"{key} is both set to {shown(settings[key])} and in the grid"
    return ""


def _add_setting(key: str, raw: Any, axes: Mapping[str, list[Axis]], problems: list[str]) -> None:
    def read(value: Any) -> Any:
        return getattr(
            make_run({"data": "", key: None if value in ("none", "auto") and _may_be_none(key) else value}), key
        )

    values = read_values(key, raw, read, problems)
    if values is not None:
        for axes_of_method in axes.values():
            axes_of_method.append(Axis(key, values, False))


def _may_be_none(key: str) -> bool:
    return type(None) in typing.get_args(Run.model_fields[key].annotation)


def _add_option(
    key: str, raw: Any, methods: Mapping[str, Method], axes: Mapping[str, list[Axis]], problems: list[str]
) -> None:
    for spec, method in methods.items():
        if key not in _options(type(method)):
            continue
        if key in config.split_spec(spec)[1]:
            problems.append(f"{key} is both in {spec} and in the grid")
            continue

        def read(value: Any, method: Method = method) -> Any:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            return getattr(config.build(type(method), method.name, {key: text}), key)

        values = read_values(key, raw, read, problems)
        if values is not None:
            axes[spec].append(Axis(key, values, True))
