"""Interleaving and numbers: every party runs one block, then every party the next, so that a slow minute hits all.

The first round settles caches and compiled code and is not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inlay.bench.peers import PeerError

OURS = "inlay"
BARE = "bare base"


@dataclass
class Party:
    """One side of the comparison."""

    name: str
    run: Callable[[], float]
    """Do one block; milliseconds of one step or batch."""
    share: int = 1
    """How many of its steps do the work of one of ours: K where it has one run at a time and we have K."""
    about: dict[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    problem: str = ""


def interleave(parties: Sequence[Party], repeats: int) -> None:
    """Run all in turns; a peer that fails is taken out, with the reason, and its times are kept."""
    for turn in range(repeats + 1):
        for party in parties:
            if party.problem:
                continue
            try:
                ms = party.run()
            except PeerError as error:
                party.problem = str(error)
                continue
            if turn:
                party.times.append(ms)


def summary(party: Party) -> dict[str, Any]:
    """All measurements of one party."""
    facts: dict[str, Any] = {"ms": party.times, "share": party.share, **party.about}
    if party.problem:
        facts["problem"] = party.problem
    if party.times:
        cost = [party.share * ms for ms in party.times]
        low, middle, high = quartiles(cost)
        facts |= {"cost_ms": middle, "quartiles_ms": [low, high]}
    return facts


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, statistics.median(values), high


def ratios(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What every other party costs, as a multiple of our cost."""
    ours = summaries[OURS].get("cost_ms")
    if not ours:
        return {}
    return {name: s["cost_ms"] / ours for name, s in summaries.items() if name != OURS and "cost_ms" in s}
