"""`inlay`: the command line's entry point.

Each command is a function in a file of its own. Modules here import neither torch nor transformers, so that
`--help` answers at once; commands import what they need when they run.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

import inlay
from inlay.cli import (
    analyze,
    bench,
    compare,
    demo,
    eval,
    export,
    info,
    library,
    params,
    plan,
    predict,
    recipe,
    report_page,
    retrain,
    serve,
    sweep,
    train,
)
from inlay.cli.help import App, Commands
from inlay.errors import RunError

app = App(cls=Commands)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("sweep")(sweep.sweep)
app.command("compare")(compare.compare)
app.command("retrain")(retrain.retrain)
app.command("eval")(eval.evaluate)
app.command("predict")(predict.predict)
app.command("serve", cls=serve.WatchesPlainly)(serve.serve)
app.command("params")(params.params)
app.command("plan")(plan.plan)
app.command("info")(info.info)
app.command("report")(report_page.report)
app.add_typer(analyze.app, name="analyze")
app.add_typer(library.app, name="library")
app.add_typer(export.app, name="export")
app.add_typer(recipe.app, name="recipe")
app.add_typer(bench.app, name="bench")


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


def main() -> None:
    """Run the command line; an interrupt ends it quietly with 130."""
    interrupts: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        app(prog_name="inlay")
    except Exception:
        if interrupts:  # an import that was interrupted may raise anything
            sys.exit(130)
        raise


if __name__ == "__main__":
    main()
