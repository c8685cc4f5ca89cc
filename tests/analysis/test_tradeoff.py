"""`tradeoff`: the best setting of each method, relative to fine-tuning, percentiles over data sets."""

from __future__ import annotations

import numpy as np
import pytest
from analysis.planted import row

from inlay.analysis.tradeoff import tradeoff
from inlay.errors import RunError

VALUES = {
    "houlsby:size=8": [0.70, 0.60, 0.93],
    "houlsby": [0.80, 0.70, 0.90],
    "norms": [0.60, 0.50, 0.40],
    "finetune": [0.81, 0.69, 0.92],
    "finetune:top=1": [0.71, 0.65, 0.80],
}
SIZES = {"houlsby:size=8": 80, "houlsby": 640, "norms": 10, "finetune": 10_000, "finetune:top=1": 900}


def planted(without: str = ""):
    rows = []
    for method, values in VALUES.items():
        for i, value in enumerate(values):
            given = {"data": f"{i}.csv", "parameters": SIZES[method]}
            rows += [row(method, value, lr=1e-3, **given), row(method, value - 0.1, lr=1e-4, **given)]
    return [one for one in rows if one.config["method"] != without]


def test_relative_to_fine_tuning_with_percentiles():
    found = tradeoff(planted())
    lines = {line["method"]: line for line in found.document()["rows"]}
    assert lines.keys() == VALUES.keys()
    for method, values in VALUES.items():
        over = np.percentile(np.array(values) - VALUES["finetune"], [20, 50, 80])
        line = lines[method]
        assert [line[k] for k in ("20th percentile", "median", "80th percentile")] == pytest.approx(over)
        assert line["parameters"] == SIZES[method]
        assert line["data sets"] == 3
    assert [lines[m]["family"] for m in VALUES] == ["houlsby", "houlsby", "norms", "finetune", "finetune"]
    assert found.summary["relative to"] == "full fine-tuning"


def test_other_references():
    assert tradeoff(planted("finetune")).summary["relative to"] == "fine-tuning of the top 1"
    rows = [one for one in planted() if "finetune" not in one.config["method"]]
    found = tradeoff(rows)
    assert found.summary["relative to"] == "the best method"
    assert max(line[6] for line in found.rows) == 0.0


def test_test_rows_count_but_do_not_choose():
    rows = [row("norms", 0.5, lr=1e-3, test=0.3), row("norms", 0.4, lr=1e-4, test=0.9), row("finetune", 0.5, test=0.5)]
    lines = {line["method"]: line["median"] for line in tradeoff(rows).document()["rows"]}
    assert lines["norms"] == pytest.approx(-0.2)


def test_the_picture():
    pytest.importorskip("matplotlib")
    panel = tradeoff(planted()).draw().axes[0]
    assert panel.get_xscale() == "log"
    assert "relative to full fine-tuning" in panel.get_ylabel()


def test_a_long_label_is_not_cut_off():
    pytest.importorskip("matplotlib")
    figure = tradeoff(planted("finetune")).draw()
    figure.draw_without_rendering()
    label = figure.axes[0].yaxis.label.get_window_extent()
    assert 0 <= label.y0 < label.y1 <= figure.bbox.y1


def test_mistakes():
    with pytest.raises(RunError, match="one method only"):
        tradeoff([row("norms")])
    with pytest.raises(RunError, match="more is better, in others less"):
        tradeoff([row("norms"), row("norms", data="b.csv", metric="rmse")])
