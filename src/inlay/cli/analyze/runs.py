"""`inlay analyze size, init, tradeoff, robustness, train-size, curves`: figures of sweeps.

Each reads the file of a sweep, or, given DATA, first runs a sweep that suits it: further options are those of
`inlay sweep`, and replace what the figure would vary by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from inlay.cli import options, output
from inlay.cli import sweep as sweeping
from inlay.cli.analyze.show import Out, finish
from inlay.cli.help import App, argument
from inlay.cli.option_groups import expand_groups
from inlay.errors import LibraryError, RunError

if TYPE_CHECKING:
    from inlay.sweeps.store import Row

_RATES = "3e-4,1e-3,3e-3"
SWEEPS: dict[str, dict[str, str]] = {
    "size": {"grid size": "1,4,16,64,256", "grid lr": _RATES, "seeds": "3"},
    "init": {"grid init": "1e-7,1e-6,1e-5,1e-4,1e-3,1e-2,1e-1,1", "seeds": "3"},
    "robustness": {"grid method": "houlsby,finetune", "grid lr": "1e-5,3e-5,1e-4,3e-4,1e-3", "seeds": "5"},
    "train-size": {"grid method": "houlsby,finetune", "grid train_size": "100,300,1000,none", "seeds": "3"},
    "curves": {"grid method": "houlsby,finetune", "eval-every": "20", "seeds": "3"},
}
"""Kind -> what it sweeps over by default: `grid KEY` or an option -> its values."""
_OURS = ("--name", "--manifest", "--store", "--library", "--json", "--csv", "--latex", "--plot")
MORE = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Of a command that hands options on to `inlay sweep`."""

Name = Annotated[str, argument("NAME", "A sweep, by name or file, or several separated by commas.")]
Data = Annotated[str | None, argument("DATA", "Run a sweep on this data first, with the options of `inlay sweep`.")]


class SweepFigure(NamedTuple):
    """Where the sweeps are, and where the figure goes."""

    out: Out = None
    library: options.Library = None
    as_json: output.AsJson = False


@expand_groups(figure=SweepFigure)
def size(context: typer.Context, name: Name, data: Data = None, *, figure: SweepFigure) -> None:
    """Plot the metric against the adapter's size, with the best learning rate for each (Houlsby et al., figure 4).

    Examples:
        inlay analyze size tickets-sweep
        inlay analyze size tickets-size tickets.csv --seeds 3 --max-steps 200
    """
    _draw("size", context, name, data, figure)


@expand_groups(figure=SweepFigure)
def init(context: typer.Context, name: Name, data: Data = None, *, figure: SweepFigure) -> None:
    """Plot the metric against the spread of the initial weights, 1e-7 to 1 (Houlsby et al., figure 6).

    Examples:
        inlay analyze init tickets-sweep
        inlay analyze init tickets-init tickets.csv --seeds 3
    """
    _draw("init", context, name, data, figure)


@expand_groups(figure=SweepFigure)
def robustness(context: typer.Context, name: Name, data: Data = None, *, figure: SweepFigure) -> None:
    """Draw box plots over learning rates and seeds for every method (He et al., figure 4).

    Examples:
        inlay analyze robustness tickets-sweep
        inlay analyze robustness tickets-methods tickets.csv --grid method=houlsby,lora
    """
    _draw("robustness", context, name, data, figure)


@expand_groups(figure=SweepFigure)
def train_size(context: typer.Context, name: Name, data: Data = None, *, figure: SweepFigure) -> None:
    """Plot the metric against the number of training rows, on test rows if there are any (He et al., figure 3).

    Examples:
        inlay analyze train-size tickets-sweep
        inlay analyze train-size tickets-rows tickets.csv --grid train_size=50,100,200 --test-size 20%
    """
    _draw("train-size", context, name, data, figure)


@expand_groups(figure=SweepFigure)
def curves(
    context: typer.Context,
    name: Annotated[str, argument("NAME", "Sweeps or adapters, by name or file, separated by commas.")],
    data: Data = None,
    *,
    figure: SweepFigure,
) -> None:
    """Plot validation loss and metric against steps, with mean and best (He et al., figure 5 and table 6).

    Examples:
        inlay analyze curves tickets
        inlay analyze curves tickets-curves tickets.csv --eval-every 10
    """
    _draw("curves", context, name, data, figure)


