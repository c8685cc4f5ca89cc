"""What people see of a training: the data, and a live table with a row for every run.

Without a terminal, there is a line for every evaluation instead of the table; in a notebook, a line with a bar.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inlay.library.card_text import clock, percent, shortened
from inlay.runs.length import FEW_TO_VALIDATE
from inlay.screen import GAP, Lines, table
from inlay.untrusted import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from inlay.engine.host import Host
    from inlay.runs.prepare import Prepared
    from inlay.runs.result import Result

_ROWS = 24
_BAR = 20
ROOMY = 100
"""Characters of a wide console."""


class Progress:
    """A callback of the training loop."""

    def __init__(
        self,
        screen: Console | Lines,
        runs: int,
        deciding: Mapping[str, str] | None = None,
        evaluations: bool = True,
    ):
        """
        Args:
            deciding: run -> the metric to show; by default the first.
            evaluations: a line for each of them, where nothing can be drawn.
        """
        self.screen = screen
        self.runs = runs
        self.deciding = deciding or {}
        self.evaluations = evaluations and not screen.is_jupyter
        self.ended = 0
        self.failed = 0
        self.active: dict[str, dict[str, Any]] = {}
        self.began = time.monotonic()
        self._live: Live | None = None
        self._drawn = 0.0
        self._wide = 0

    def __enter__(self) -> Progress:
        if self.screen.is_terminal and not isinstance(self.screen, Lines):
            from rich.live import Live

            self._live = Live(self.table(), console=self.screen, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._rewrite("")

    def __call__(self, event: dict[str, Any]) -> None:
        """Take note of an event, and draw at most ten times a second."""
        getattr(self, f"_{event['event']}", lambda event: None)(event)
        now = time.monotonic()
        if event["event"] == "step" and now - self._drawn <= 0.1:
            return
        self._drawn = now
        if self._live is not None:
            self._live.update(self.table(), refresh=True)
        else:
            self._rewrite(self._bars(now))

    def _rewrite(self, line: str) -> None:
        """In a notebook: one line of stderr, over the one before. Live tables need ipywidgets there."""
        if self.screen.is_jupyter:
            sys.stderr.write(f"\r{line:<{self._wide}}\r{line}")
            sys.stderr.flush()
            self._wide = len(line)

    def _bars(self, now: float) -> str:
        """The run under way that is furthest, and how many others there are."""
        if not self.active:
            return ""
        name, row = max(self.active.items(), key=lambda item: item[1]["step"] / max(1, item[1]["steps"]))
        step, loss, score, left = _cells(row, now)
        bar = _bar(row, _BAR)
        parts = [shortened(visible(name), 20), bar, step, loss and f"loss {loss}", score, left and f"{left} left"]
        others = f"({self.caption(now)})" if self.runs > 1 else ""
        return "  ".join(filter(None, [*parts, others]))

    def _begin(self, event: dict[str, Any]) -> None:
        step, steps = event.get("step", 0), event["steps"]
        self.active[event["run"]] = {"steps": steps, "step": step, "began": time.monotonic(), "first": None}
        if step:
            self.screen.print(f"{event['run']}: continuing after step {step} of {steps}")

    def _step(self, event: dict[str, Any]) -> None:
        row = self.active[event["run"]]
        if row["first"] is None:
            row["first"] = event["step"] - 1  # after a resume, earlier steps took no time
        old = row.get("loss", event["loss"])
        row |= {"step": event["step"], "loss": 0.9 * old + 0.1 * event["loss"]}

    def _eval(self, event: dict[str, Any]) -> None:
        row = self.active[event["run"]]
        metric = self.deciding.get(event["run"]) or next(iter(event["metrics"]))
        row["score"] = f"{metric} {decimals(event['metrics'][metric])}"
        if self._live is None and self.evaluations:
            state = f"step {event['step']}/{row['steps']}, loss {decimals(event['loss'])}"
            self.screen.print(f"{event['run']}: {state}, {row['score']}", soft_wrap=True)

    def _done(self, event: dict[str, Any]) -> None:
        self.active.pop(event["run"], None)
        self.ended += 1

    def _failed(self, event: dict[str, Any]) -> None:
        self.active.pop(event["run"], None)
        self.ended += 1
        self.failed += 1
        if self.runs > 1:  # the failure of a single run ends the command, which says why
            self.screen.print(f"{event['run']} failed: {event['problem']}", style="red", soft_wrap=True)

    def _compiled(self, event: dict[str, Any]) -> None:
        self.screen.print(f"layers compiled in {event['seconds']:.0f} s")

    def _slots(self, event: dict[str, Any]) -> None:
        self.screen.print(f"out of memory: continuing with {event['slots']} runs at once", style="yellow")

    def table(self) -> Table:
        """The runs under way, one line each, however narrow the terminal is."""
        now = time.monotonic()
        shown = list(self.active.items())[: max(1, min(_ROWS, self.screen.height - 6))]
        longest = 20 if self.screen.width < ROOMY else 40
        cells = [(shortened(name, longest), *_cells(row, now)) for name, row in shown]
        if len(self.active) > len(shown):
            cells.append((f"... and {len(self.active) - len(shown)} more", "", "", "", ""))
        heads = ("run", "step", "loss", "validation", "left")
        taken = sum(max(len(row[i]) for row in (heads, *cells)) for i in range(len(heads)))
        room = min(_BAR, self.screen.width - taken - GAP * len(heads))
        bar = room if room >= 5 else 0
        columns = ("run", "step", *([" " * bar] if bar else []), "loss", "validation", "left")
        drawn = table(*columns, right=("step", "loss", "left"), keep=columns)
        for row, (name, step, *rest) in zip([row for _, row in shown] + [{}], cells, strict=False):
            drawn.add_row(name, step, *([_bar(row, bar)] if bar else []), *rest)
        if self.runs > 1:
            drawn.caption = self.caption(now)
        return drawn

    def caption(self, now: float) -> str:
        """How far all runs have come together."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.ended} of {self.runs} runs ended{failed}, {clock(now - self.began)}"


