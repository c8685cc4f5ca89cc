"""What people see of a training: the data, a live table with a row for every run, and what came of it.

Where there is no terminal, a line for every evaluation takes the place of the table.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inlay.cli import output
from inlay.library.about import clock as clock

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from inlay.engine.host import Host
    from inlay.training.prepare import Prepared
    from inlay.training.result import Result

_ROWS = 24
_BAR = 20
FEW_TO_VALIDATE = 50
"""Below this a score on validation rows says little: with 50, 14 points more or less are luck."""


class Progress:
    """A callback of the training loop."""

    def __init__(self, screen: Console, runs: int, deciding: Mapping[str, str] | None = None):
        """
        Args:
            deciding: run -> the metric to show; by default the first.
        """
        self.screen = screen
        self.runs = runs
        self.deciding = deciding or {}
        self.ended = 0
        self.failed = 0
        self.active: dict[str, dict[str, Any]] = {}
        self.began = time.monotonic()
        self._live: Live | None = None
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        from rich.live import Live

        if self.screen.is_terminal:
            self._live = Live(self.table(), console=self.screen, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: dict[str, Any]) -> None:
        """Take note of an event, and draw at most ten times a second."""
        getattr(self, f"_{event['event']}", lambda event: None)(event)
        now = time.monotonic()
        if self._live is not None and (event["event"] != "step" or now - self._drawn > 0.1):
            self._live.update(self.table(), refresh=True)
            self._drawn = now

    def _begin(self, event: dict[str, Any]) -> None:
        at, steps = event.get("step", 0), event["steps"]
        self.active[event["run"]] = {"steps": steps, "step": at, "began": time.monotonic(), "first": None}
        if at:
            self.screen.print(f"{event['run']}: going on after step {at} of {steps}")

    def _step(self, event: dict[str, Any]) -> None:
        row = self.active[event["run"]]
        if row["first"] is None:
            row["first"] = event["step"] - 1  # after a resume, earlier steps took no time
        old = row.get("loss", event["loss"])
        row |= {"step": event["step"], "loss": 0.9 * old + 0.1 * event["loss"]}

    def _eval(self, event: dict[str, Any]) -> None:
        row = self.active[event["run"]]
        metric = self.deciding.get(event["run"]) or next(iter(event["metrics"]))
        row["found"] = f"{metric} {decimals(event['metrics'][metric])}"
        if self._live is None:
            at = f"step {event['step']}/{row['steps']}, loss {decimals(event['loss'])}"
            self.screen.print(f"{event['run']}: {at}, {row['found']}", soft_wrap=True)

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
        self.screen.print(f"memory ran out: going on with {event['slots']} runs at once", style="yellow")

    def table(self) -> Table:
        """The runs under way, one line each, however narrow the terminal is."""
        now = time.monotonic()
        shown = list(self.active.items())[: max(1, min(_ROWS, self.screen.height - 6))]
        most = 20 if self.screen.width < 100 else 40
        cells = [(_cut(name, most), *_cells(row, now)) for name, row in shown]
        if len(self.active) > len(shown):
            cells.append((f"... and {len(self.active) - len(shown)} more", "", "", "", ""))
        heads = ("run", "step", "loss", "validation", "left")
        taken = sum(max(len(row[i]) for row in (heads, *cells)) for i in range(len(heads)))
        room = min(_BAR, self.screen.width - taken - output.GAP * len(heads))
        bar = room if room >= 5 else 0
        columns = ("run", "step", *([" " * bar] if bar else []), "loss", "validation", "left")
        table = output.table(*columns, right=("step", "loss", "left"), keep=columns)
        for row, (name, step, *rest) in zip([row for _, row in shown] + [{}], cells, strict=False):
            table.add_row(name, step, *([_bar(row, bar)] if bar else []), *rest)
        if self.runs > 1:
            table.caption = self.caption(now)
        return table

    def caption(self, now: float) -> str:
        """How far all runs have come together."""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.ended} of {self.runs} runs ended{failed}, {clock(now - self.began)}"


def _cells(row: Mapping[str, Any], now: float) -> tuple[str, str, str, str]:
    done = row["step"] - (row["first"] or 0)
    left = clock((now - row["began"]) / done * (row["steps"] - row["step"])) if done else ""
    loss = decimals(row["loss"]) if "loss" in row else ""
    return f"{row['step']}/{row['steps']}", loss, row.get("found", ""), left


def _bar(row: Mapping[str, Any], width: int) -> str:
    if not row:
        return ""
    filled = int(width * row["step"] / max(1, row["steps"]))
    return "━" * filled + "╌" * (width - filled)


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def show_data(screen: Console, data: Prepared, host: Host) -> None:
    """What will be trained, on what."""
    from inlay.data import describe

    for note in data.notes:
        screen.print(note, style="dim", soft_wrap=True)
    test = f", {len(data.test.examples):,} to test" if data.test is not None else ""
    screen.print(
        f"task: {data.task.name}, {len(data.train.examples):,} rows to train, "
        f"{len(data.validation.examples):,} to validate{test}"
    )
    for line in describe.lines(data.look):
        screen.print(line)
    if data.look.over_long and getattr(data.task, "long", "") == "cut":
        screen.print("texts that are too long are cut; --long windows uses all of them", style="dim")
    count = data.method.count(host.base.sites)
    share = output.percent(count / host.base.sites.size)
    screen.print(f"method: {data.method.spec}, {count:,} parameters ({share} of the base); decided by {data.metric}")
    if note := few_to_validate(data):
        screen.print(note, style="yellow", soft_wrap=True)
    if data.text is not None:
        from inlay.base.words import own_head

        head = (
            "the checkpoint's own head" if own_head(host.base) else "a fresh transform over the frozen word embeddings"
        )
        screen.print(f"first on the texts alone, with {head}")


def show_result(screen: Console, result: Result, data: Prepared) -> None:
    """How good a single run is, and how to use it."""
    names = list(dict.fromkeys(name for found in result.metrics.values() for name in found))
    table = output.table("", *result.metrics, right=list(result.metrics))
    for name in names:
        marked = f"{name} *" if name == result.metric else name
        table.add_row(marked, *(decimals(found[name]) if name in found else "" for found in result.metrics.values()))
    screen.print()
    screen.print(table)
    if note := nothing_learned(result, data):
        screen.print(f"\n{note}", style="yellow", soft_wrap=True)
    at = f"best after {result.best_step} steps (epoch {result.best_epoch:.1f}), {clock(result.seconds)}"
    screen.print(f"\n{result.name}@{result.version}: {at}, kept in {result.library}", soft_wrap=True)
    if data.task.kind != "mlm":  # it has no answers
        text = '"a question" --pair "a context"' if data.task.kind == "qa" else '"a text"'
        other = ' --pair "another text"' if data.columns.pair else ""
        screen.print(f"use it: inlay predict {result.name} {text}{other}", style="dim", soft_wrap=True)


def show_summary(screen: Console, results: Sequence[Result], library: str) -> None:
    """How good the runs of a manifest are, and why some failed."""
    tested = any("test" in result.metrics for result in results)
    columns = ("task", "method", "parameters", "metric", "validation", *(["test"] if tested else []))
    table = output.table(*columns, right=("parameters", "validation", "test"))
    for result in results:
        if result.ok:
            found = [result.metrics.get(split, {}).get(result.metric) for split in ("validation", "test")]
            cells = ["" if value is None else decimals(value) for value in (found if tested else found[:1])]
            row = (f"{result.name}@{result.version}", result.method, f"{result.parameters['adapter']:,}")
            table.add_row(*row, result.metric, *cells)
        else:
            table.add_row(result.name, result.method, "", "failed", *[""] * (2 if tested else 1))
    screen.print()
    screen.print(table)
    screen.print()
    bad = [result for result in results if not result.ok]
    for result in bad:
        screen.print(f"{result.name} failed: {result.problem}", style="red", soft_wrap=True)
    screen.print(f"{len(results) - len(bad)} of {len(results)} tasks trained, kept in {library}", soft_wrap=True)


def few_to_validate(data: Prepared) -> str:
    """What a small number of validation rows means for the score; empty if there are enough."""
    rows = len(data.validation.examples)
    if rows >= FEW_TO_VALIDATE:
        return ""
    only = "only one validation row" if rows == 1 else f"only {rows} validation rows"
    means = f"a share of them, such as accuracy, can be off by {_off_by(rows)} points"
    return f"{only}: {means}, and the best state is chosen by it; more rows: --val FILE, or --val-size"


def _off_by(rows: int) -> int:
    """Half of the 95 % interval of a share that is near one half, in points, to the nearest 5."""
    return min(50, max(5, 5 * round(98 / math.sqrt(rows) / 5)))


def nothing_learned(result: Result, data: Prepared) -> str:
    """A hint when a run is no better than a guess that needs no training; empty if it is."""
    advice = "try more epochs or a higher learning rate"
    if result.value == 0 and result.metric.startswith(("f1", "matthews")):
        return f"{result.metric} is 0: nothing was learned yet; {advice}"
    if data.task.kind == "classification" and "accuracy" in result.metrics["validation"]:
        label, count = Counter(e.target for e in data.validation.examples).most_common(1)[0]
        if result.metrics["validation"]["accuracy"] <= count / len(data.validation.examples):
            return f"no better than always answering {label!r} on the validation rows; {advice}"
    return ""


def decimals(value: float) -> str:
    """Four decimals; what rounds to nothing has no sign."""
    text = f"{value:.4f}"
    return text.removeprefix("-") if text == "-0.0000" else text
