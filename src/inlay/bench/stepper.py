"""Training runs side by side, a block of steps at a time, through the training loop that `inlay train` uses.

The loop pauses between two blocks, so that other parties have their turn while ours stays in its steady state. It runs
in the main thread, as `inlay train` does: in another one the same steps take a third longer on the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from inlay.bank.delta import parse
from inlay.data.columns import Columns
from inlay.data.describe import Look
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.runs.prepare import Prepared, Split
from inlay.runs.run import make_run
from inlay.tasks import Example, Row
from inlay.tasks import parse as parse_task
from inlay.tracking.events import Event
from inlay.training.job import Job
from inlay.training.loop import Loop


class Stepper:
    """Runs that step when told to."""

    def __init__(self, host: Host, jobs: Sequence[Job], steps: int, warmup: int, wait: Callable[[], None]):
        """
        Args:
            steps: steps of a block.
            warmup: steps before the first block.
            wait: returns when the device is idle.
        """
        self._running = Loop(host, jobs, slots=len(jobs), callbacks=[_refuse_fewer], isolate=False).steps()
        self._steps, self._wait = steps, wait
        try:
            self._take(max(1, warmup))
        except BaseException:
            self.close()
            raise

    def block(self) -> float:
        """One block: milliseconds of a step of all runs."""
        self._wait()
        began = time.perf_counter()
        self._take(self._steps)
        self._wait()
        return 1000 * (time.perf_counter() - began) / self._steps

    def close(self) -> None:
        """End the runs, and take them out of the host."""
        self._running.close()

    def _take(self, steps: int) -> None:
        for _ in range(steps):
            if next(self._running, None) is None:
                raise RunError("the runs ended before the benchmark did")


def _refuse_fewer(event: Event) -> None:
    if event["event"] == "slots":
        raise RunError("the runs do not fit into memory side by side; try fewer --runs or --rows")


def jobs_for(method: str, ids: Sequence[Sequence[int]], runs: int, rows: int, steps: int) -> list[Job]:
    """Runs of one method that differ in their seeds, on these rows with random classes, never evaluated on the way."""
    task = parse_task("classification")
    all_rows = [Row(row, target=i % 2, example=i) for i, row in enumerate(ids)]
    examples = [Example(target=str(i % 2)) for i in range(len(ids))]
    settings: dict[str, Any] = {"data": "random rows", "method": method, "batch_size": rows, "lr": 1e-4, "pool": "cls"}
    settings |= {"max_steps": steps, "epochs": steps, "eval_every": steps + 1, "warmup": 0.0}
    jobs = []
    for seed in range(runs):
        data = Prepared(
            run=make_run({**settings, "seed": seed}),
            method=parse(method),
            task=task,
            columns=Columns(text="text", label="label"),
            labels=("0", "1"),
            metric="accuracy",
            train=Split(examples, all_rows),
            validation=Split(examples[:2], all_rows[:2]),
            test=None,
            text=None,
            weights=None,
            look=Look(rows=len(ids)),
        )
        jobs.append(Job(seed, f"run-{seed}", data))
    return jobs
