"""What people see of a sweep: what will be run, the slots and the time left, and the ranked table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from inlay.cli import output
from inlay.cli.score_notes import majority
from inlay.cli.train_display import Progress, clock, decimals, show_done, spent
from inlay.screen import counted
from inlay.tracking.progress import rows_for

if TYPE_CHECKING:
    from inlay.comparison.runner import ComparisonRunner
    from inlay.sweeps.api import SweepRunner
    from inlay.sweeps.table import Sweep

_ROWS = 30
"""Settings in the printed table; files have all of them."""


class SweepProgress(Progress):
    """A live table of slots; where there is no terminal, a line for every run that ends."""

    def __init__(self, screen: output.Console, runner: SweepRunner | ComparisonRunner):
        super().__init__(screen, runner.runs)
        ended = [row for row in runner.result().rows if row.state in ("done", "pruned", "failed")]
        self.ended, self.failed = len(ended), sum(row.state == "failed" for row in ended)
        self._over = {row.label for row in ended}
        """Runs that have ended; one whose adapter is gone may be trained again, and counts once."""
        self.metric = runner.metric
        self.pruned = sum(row.state == "pruned" for row in ended)
        self._taken = 0
        """Steps taken here."""
        self._since = self.began
        """When steps could begin."""
        self._lengths: list[int] = []
        """Steps of each run that has begun."""

    def _begin(self, event: dict[str, Any]) -> None:
        super()._begin(event)
        if event["run"] in self._over:
            self._over.remove(event["run"])
            self.ended -= 1
        self._lengths.append(event["steps"])

    def _step(self, event: dict[str, Any]) -> None:
        super()._step(event)
        self._taken += 1

    def _eval(self, event: dict[str, Any]) -> None:
        row = self.active[event["run"]]
        metric = self._metric(event["run"])
        row["score"] = f"{metric} {decimals(event['metrics'][metric])}"

    def _done(self, event: dict[str, Any]) -> None:
        super()._done(event)
        self._over.add(event["run"])
        metric = self._metric(event["run"])
        self._line(event, f"{metric} {decimals(event['metrics']['validation'][metric])}")

    def _metric(self, run: str) -> str:
        """The deciding metric of a run: the same for all runs of a sweep."""
        return self.metric

    def _pruned(self, event: dict[str, Any]) -> None:
        row = self.active.pop(event["run"], {})
        self.ended += 1
        self.pruned += 1
        self._line(event, f"pruned after step {row.get('step', 0)}, {row.get('score', '')}")

    def _lost(self, event: dict[str, Any]) -> None:
        self.active.pop(event["run"], None)
        self.screen.print(f"{event['run']}: lost with its worker, runs again", style="yellow", soft_wrap=True)

    def _joined(self, event: dict[str, Any]) -> None:
        self._since = self._since if self._taken else time.monotonic()  # workers take time to start

    def _workers(self, event: dict[str, Any]) -> None:
        workers, nodes = (f"{event[k]} {k if event[k] > 1 else k[:-1]}" for k in ("workers", "nodes"))
        each = f" with {event['gpus']:g} GPU each" if event["gpus"] else ""
        self.screen.print(f"on Ray: {workers}{each}, in a cluster of {nodes}", style="dim")

    def _line(self, event: dict[str, Any], text: str) -> None:
        if self._live is None:
            self.screen.print(f"{self.ended}/{self.runs} {event['run']}: {text}", soft_wrap=True)

    def caption(self, now: float) -> str:
        """How far the sweep has come, and how long it will take."""
        parts = [f"{self.ended} of {self.runs} runs ended"]
        parts += [f"{n} {state}" for n, state in ((self.failed, "failed"), (self.pruned, "pruned")) if n]
        left = self.left(now)
        return ", ".join(parts) + f", {clock(now - self.began)}" + ("" if left is None else f", {clock(left)} left")

    def left(self, now: float) -> float | None:
        """Seconds, if steps stay as fast, and runs that have not begun are as long as the others on average."""
        if not self._taken or not self._lengths:
            return None
        under_way = sum(row["steps"] - row["step"] for row in self.active.values())
        waiting = max(0, self.runs - self.ended - len(self.active))
        steps: float = under_way + waiting * sum(self._lengths) / len(self._lengths)
        return (now - self._since) / self._taken * steps


def show_plan(screen: output.Console, runner: SweepRunner) -> None:
    """What will be run, and what is done already."""
    assert runner.data is not None
    data = runner.data
    for note in data.notes:
        screen.print(note, style="dim", soft_wrap=True)
    for warning in (*data.warnings, *_scored_apart(runner)):
        screen.print(warning, style="yellow", soft_wrap=True)
    test = f", {len(data.test.examples):,} to test" if data.test is not None else ""
    screen.print(f"task: {data.task.name}, {rows_for(data)}{test}; ranked by {data.metric} on validation rows")
    always, guess = majority(data)
    if guess:
        names = [name for name in dict.fromkeys((data.metric, "f1_macro")) if name in guess]
        scores = ", ".join(f"{name} {decimals(guess[name])}" for name in names)
        screen.print(f"majority ({always}): {scores}", soft_wrap=True)
    seeds = f" with {len(runner.seeds)} seeds" if len(runner.seeds) > 1 else ""
    settings = runner.runs // len(runner.seeds)
    varying = f", varying {', '.join(runner.space.keys)}" if runner.space.keys else ""
    how = f", {counted(settings, 'setting')}{seeds}{varying}"
    by = f", chosen by Optuna, pruned by {runner.search.pruner}" if runner.search is not None else ""
    screen.print(f"sweep: {counted(runner.runs, 'run')}{how}{by}", soft_wrap=True)
    show_done(screen, runner.result().rows)


def _scored_apart(runner: SweepRunner) -> list[str]:
    """A warning if only some settings are scored by folds, as few-shot runs are by default."""
    labels = {len(trial.data.folds): trial.label for trial in reversed(runner.trials)}
    if len(labels) < 2:
        return []
    most, least = max(labels), min(labels)
    rows = f"{least} folds" if least else "rows that are held out"
    warning = f"{labels[most]} is scored by {most} folds, {labels[least]} by {rows}: such scores cannot be compared"
    return [f"{warning}; pass --folds {most} to score all alike"]


def show_ranking(screen: output.Console, sweep: Sweep) -> None:
    """The ranked table, the winner, and where it is saved."""
    from inlay.sweeps.exports import cells, header

    columns = header(sweep)
    right = ("rank", "seconds", "parameters")
    table = output.table(*columns, right=right, keep=[c for c in columns if c != "method"])
    for entry in sweep.ranking[:_ROWS]:
        table.add_row(*cells(sweep, entry), style="bold" if entry is sweep.best else None)
    screen.print()
    screen.print(table)
    screen.print()
    if len(sweep.ranking) > _ROWS:
        screen.print(f"... and {len(sweep.ranking) - _ROWS} more settings; --csv F writes all of them", style="dim")
    for problem, labels in _problems(sweep).items():
        more = f" (and {len(labels) - 1} more)" if len(labels) > 1 else ""
        screen.print(f"{labels[0]}{more} failed: {problem}", style="red", soft_wrap=True)
    states = [f"{sweep.count(state)} {state}" for state in ("done", "pruned", "failed") if sweep.count(state)]
    screen.print(f"{', '.join(states)}; {spent(sweep.rows, sweep.store)}", soft_wrap=True)
    if sweep.ranking:
        _show_winner(screen, sweep)
    if sweep.version is not None:
        screen.print(f"{sweep.name}@{sweep.version}: saved to {sweep.library}", soft_wrap=True)
    elif sweep.ranking:
        screen.print("--best saves it to the library", style="dim")


def _show_winner(screen: output.Console, sweep: Sweep) -> None:
    if sweep.verdict is not None and sweep.verdict.why:
        screen.print(sweep.verdict.why)
    if sweep.verdict is not None:
        by = "winner, its run with the lowest validation loss" if sweep.best.seeds > 1 else "winner"
    else:
        by = "best by mean over seeds, in its best seed" if sweep.select == "mean" and sweep.best.seeds > 1 else "best"
    screen.print(f"{by}: {sweep.winner.label}", soft_wrap=True)
    if sweep.ensemble is None:
        return
    chosen = sweep.ensemble
    if len(chosen.members) == 1:
        screen.print("only one run has finished, so there is no ensemble", style="yellow")
        return
    members = ", ".join(f"{row.label}" + f" ({count} times)" * (count > 1) for row, count in chosen.members)
    screen.print(
        f"ensemble by validation {chosen.by}, {chosen.picks} picks among {chosen.candidates} runs: {members}",
        soft_wrap=True,
    )
    for split, scores in chosen.metrics.items():
        both = f"{decimals(scores[sweep.metric])}, the winner alone {decimals(chosen.single[split][sweep.metric])}"
        screen.print(f"{split} {sweep.metric}: {both}", soft_wrap=True)


def _problems(sweep: Sweep) -> dict[str, list[str]]:
    problems: dict[str, list[str]] = {}
    for row in sweep.rows:
        if row.state == "failed":
            problems.setdefault(row.error.replace(row.label, "it"), []).append(row.label)
    return problems
