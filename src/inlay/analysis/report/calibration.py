"""Whether an adapter is as sure as it should be: reliability diagram and calibration error (Guo et al. 2017).

Decisions are sorted into equal bins by how sure the adapter was. In each bin, the mean of that is compared with the
share that was right; the expected calibration error is the mean gap, weighted by the bins' decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inlay import drawing
from inlay.analysis.report.predictions import Decision

BINS = 10


@dataclass(frozen=True)
class Bin:
    """The decisions within a range of sureness."""

    low: float
    high: float
    count: int
    sure: float
    """Mean."""
    right: float
    """Share."""


@dataclass(frozen=True)
class Reliability:
    """All bins that have decisions, and their expected calibration error."""

    bins: tuple[Bin, ...]
    count: int
    ece: float

    def document(self) -> dict[str, Any]:
        """As JSON."""
        bins = [vars(b) for b in self.bins]
        return {"ece": self.ece, "decisions": self.count, "bins": bins}


def reliability(decisions: Sequence[Decision]) -> Reliability:
    """Sort decisions into equal bins, each with its upper end: (low, high]."""
    decisions_of: list[list[Decision]] = [[] for _ in range(BINS)]
    for sure, is_right in decisions:
        number = next((i for i in range(BINS) if sure <= (i + 1) / BINS), BINS - 1)
        decisions_of[number].append((sure, is_right))
    bins = []
    for i, inside in enumerate(decisions_of):
        if inside:
            n = len(inside)
            sure, right = (sum(column) / n for column in zip(*inside, strict=True))
            bins.append(Bin(i / BINS, (i + 1) / BINS, n, sure, right))
    total = len(decisions)
    ece = sum(b.count / total * abs(b.sure - b.right) for b in bins) if total else 0.0
    return Reliability(tuple(bins), total, ece)


def draw(served: Reliability, raw: Reliability) -> Any:
    """The diagram, over bars of how many decisions each bin has."""
    figure, panel = drawing.single(width=3.6, height=3.2)
    panel.plot([0, 1], [0, 1], color="#7F7F7F", lw=1, ls="--")
    width = 1 / BINS * 0.9
    centres = [(b.low + b.high) / 2 for b in served.bins]
    most = max(b.count for b in served.bins)
    panel.bar(centres, [0.25 * b.count / most for b in served.bins], width, color="#7F7F7F", alpha=0.3, lw=0)
    if raw != served:
        style = {"color": drawing.COLOURS[1], "lw": 1.2, "ls": ":", "marker": "s", "markersize": 3.5}
        panel.plot([b.sure for b in raw.bins], [b.right for b in raw.bins], **style, label="without temperature")
    style = {"color": drawing.COLOURS[0], "lw": 1.6, "marker": "o", "markersize": 4.5}
    panel.plot([b.sure for b in served.bins], [b.right for b in served.bins], **style, label="as served")
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1.02)
    drawing.label(panel, "confidence (mean score of a bin)", "share that is right")
    if raw != served:
        drawing.legend(figure, drawing.handles([panel]), 2)
    return figure
