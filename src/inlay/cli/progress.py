"""What people see while runs train: a live table with a row for every run; plain lines where there is no terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from inlay.cli import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

_ROWS = 24


class Progress:
    """A callback of the training loop."""

    def __init__(self, screen: Console, runs: int):
        self.screen = screen
        self.runs = runs
        self.ended = 0
        self.failed = 0
        self.active: dict[str, dict[str, Any]] = {}
        self.steps = self.steps_done = 0
        self.began = time.monotonic()
        self._live: Live | None = None
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        from rich.live import Live

        if self.screen.is_terminal:
            self._live = Live(self._table(), console=self.screen, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take note of an event, and draw at most ten times a second."""
        getattr(self, f"_{event['event']}", lambda event: None)(event)
        now = time.monotonic()
        if self._live is not None and (event["event"] != "step" or now - self._drawn > 0.1):
            self._live.update(self._table(), refresh=True)
            self._drawn = now

    def _begin(self, event: dict[str, Any]) -> None:
        self.active[event["run"]] = {"steps": event["steps"], "step": 0, "began": time.monotonic(), "first": None}

    def _step(self, event: dict[str, Any]) -> None:
        row = self.active[event["run"]]
        if row["first"] is None:
            row["first"] = event["step"] - 1  # after a resume, earlier steps took no time
        old = row.get("loss", event["loss"])
        row |= {"step": event["step"], "loss": 0.9 * old + 0.1 * event["loss"]}

    def _eval(self, event: dict[str, Any]) -> None:
        row = self.active[event["run"]]
        row["metrics"] = event["metrics"]
        if self._live is None:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in list(event["metrics"].items())[:3])
            self.screen.print(f"{event['run']}: step {event['step']}, loss {event['loss']:.4f}, {shown}")

    def _done(self, event: dict[str, Any]) -> None:
        self.active.pop(event["run"], None)
        self.ended += 1

    def _failed(self, event: dict[str, Any]) -> None:
        self.active.pop(event["run"], None)
        self.ended += 1
        self.failed += 1
        self.screen.print(f"{event['run']} failed: {event['problem']}", style="red")

    def _slots(self, event: dict[str, Any]) -> None:
        self.screen.print(f"memory ran out: going on with {event['slots']} runs at once", style="yellow")

    def _table(self) -> Table:
        table = output.table("run", "step", "", "loss", "validation", "left", right=("step", "loss", "left"))
        now = time.monotonic()
        for name, row in list(self.active.items())[:_ROWS]:
            share = row["step"] / max(1, row["steps"])
            filled = round(20 * share)
            done = row["step"] - (row["first"] or 0)
            left = (now - row["began"]) / done * (row["steps"] - row["step"]) if done else None
            found = row.get("metrics", {})
            metric = next((f"{n} {v:.4f}" for n, v in found.items()), "")
            bar = "━" * filled + "╌" * (20 - filled)
            loss = f"{row['loss']:.4f}" if "loss" in row else ""
            table.add_row(name, f"{row['step']}/{row['steps']}", bar, loss, metric, "" if left is None else clock(left))
        if len(self.active) > _ROWS:
            table.add_row(f"... and {len(self.active) - _ROWS} more", "", "", "", "", "")
        if self.runs > 1:
            failed = f", {self.failed} failed" if self.failed else ""
            table.caption = f"{self.ended} of {self.runs} runs ended{failed}, {clock(now - self.began)}"
        return table


def clock(seconds: float) -> str:
    """`1:05:09` or `5:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