def _cells(row: Mapping[str, Any], now: float) -> tuple[str, str, str, str]:
    done = row["step"] - (row["first"] or 0)
    left = clock((now - row["began"]) / done * (row["steps"] - row["step"])) if done else ""
    loss = decimals(row["loss"]) if "loss" in row else ""
    return f"{row['step']}/{row['steps']}", loss, row.get("score", ""), left


def _bar(row: Mapping[str, Any], width: int) -> str:
    if not row:
        return ""
    filled = int(width * row["step"] / max(1, row["steps"]))
    return "━" * filled + "╌" * (width - filled)


def show_data(screen: Console | Lines, data: Prepared, host: Host) -> None:
    """Show what will be trained, and on what data."""
    from inlay.data import describe

    for note in data.notes:
        screen.print(note, style="dim", soft_wrap=True)
    for warning in data.warnings:
        screen.print(warning, style="yellow", soft_wrap=True)
    test = f", {len(data.test.examples):,} to test" if data.test is not None else ""
    screen.print(f"task: {data.task.name}, {rows_for(data)}{test}")
    for line in describe.lines(data.look):
        screen.print(line)
    if data.look.over_long and getattr(data.task, "long", "") == "cut":
        screen.print("texts that are too long are cut; --long windows reads all of them", style="dim")
    count = data.method.count(host.base.sites)
    share = percent(count / host.base.sites.size)
    screen.print(
        f"method: {data.method.spec}, {count:,} parameters ({share} of the base); {kept(data)}", soft_wrap=True
    )
    if data.run.few_shot:
        then = "training goes on as usual" if data.run.epochs else "nothing more is trained"
        plan = (
            f"{data.run.few_shot_steps} steps pull texts of the same class together, then a head is fitted and {then}"
        )
        screen.print(f"few-shot: {plan} (--no-few-shot turns this off)", style="dim", soft_wrap=True)
    if note := few_to_validate(data):
        screen.print(note, style="yellow", soft_wrap=True)
    if data.text is not None:
        from inlay.base.words import own_head

        head = (
            "the checkpoint's own head" if own_head(host.base) else "a fresh transform over the frozen word embeddings"
        )
        screen.print(f"first on the texts alone, with {head}")


def rows_for(data: Prepared) -> str:
    """How many rows there are to train on, and how many to validate."""
    unlabelled = f" and {len(data.unlabelled.examples):,} unlabelled" if data.unlabelled is not None else ""
    rows = f"{len(data.train.examples):,} rows{unlabelled} to train"
    score = f"scored by {len(data.folds)} folds" if data.folds else f"{len(data.validation.examples):,} to validate"
    return f"{rows}, {score}"


def kept(data: Prepared) -> str:
    """Which of a run's states is kept."""
    if data.run.choose_by == "last" or not data.run.epochs:
        return "the last state is kept"
    return f"best checkpoint chosen by {'validation loss' if data.run.choose_by == 'loss' else data.metric}"


def few_to_validate(data: Prepared) -> str:
    """What a small number of validation rows means for the score; empty if there are enough."""
    rows = len(data.validation.examples)
    if rows >= FEW_TO_VALIDATE:
        return ""
    few = "Only one validation row" if rows == 1 else f"Only {rows} validation rows"
    few = f"{rows} rows, each scored by a fold that has not seen it" if data.folds else few
    error = 50 / math.sqrt(rows)
    meaning = f"the standard error of an accuracy is up to {error:.0f} points, so ±{_off_by(rows)} points may be luck"
    option = "--val" if data.run.fold else "--val or --val-size"
    return f"{few}: {meaning}." + ("" if data.folds else f" Use {option} for more.")


def _off_by(rows: int) -> int:
    """Half of the 95 % interval of a share that is near one half, in points, to the nearest 5."""
    return min(50, max(5, 5 * round(98 / math.sqrt(rows) / 5)))


def show_runs(screen: Console | Lines, runs: Mapping[str, Prepared]) -> None:
    """Show what will be trained side by side, a line for each run."""
    for name, data in runs.items():
        screen.print(f"{name}: {data.task.name}, {rows_for(data)}, {data.method.spec}", soft_wrap=True)
        for warning in data.warnings:
            screen.print(f"{name}: {warning}", style="yellow", soft_wrap=True)


def show_end(screen: Console | Lines, results: Sequence[Result]) -> None:
    """How it went, in a line; of several runs also why some failed."""
    for result in results:
        if not result.ok:
            screen.print(f"{result.name} failed: {result.problem}", style="red", soft_wrap=True)
    if len(results) > 1:
        time_taken = clock(max(result.seconds for result in results))
        screen.print(f"{sum(result.ok for result in results)} of {len(results)} runs trained, {time_taken}")
    elif results[0].ok:
        result = results[0]
        score = f"validation {result.metric} {decimals(result.value)}"
        saved = "" if result.version is None else f", saved to {result.library} as {result.name}@{result.version}"
        state = f"{result.kept}, {clock(result.seconds)}"
        screen.print(f"{result.name}: {score}, {state}{saved}", soft_wrap=True)


def decimals(value: float) -> str:
    """Four decimals; what rounds to nothing has no sign."""
    text = f"{value:.4f}"
    return text.removeprefix("-") if text == "-0.0000" else text
