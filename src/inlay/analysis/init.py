"""Must an adapter begin near the identity: the metric against its initial scale (Houlsby et al. 2019, figure 6)."""

from __future__ import annotations

from collections.abc import Sequence

from inlay.analysis.finding import Finding
from inlay.analysis.metric_vs_option import Axis, metric_vs_option
from inlay.sweeps.store import Row

AXIS = Axis("init", ("init",), "standard deviation of the initial weights", 10)


def init(rows: Sequence[Row]) -> Finding:
    """The metric against the standard deviation of an adapter's initial weights."""
    return metric_vs_option(rows, AXIS)
