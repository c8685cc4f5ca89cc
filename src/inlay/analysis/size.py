"""How large must an adapter be: the metric against its size (Houlsby et al. 2019, figure 4 and section 3.6)."""

from __future__ import annotations

from collections.abc import Sequence

from inlay.analysis.finding import Finding
from inlay.analysis.metric_vs_option import Axis, metric_vs_option
from inlay.sweeps.store import Row

AXIS = Axis("size", ("size", "rank"), "adapter size", 2)


def size(rows: Sequence[Row]) -> Finding:
    """The metric against the size of bottlenecks (or the rank of LoRA), the best learning rate at each size."""
    return metric_vs_option(rows, AXIS)
