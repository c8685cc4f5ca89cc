"""Training runs side by side, a block of steps at a time, through the training loop that everyone uses.

The loop runs in a thread of its own that waits between two blocks, so that other parties have their turn while ours
stays in its steady state. Only one thread ever computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from inlay.bank.delta import parse
from inlay.data.columns import Columns
from inlay.data.describe import Look
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.tasks import Example, Row
from inlay.tasks import parse as parse_task
from inlay.training.job import Job
from inlay.training.loop import Event, Loop
from inlay.training.prepare import Part, Prepared
from inlay.training.run import make_run


class _Stopped(Exception):  # noqa: N818 - it never leaves the thread
    """The benchmark has what it wants."""


class Stepper:
    """Runs that step when told to."""

    def __init__(self, host: Host, jobs: Sequence[Job], steps: int, warmup: int, wait: Callable[[], None]):
        """
        Args:
            steps: steps of a block.
            warmup: steps before the first block.
            wait: returns when the device is idle.
        """
        self._loop = Loop(host, jobs, slots=len(jobs), callbacks=[self._heard], isolate=False)
        self._last = jobs[-1].index
        self._left = max(1, warmup)
        self._steps, self._wait = steps, wait
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._began = self._seconds = 0.0
        self._problem: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._take_turn()

    def block(self) -> float:
        """One block: milliseconds of a step of all runs."""
        self._take_turn()
        return 1000 * self._seconds / self._steps

    def close(self) -> None:
        """End the runs, and take them out of the host."""
        self._stopping = True
        self._go.release()
        self._thread.join()

    def _take_turn(self) -> None:
        self._go.release()
        self._done.acquire()
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._start()
            self._loop.run()
            raise RunError("the runs ended before the benchmark did")
        except _Stopped:
            pass
        except BaseException as error:
            self._problem = error
        self._done.release()

    def _start(self) -> None:
        if self._stopping:
            raise _Stopped
        self._wait()
        self._began = time.perf_counter()

    def _heard(self, event: Event) -> None:
        if event["event"] == "slots":
            raise RunError("the runs do not fit into memory side by side; try fewer --runs or --rows")
        if event["event"] != "step" or event["index"] != self._last:
            return
        self._left -= 1
        if self._left:
            return
        self._wait()
        self._seconds = time.perf_counter() - self._began
        self._left = self._steps
        self._done.release()
        self._go.acquire()
        self._start()


def jobs_for(method: str, ids: Sequence[Sequence[int]], runs: int, rows: int, steps: int) -> list[Job]:
    """Runs of one method that differ in their seeds, on these rows with random classes, never evaluated on the way."""
    task = parse_task("classification")
    made = [Row(row, target=i % 2, example=i) for i, row in enumerate(ids)]
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
            train=Part(examples, made),
            validation=Part(examples[:2], made[:2]),
            test=None,
            text=None,
            weights=None,
            look=Look(rows=len(ids)),
        )
        jobs.append(Job(seed, f"run-{seed}", data))
    return jobs
