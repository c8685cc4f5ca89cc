"""A bounded queue that is fair between tasks: deficit round robin, counted in tokens.

Every flow (a task) has a queue of its own. Flows take turns; a turn is worth `quantum` tokens, and unspent tokens are
kept while the flow has something waiting. So a flow gets its share of tokens however many items others have, and
however long they are. Room is shared as well: a flow may hold at most four times what is still free, so one that
floods the queue leaves a fifth of it to the others.

Not safe in threads: the engine holds its lock around every call.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

F = TypeVar("F", bound=Hashable)
T = TypeVar("T", bound=Hashable)

_SHARE = 4
"""One flow may hold this many times the free room."""


@dataclass
class _Flow(Generic[T]):
    costs: OrderedDict[T, int] = field(default_factory=OrderedDict)
    """Items in order, and the cost of each. A plain dict is slow at its front after many items were taken there."""
    deficit: int = 0


class FairQueue(Generic[F, T]):
    """Items of many flows."""

    def __init__(self, room: int, quantum: int = 64):
        self.room = room
        self.quantum = quantum
        self.cost = 0
        """Of everything that waits."""
        self._flows: OrderedDict[F, _Flow[T]] = OrderedDict()
        self._flow_of: dict[T, F] = {}
        self._deadlines: list[tuple[float, int, T]] = []
        self._numbers = itertools.count()
        self._under_way: F | None = None
        """The flow whose turn the end of a batch has interrupted."""

    def __len__(self) -> int:
        return len(self._flow_of)

    @property
    def flows(self) -> Iterable[F]:
        """Flows with something waiting, in the order of their turns."""
        return self._flows.keys()

    def length(self, flow: F) -> int:
        """How many items of a flow wait."""
        return len(self._flows[flow].costs) if flow in self._flows else 0

    def full(self, flow: F) -> bool:
        """Whether there is no room for one more of this flow."""
        free = self.room - len(self)
        return free <= 0 or self.length(flow) >= _SHARE * free

    def put(self, flow: F, item: T, cost: int, deadline: float | None = None) -> None:
        """Add an item; ask `full` first."""
        self._flows.setdefault(flow, _Flow()).costs[item] = cost
        self._flow_of[item] = flow
        self.cost += cost
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, next(self._numbers), item))

    def remove(self, item: T) -> bool:
        """Take an item out of the queue; False if it is not there."""
        name = self._flow_of.pop(item, None)
        if name is None:
            return False
        flow = self._flows[name]
        self.cost -= flow.costs.pop(item)
        if not flow.costs:
            del self._flows[name]
        return True

    def remove_flow(self, flow: F) -> list[T]:
        """Take out all items of a flow."""
        items = list(self._flows[flow].costs) if flow in self._flows else []
        for item in items:
            self.remove(item)
        return items

    def late(self, now: float) -> list[T]:
        """Take out all items whose deadline has passed."""
        late = []
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2] not in self._flow_of):
            item = heapq.heappop(self._deadlines)[2]
            if self.remove(item):
                late.append(item)
        return late

    @property
    def next_deadline(self) -> float | None:
        """The earliest time at which `late` has something to do."""
        return self._deadlines[0][0] if self._deadlines else None

    def take(self, budget: int, may: Callable[[F], bool] = lambda flow: True, flows: int | None = None) -> list[T]:
        """Take the next items, up to a total cost or at least one; from at most `flows` flows.

        Args:
            may: whether a flow can run now; one that cannot keeps its place.
        """
        turn = list(itertools.islice(filter(may, self._flows), flows))
        taken: list[T] = []
        while turn and budget > 0:
            again = []
            for name in turn:
                flow, alone = self._flows[name], len(turn) == 1
                flow.deficit += self.quantum if name != self._under_way else 0
                self._under_way = None
                while flow.costs:
                    item, cost = next(iter(flow.costs.items()))
                    if cost > flow.deficit and not alone:
                        break
                    if cost > budget and taken:
                        self._stop_at(name, alone)
                        return taken
                    flow.deficit = max(0, flow.deficit - cost)  # tokens that no other flow wanted are free
                    budget -= cost
                    taken.append(item)
                    self.remove(item)
                if flow.costs:
                    self._flows.move_to_end(name)
                    again.append(name)
            turn = again
        return taken

    def _stop_at(self, name: F, alone: bool) -> None:
        """A batch is full: the flow goes on with its turn in the next one, unless it had the batch to itself."""
        if alone:
            self._flows.move_to_end(name)
        else:
            self._under_way = name
