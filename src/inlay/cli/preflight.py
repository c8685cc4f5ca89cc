"""Checks before torch is imported and a base is loaded: files, columns, names, packages.

`Problems` gathers what is wrong, so that one error names all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from inlay import cluster
from inlay.base.places import locate
from inlay.cli import option_checks
from inlay.cli.help import usage
from inlay.errors import InlayError, RunError


class Problems(list[str]):
    """What is wrong so far."""

    def check(self, check: Callable[..., object], *arguments: Any) -> None:
        """Add what a check says."""
        try:
            check(*arguments)
        except InlayError as error:
            self.append(str(error))

    def stop(self) -> None:
        """Raise one error if there are any."""
        if self:
            raise RunError("; ".join(dict.fromkeys(self)))


def refuse(wrong: Mapping[str, object]) -> None:
    """Raise wrong usage with the first message that holds."""
    for message, holds in wrong.items():
        if holds:
            raise typer.BadParameter(message)


def check_source(data: object, manifest: Path | None, others: Sequence[str], where: str = "") -> None:
    """Require DATA or a manifest, and with a manifest none of the other options."""
    if manifest is None and not data:
        raise typer.BadParameter("give DATA or --manifest")
    if manifest is not None and (extra := [*(["DATA"] if data else []), *others]):
        raise typer.BadParameter(f"{extra[0]} cannot be combined with --manifest; set it there{where}")


def check_run(settings: Mapping[str, Any]) -> None:
    """Check the names, files and columns of a run."""
    from inlay.runs.inputs import check
    from inlay.runs.run import make_run

    check(make_run(dict(settings)))


def check_base(name: str | None) -> None:
    """Check that a base that can only be a folder exists."""
    if name is not None:
        locate(name)


def check_logs(specs: Sequence[str] | None) -> None:
    """Check that the packages of these logs are installed."""
    from inlay.tracking.logs import check_installed

    for spec in specs or ():
        check_installed(spec)


def check_writable(*files: str | os.PathLike[str] | None) -> None:
    """Check that files to be written are not folders, and that their folders exist."""
    for path in (os.fspath(file) for file in files if file is not None):
        folder = os.path.dirname(path)
        if folder and not os.path.isdir(folder):
            raise RunError(f"{path} cannot be written: there is no folder {folder}")
        if os.path.isdir(path):
            raise RunError(f"{path} cannot be written: it is a folder")


def check_plot(file: Path | None) -> None:
    """Check that a picture of this kind can be drawn."""
    from inlay.drawing import plotting

    if file is not None:
        known = plotting("matplotlib.backend_bases").FigureCanvasBase.filetypes
        if file.suffix.removeprefix(".").lower() not in known:
            raise RunError(f"--plot {file}: the name must end with .png, .pdf or .svg")


def check_engine(engine: str, address: str | None, others: Mapping[str, object]) -> None:
    """Check that Ray is there if it is asked for, and that its options are given only with it."""
    ray_options = {"--address": address, **others}
    extra = [name for name, value in ray_options.items() if value is not None and engine != "ray"]
    problems = [f"{name} needs --engine ray" for name in extra] + (cluster.problems(address) if engine == "ray" else [])
    if problems:
        raise RunError("; ".join(problems))


def read_grid(texts: Sequence[str] | None, problems: Problems) -> dict[str, str]:
    """`--grid` as keys and values."""
    from inlay.sweeps.values import read_texts

    values, unreadable = read_texts(texts or ())
    problems += unreadable
    problems.check(option_checks.methods, values.get("method", ""))
    for key, check in (("head", option_checks.head), ("pool", option_checks.pool)):
        for value in filter(None, values.get(key, "").split(",")):
            problems.check(check, value)
    return values


def check_specs(method: str | None = None, task: str | None = None) -> None:
    """Check the options in specs, which takes torch, but no base."""
    from inlay.bank.delta import parse as parse_method
    from inlay.tasks import parse as parse_task

    with usage("--method"):
        parse_method(method or "houlsby")
    with usage("--task"):
        parse_task(task or "classification")
