"""`inlay`: the command line's entry point.

Each command is a function in a file of its own. Modules here import neither torch nor transformers, so that
`--help` answers at once; commands import what they need when they run.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Annotated, Any

import typer

import inlay
from inlay.cli.help import App, Command, Commands
from inlay.errors import RunError

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo:demo", "Train three tasks on one base, and write a report."),
    "train": ("train:train", "Train an adapter, or many side by side."),
    "sweep": ("sweep:sweep", "Train many settings of one task, and rank them."),
    "compare": ("compare:compare", "Compare methods on equal terms."),
    "retrain": ("retrain:retrain", "Retrain the tasks of a library on another base."),
    "eval": ("eval:evaluate", "Evaluate an adapter on labelled data."),
    "predict": ("predict:predict", "Run one or several adapters on texts."),
    "serve": ("serve:serve", "Serve the tasks of a library over HTTP."),
    "params": ("params:params", "Count the parameters that methods train."),
    "plan": ("plan:plan", "Estimate whether N tasks fit, and what they cost."),
    "info": ("info:info", "Show versions, devices, methods and tasks."),
    "report": ("report:report", "Write an HTML report on an adapter."),
    "analyze": ("analyze:app", "Plot what adapters have learned."),
    "library": ("library:app", "Manage adapters, their versions and aliases."),
    "export": ("export:app", "Export adapters to ONNX or plain models."),
    "recipe": ("recipe:app", "Reproduce the papers' tables."),
    "bench": ("bench:app", "Benchmark Inlay against other libraries."),
}
"""Command -> where it is, imported on demand, and a line on it."""


@functools.cache
def _command(name: str) -> Any:
    module, _, attribute = COMMANDS[name][0].partition(":")
    imported = importlib.import_module(f"inlay.cli.{module}")
    target = getattr(imported, attribute)
    if not isinstance(target, App):
        app = App()
        app.command(name, cls=getattr(imported, "COMMAND", Command))(target)
        target = app
    command = typer.main.get_command(target)
    command.name = name
    return command


class _Lazy(Mapping[str, Any]):
    """The commands, each made when it is first looked up."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Root(Commands):
    """All commands, listed without importing them."""

    def __init__(self, **more: Any):
        super().__init__(**{**more, "commands": _Lazy()})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One line for each."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


app = App(cls=_Root)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"inlay {inlay.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train many small adapters on one frozen transformer, and serve them together in one batch."""
    shared = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    if shared and context.invoked_subcommand != "train":
        raise RunError(f"torchrun is for inlay train; inlay {context.invoked_subcommand} would run in every process")


def _leave(codes: Sequence[int]) -> None:
    """End the process at once, after threads have ended and all other exit handlers have run.

    Python would first take apart every object of torch and transformers, which takes a second.
    """
    if codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[-1])


def main() -> None:
    """Run the command line; an interrupt ends it quietly with 130."""
    interrupts: list[int] = []
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, called last

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        app(prog_name="inlay")
    except SystemExit as end:
        if "torch" in sys.modules and isinstance(end.code, int | None):
            codes.append(end.code or 0)
        raise
    except Exception:
        if interrupts:  # an import that was interrupted may raise anything
            sys.exit(130)
        raise


if __name__ == "__main__":
    main()
