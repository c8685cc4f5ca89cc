"""Is it as sure as it should be: reliability diagram and expected calibration error (Guo et al. 2017).

Decisions are sorted into equal bins by how sure the adapter was. In each, the mean of that is compared with the share
that was right; the error is the mean gap, each bin weighed by its decisions.
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
    """The decisions of one stretch of sureness."""

    low: float
    high: float
    count: int
    sure: float
    """Mean."""
    right: float
    """Share."""


@dataclass(frozen=True)
class Reliability:
    """All bins that have decisions, and what they come to."""

    bins: tuple[Bin, ...]
    count: int
    ece: float

    def document(self) -> dict[str, Any]:
        """As JSON."""
        bins = [vars(one) for one in self.bins]
        return {"ece": self.ece, "decisions": self.count, "bins": bins}


def reliability(decisions: Sequence[Decision]) -> Reliability:
    """Sort decisions into equal bins, each with its upper end: (low, high]."""
    sorted_in: list[list[Decision]] = [[] for _ in range(BINS)]
    for sure, is_right in decisions:
        at = next((i for i in range(BINS) if sure <= (i + 1) / BINS), BINS - 1)
        sorted_in[at].append((sure, is_right))
    found = []
    for i, own in enumerate(sorted_in):
        if own:
            mean = sum(sure for sure, _ in own) / len(own)
            found.append(Bin(i / BINS, (i + 1) / BINS, len(own), mean, sum(right for _, right in own) / len(own)))
    total = len(decisions)
    ece = sum(one.count / total * abs(one.sure - one.right) for one in found) if total else 0.0
    return Reliability(tuple(found), total, ece)


def draw(found: Reliability, raw: Reliability) -> Any:
    """The diagram, above how many decisions there are in each bin."""
    figure, panel = drawing.single(width=3.6, height=3.2)
    panel.plot([0, 1], [0, 1], color="#7F7F7F", lw=1, ls="--")
    width = 1 / BINS * 0.9
    centres = [(one.low + one.high) / 2 for one in found.bins]
    most = max(one.count for one in found.bins)
    panel.bar(centres, [0.25 * one.count / most for one in found.bins], width, color="#7F7F7F", alpha=0.3, lw=0)
    if raw != found:
        at = {"color": drawing.COLOURS[1], "lw": 1.2, "ls": ":", "marker": "s", "markersize": 3.5}
        panel.plot([one.sure for one in raw.bins], [one.right for one in raw.bins], **at, label="without temperature")
    how = {"color": drawing.COLOURS[0], "lw": 1.6, "marker": "o", "markersize": 4.5, "label": "as served"}
    panel.plot([one.sure for one in found.bins], [one.right for one in found.bins], **how)
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1.02)
    drawing.label(panel, "confidence (mean score of a bin)", "share that is right")
    if raw != found:
        drawing.legend(figure, drawing.handles([panel]), 2)
    return figure
