"""`robustness`: boxes are numpy's percentiles, failures are counted."""

from __future__ import annotations

import random

import numpy as np
import pytest
from analysis.planted import row

from inlay.analysis.robustness import Box, robustness
from inlay.errors import RunError


def test_boxes_are_percentiles():
    draw = random.Random(0)
    values = {
        (m, lr): [draw.random() for _ in range(n)] for m, n in (("houlsby", 7), ("norms", 4)) for lr in (1e-4, 1e-3)
    }
    rows = [row(m, v, lr=lr, seed=s) for (m, lr), own in values.items() for s, v in enumerate(own)]
    rows += [row("norms", None, lr=1e-3, seed=9, state="failed"), row("norms", 0.1, lr=1e-3, seed=10, state="pruned")]
    found = {(line["method"], line["lr"]): line for line in robustness(rows).document()["rows"]}
    assert found.keys() == {(m, lr) for m in ("houlsby", "norms") for lr in (1e-4, 1e-3, "all")}
    for (method, lr), line in found.items():
        own = [v for (m, at), some in values.items() for v in some if m == method and lr in (at, "all")]
        assert line["runs"] == len(own)
        quartiles = (line["first quartile"], line["median"], line["third quartile"])
        assert quartiles == pytest.approx(np.percentile(own, [25, 50, 75]))
        reach = 1.5 * (quartiles[2] - quartiles[0])
        inside = [v for v in own if quartiles[0] - reach <= v <= quartiles[2] + reach]
        assert (line["low"], line["high"]) == (min(*inside, quartiles[0]), max(*inside, quartiles[2]))
        assert line["failed"] == (1 if method == "norms" and lr in (1e-3, "all") else 0)


def test_far_values_are_outside():
    box = Box("norms", None, (0.5, 0.51, 0.52, 0.53, 0.0), 0)
    assert box.outside == [0.0]
    assert box.whiskers == (0.5, 0.53)


def test_whiskers_never_end_inside_the_box():
    box = Box("norms", None, (0.505, 0.765, 0.775, 0.775), 0)
    assert box.quartiles == pytest.approx((0.7, 0.77, 0.775))
    assert box.whiskers == pytest.approx((0.7, 0.775))
    assert box.outside == [0.505]


def test_test_rows_where_all_have_them():
    rows = [row(value=0.1, test=0.9, lr=1e-3, seed=s) for s in (0, 1)]
    assert robustness(rows).rows[0][-1] == "test"
    assert robustness(rows).document()["rows"][0]["median"] == 0.9
    mixed = robustness([*rows, row(value=0.1, lr=1e-3, seed=2)]).document()["rows"][0]
    assert (mixed["split"], mixed["median"]) == ("validation", 0.1)


def test_the_methods_own_rate_counts_where_none_is_given():
    found = robustness([row("finetune", 0.5, seed=0), row("finetune", 0.7, seed=1, lr=5e-5)])
    assert [line[2] for line in found.rows] == [5e-5, "all"]


def test_the_picture():
    pytest.importorskip("matplotlib")
    rows = [
        row(m, v, lr=lr, seed=s) for m in ("houlsby", "norms") for lr in (1e-4, 1e-3) for s, v in ((0, 0.5), (1, 0.7))
    ]
    panel = robustness([*rows, row("norms", None, lr=1e-2, state="failed")]).draw().axes[0]
    assert [t.get_text() for t in panel.get_xticklabels()] == ["1e-4", "1e-3", "1e-2", "all"]
    assert [t.get_text() for t in panel.texts] == ["1 ✕", "1 ✕"]
    assert len(panel.patches) == 6


def test_mistakes():
    with pytest.raises(RunError, match="two runs or more"):
        robustness([row("houlsby"), row("norms")])
