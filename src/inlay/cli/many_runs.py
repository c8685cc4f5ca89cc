"""What sweeps, comparisons and recipes share: how runs are run and shown, and where results go."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import typer

from inlay.cli import options, output, preflight, train
from inlay.cli.sweep_display import SweepProgress

if TYPE_CHECKING:
    from inlay.comparison.runner import ComparisonRunner
    from inlay.comparison.table import Comparison
    from inlay.sweeps.api import SweepRunner
    from inlay.sweeps.store import Store
    from inlay.sweeps.table import Sweep
    from inlay.tracking.logs import Log

T = TypeVar("T")


class ManyRuns(NamedTuple):
    """How a sweep or a comparison is run, and where its results go."""

    slots: options.Slots = None
    compile: options.Compile = None
    weights: options.TrainWeights = None
    restart: options.StartOver = False
    save_every: options.SaveEvery = 60
    engine: options.Engine = "local"
    address: options.Address = None
    workers: options.Workers = None
    library: options.Library = None
    store: options.Store = None
    csv: options.Csv = None
    latex: options.Latex = None
    plot: options.Plot = None
    log: options.Log = None
    as_json: output.AsJson = False

    def check(self, base: str | None, problems: preflight.Problems) -> None:
        """Gather what is wrong with these options and the base."""
        problems.check(preflight.check_base, base)
        problems.check(preflight.check_engine, self.engine, self.address, {"--workers": self.workers})
        problems.check(preflight.check_logs, self.log)
        problems.check(preflight.check_writable, self.csv, self.latex, self.plot)
        problems.check(preflight.check_plot, self.plot)

    @contextlib.contextmanager
    def opened(self, default: Path) -> Iterator[tuple[Store, list[Log]]]:
        """The file of results, and the logs."""
        with open_store(self.store or default, self.restart) as store, train.open_logs(self.log) as logs:
            yield store, logs

    def finish(self, screen: output.Console, results: Sweep | Comparison) -> None:
        """Write the files and the document."""
        for path, write in ((self.csv, results.to_csv), (self.latex, results.to_latex), (self.plot, results.plot)):
            if path is not None:
                write(path)
                screen.print(f"written: {path}", style="dim", soft_wrap=True)
        output.document(results.document(), self.as_json)


@contextlib.contextmanager
def open_store(path: Path, restart: bool) -> Iterator[Store]:
    """The file of results; `restart` empties it."""
    from inlay.sweeps.store import Store, remove

    if restart:
        remove(path)
    with Store(path) as opened:
        yield opened


def run_shown(
    runner: SweepRunner | ComparisonRunner, progress: SweepProgress, screen: output.Console, run: Callable[[], T]
) -> T:
    """Run what has not been run, and show progress; after Ctrl-C, say how to continue."""
    try:
        with train.default_interrupt(), progress:
            runner.engine.callbacks = [progress, *runner.engine.callbacks]
            return run()
    except KeyboardInterrupt as stopped:
        again = shlex.join(["inlay", *(a for a in sys.argv[1:] if a != "--restart")])
        screen.print(f"\nstopped; finished work is saved. To continue:\n  {again}", soft_wrap=True)
        raise typer.Exit(train.code_of(stopped)) from None