@expand_groups(figure=SweepFigure)
def tradeoff(
    names: Annotated[list[str], argument("NAME...", "Sweeps, one per task, by name or file.")],
    *,
    figure: SweepFigure,
) -> None:
    """Plot the metric against trained parameters, with percentiles over tasks (Houlsby et al., figures 1 and 3).

    Examples:
        inlay analyze tradeoff tickets-sweep
        inlay analyze tradeoff tickets-sweep reviews-sweep --out tradeoff
    """
    from inlay.analysis.tradeoff import tradeoff as analyse

    rows = _rows_of(",".join(names), figure.library)
    finish(analyse(rows), figure.out, _stem(names[0]), figure.as_json)


def _draw(kind: str, context: typer.Context, name: str, data: str | None, figure: SweepFigure) -> None:
    rows = _swept(context, kind, name, data, figure)
    module = kind.replace("-", "_")
    analyse = getattr(importlib.import_module(f"inlay.analysis.{module}"), module)
    finish(analyse(rows), figure.out, _stem(name), figure.as_json)


def _swept(context: typer.Context, kind: str, name: str, data: str | None, figure: SweepFigure) -> list[Row]:
    """The runs of a sweep, which is run first if there is DATA."""
    extra, library = list(context.args), figure.library
    if data is not None and data.startswith("-"):  # DATA was left out
        extra, data = [data, *extra], None
    if data is None:
        if extra:
            raise typer.BadParameter(f"{extra[0]} is for a sweep over DATA, and no DATA was given")
        return _rows_of(name, library, kind == "curves")
    taken = [word for word in extra if word.partition("=")[0] in _OURS]
    if taken:
        raise typer.BadParameter(f"{taken[0]} cannot be used for a figure; NAME says where the sweep is stored")
    path = _path(name, library)
    words = [data, "--name", Path(_stem(name)).name, "--store", str(path), *_defaults(SWEEPS[kind], extra), *extra]
    words += [] if library is None else ["--library", library]
    sweeps = App()
    sweeps.command("sweep")(sweeping.sweep)
    with contextlib.redirect_stdout(sys.stderr) if figure.as_json else contextlib.nullcontext():
        code = typer.main.get_command(sweeps).main(words, prog_name="inlay sweep", standalone_mode=False)
    if code:  # stopped, or nothing could be trained, as it has said
        raise typer.Exit(code)
    return _rows(str(path), library, adapters=False)


def _defaults(kind: Mapping[str, str], extra: Sequence[str]) -> list[str]:
    """What a kind varies, without what the user gave."""
    words = []
    for key, values in kind.items():
        option, _, varied = key.partition(" ")
        flag = f"--{(varied or option).replace('_', '-')}"
        # as an option, in --grid, or in a method's spec; not as a part of another name, such as --batch-size=8 for size
        given = re.compile(rf"{flag}(=.*)?" + rf"|(.*[=:,])?{varied}=.*" * bool(varied))
        if not any(given.fullmatch(word) for word in extra):
            words += [f"--{option}", f"{varied}={values}" if varied else values]
    return words


def _rows_of(names: str, library: str | None, adapters: bool = False) -> list[Row]:
    return [row for name in options.listed(names) or [names] for row in _rows(name, library, adapters)]


def _rows(name: str, library: str | None, adapters: bool) -> list[Row]:
    """The rows of a sweep by name or file; with `adapters`, else the training of an adapter."""
    from inlay.sweeps.store import read_rows

    path = _path(name, library)
    if path.is_file():
        return read_rows(path)
    if not adapters:
        sweeps = sorted(file.stem for file in path.parent.glob("*.sqlite")) if path.parent.is_dir() else []
        known = f"; there are {', '.join(sweeps[:8])}" if sweeps else ""
        raise RunError(f"no sweep {name!r}: no file {path}{known}. Run `inlay sweep`, or pass DATA as well")
    from inlay.analysis.curves import row_of
    from inlay.library.library import Library

    store = Library(library)
    try:
        entry = store.find(name)
    except LibraryError as error:
        raise RunError(f"no sweep {name!r} ({path}), and {error}") from None
    return [row_of(store.read_adapter(entry, "analyzed here"), entry.card)]


def _path(name: str, library: str | None) -> Path:
    from inlay.library.library import Library

    path = Path(name)
    if path.suffix == ".sqlite" or path.is_file():
        return path
    return Library(library).local / "sweeps" / f"{name}.sqlite"


def _stem(name: str) -> str:
    return Path(name.split(",")[0]).name.removesuffix(".sqlite")
