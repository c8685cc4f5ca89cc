"""One training in several processes, each with the whole base and its share of every batch: data parallelism.

    torchrun --nproc-per-node 2 -m inlay.cli.main train DATA

Every process makes the same plans from the same seeds; what differs is which rows it runs. Gradients of the adapters in
training are added up (never anything of the base), so all processes take the same step and stay equal to the last bit.
What depends on a process's own clock or memory (when to save, how many runs fit) is agreed upon, in messages that go
between CPUs, so that no process waits for a GPU because of them.

A share is rows one after the other, so that its tokens are too, and dropout can count them as the whole batch would.
Losses are means over the whole batch: a share has the whole batch's weights of its rows, so that the shares' losses add
up to the loss of all rows, whatever the mean is over.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from inlay.engine.evaluate import outputs_of
from inlay.engine.host import Host
from inlay.errors import InlayError, RunError
from inlay.tasks import Row, Targets, Task

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Share:
    """Rows and tokens from the first number up to the second."""

    rows: tuple[int, int]
    tokens: tuple[int, int]
    counts: bool = True
    """Whether its losses count; with fewer rows than processes, some run a row that another one has too."""

    def rows_of(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows that are here."""
        return rows[slice(*self.rows)]

    def of(self, targets: Targets, task: Task) -> Targets:
        """The units that look at rows here; their weights stay those of the whole batch."""
        low, high = self.tokens if task.per_token else self.rows
        at = targets.at if targets.at.ndim == 2 else targets.at[:, None]
        last = at.max(1)
        first = np.where(at < 0, last[:, None], at).min(1)
        inside = (first >= low) & (last < high)
        if self.counts and ((last >= low) & (first < high) & ~inside & (last >= 0)).any():
            raise RunError(f"{task.name} compares several rows at once; its batches cannot be shared among processes")
        chosen = (inside | ((last < 0) & (low == 0))) if self.counts else np.zeros_like(inside)
        moved = np.where(targets.at < 0, -1, targets.at - low)[chosen]
        return Targets(moved, targets.value[chosen], targets.weight[chosen])


def share(lengths: Sequence[int], rank: int, size: int) -> Share:
    """The share of one of `size` processes in rows of these lengths: about as many tokens for each of them."""
    ends = list(itertools.accumulate(lengths, initial=0))
    middles = [(a + b) / 2 for a, b in itertools.pairwise(ends)]
    start, end = (bisect.bisect_left(middles, ends[-1] * r / size) for r in (rank, rank + 1))
    if start == end:
        return Share((0, 1), (0, ends[1]), counts=False)
    return Share((start, end), (ends[start], ends[end]))


class _AllShort(torch.OutOfMemoryError):
    """Memory ran out in some process, and all know it."""


class Ranks:
    """This process among those that train together; a single one asks no others."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.lost = False
        """Whether another process is gone; nothing can go on then."""

    @property
    def leads(self) -> bool:
        """Whether this is the process that talks and writes."""
        return self.rank == 0

    def share(self, rows: Sequence[Row], whole: bool = False) -> Share | None:
        """Which of a batch's rows to run; None for all.

        Args:
            whole: rows are compared with one another, so one process runs all of them.
        """
        if self.size == 1:
            return None
        lengths = [len(row.ids) for row in rows]
        if not whole:
            return share(lengths, self.rank, self.size)
        return Share((0, len(rows)), (0, sum(lengths))) if self.leads else Share((0, 1), (0, lengths[0]), counts=False)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag whether it is set in any process."""
        if self.size == 1:
            return flags
        shared = torch.tensor(flags, dtype=torch.int32)
        with self._asking():
            dist.all_reduce(shared, dist.ReduceOp.MAX)
        return tuple(map(bool, shared.tolist()))

    def least(self, number: int) -> int:
        """The smallest of all processes' numbers."""
        if self.size == 1:
            return number
        smallest = torch.tensor(number)
        with self._asking():
            dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def adding(self, tensors: Iterable[Tensor]) -> Callable[[], None]:
        """Take the memory to replace tensors by their sums over all processes. The function returned does it, in one
        exchange."""
        if self.size == 1:  # not even listed then: a step of many runs has thousands
            return lambda: None
        summed = list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in summed])

        def exchange() -> None:
            with self._asking():
                dist.all_reduce(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in summed])
            for tensor, part in zip(summed, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

        return exchange

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """If memory runs out in one process, it counts as run out in all of them.

        Every exchange that may follow memory running out comes right after such a block, so that a process that is
        short meets the others at the end of theirs; blocks may contain others.
        """
        short = False
        try:
            yield
        except _AllShort:
            raise
        except torch.OutOfMemoryError:
            if self.size == 1:
                raise
            short = True
        if self.size > 1 and self.any(short)[0]:
            raise _AllShort("a process has no memory left for this")

    def outputs(
        self,
        host: Host,
        parts: Sequence[tuple[str, Sequence[Row]]],
        before_batch: Callable[[], None] | None = None,
    ) -> list[Sequence[Tensor]]:
        """`outputs_of`, every process running some of the rows; all get all of them.

        Args:
            before_batch: may end it, where no other process waits for this one.
        """
        if self.size == 1:
            return outputs_of(host, parts, before_batch)
        with self.agreeing():
            own_outputs = outputs_of(host, [(name, rows[self.rank :: self.size]) for name, rows in parts])
        outputs_of_rank: list[Any] = [None] * self.size
        with self._asking():
            dist.all_gather_object(outputs_of_rank, own_outputs)
        return [
            [outputs_of_rank[i % self.size][number][i // self.size] for i in range(len(rows))]
            for number, (_, rows) in enumerate(parts)
        ]

    def same(self, value: Any) -> Any:
        """The leader's value."""
        if self.size == 1:
            return value
        values = [value]
        with self._asking():
            dist.broadcast_object_list(values)
        return values[0]

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.lost = True
            reason = str(error).splitlines()[0].rpartition("] ")[2].partition(". ")[0]
            raise RunError(
                f"process {self.rank} of {self.size} cannot continue: another process stopped, its message says why "
                f"({reason[:200]})"
            ) from None


ALONE = Ranks()


@contextmanager
def joined() -> Iterator[Ranks]:
    """The processes that torchrun has started together with this one; outside torchrun there is only this one.

    On CUDA every process takes a GPU of its own; gradients then travel by NCCL, else by Gloo. A process group that is
    there already is used; it must exchange tensors of the CPU too, as torch's default does.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or any(name not in os.environ for name in _NEEDED):
        yield ALONE
        return
    if dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    backend, cards, here = "gloo", torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
    if cards:
        torch.cuda.set_device(here % cards)
        has_own_gpu = int(os.environ.get("LOCAL_WORLD_SIZE", size)) <= cards  # NCCL wants a GPU for every process
        backend = "cpu:gloo,cuda:nccl" if has_own_gpu else "gloo"
    try:
        dist.init_process_group(backend)
    except (RuntimeError, ValueError) as error:
        raise RunError(f"the processes that torchrun started do not find each other: {error}") from None
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    try:
        yield ranks
    except InlayError as error:
        if ranks.leads or ranks.lost:
            raise
        raise type(error)(f"process {ranks.rank} of {ranks.size}: {error}") from None
    finally:
        dist.destroy_process_group()
