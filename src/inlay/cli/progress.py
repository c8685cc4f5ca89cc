"""What people see of a training: the data, a live table with a row for every run, and what came of it.

Where there is no terminal, a line for every evaluation takes the place of the table.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inlay.cli import output
from inlay.cli.verdicts import decimals as decimals
from inlay.cli.verdicts import few_to_validate, majority, nothing_learned, worse
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
_ROOMY = 100
"""A terminal of so many columns has room for everything."""


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
        most = 20 if self.screen.width < _ROOMY else 40
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
    always, guess = majority(data)
    columns = {**result.metrics, **({"majority": guess} if guess else {})}
    table = output.table("", *columns, right=list(columns))
    for name in names:
        marked = f"{name} *" if name == result.metric else name
        table.add_row(marked, *(decimals(found[name]) if name in found else "" for found in columns.values()))
    screen.print()
    screen.print(table)
    if guess:
        screen.print(f"majority: {always} on the {list(result.metrics)[-1]} rows", style="dim", soft_wrap=True)
    if note := worse(result):
        screen.print(f"\n{note}", style="yellow", soft_wrap=True)
    if note := nothing_learned(result, data):
        screen.print(f"\n{note}", style="yellow", soft_wrap=True)
    at = f"best after {result.best_step} steps (epoch {result.best_epoch:.1f}), {clock(result.seconds)}"
    screen.print(f"\n{result.name}@{result.version}: {at}, kept in {result.library}", soft_wrap=True)
    if data.task.kind != "mlm":  # it has no answers
        text = '"a question" --pair "a context"' if data.task.kind == "qa" else '"a text"'
        other = ' --pair "another text"' if data.columns.pair else ""
        screen.print(f"use it: inlay predict {result.name} {text}{other}", style="dim", soft_wrap=True)


def show_summary(screen: Console, results: Sequence[Result], library: str, prepared: Mapping[int, Prepared]) -> None:
    """How good the runs of a manifest are, and why some failed."""
    tested = any("test" in result.metrics for result in results)
    heads = ("validation", *(["test"] if tested else []), "majority", "f1_macro")
    sized = ["parameters"] if screen.width >= _ROOMY else []
    table = output.table("task", "method", *sized, "metric", *heads, right=("parameters", *heads))
    for number, result in enumerate(results):
        if result.ok:
            size = [f"{result.parameters['adapter']:,}"] if sized else []
            row = (f"{result.name}@{result.version}", result.method, *size)
            table.add_row(*row, result.metric, *_scores(result, majority(prepared[number])[1], tested))
        else:
            table.add_row(result.name, result.method, *[""] * len(sized), "failed", *[""] * len(heads))
    screen.print()
    screen.print(table)
    screen.print()
    bad = [result for result in results if not result.ok]
    for number, result in enumerate(results):
        said = [worse(result), nothing_learned(result, prepared[number])] if result.ok else []
        for note in filter(None, said):
            screen.print(f"{result.name}: {note}", style="yellow", soft_wrap=True)
    for result in bad:
        screen.print(f"{result.name} failed: {result.problem}", style="red", soft_wrap=True)
    screen.print(f"{len(results) - len(bad)} of {len(results)} tasks trained, kept in {library}", soft_wrap=True)


def _scores(result: Result, guess: Mapping[str, float], tested: bool) -> list[str]:
    """The deciding metric on both splits and of the majority, and macro F1, on the last split."""
    last = list(result.metrics.values())[-1]
    found = [result.metrics.get(split, {}).get(result.metric) for split in ("validation", "test")[: 1 + tested]]
    found += [guess.get(result.metric), last.get("f1_macro")]
    return ["" if value is None else decimals(value) for value in found]
