"""The picture: percentiles as numpy has them, families, bands, markers, lines across."""

from __future__ import annotations

import random

import numpy
import pytest

from inlay.comparison.tradeoff import PERCENTILES, Place, Point, draw, family, percentile, places
from inlay.errors import RunError

SIZES = {"houlsby:size=8": 100, "houlsby:size=64": 1000, "bitfit": 50, "finetune": 100_000}


def points(datasets: int) -> list[Point]:
    source = random.Random(datasets)
    made = []
    for d in range(datasets):
        for method, count in SIZES.items():
            made.append(Point(family(method), method, count, f"d{d}", source.random(), 0.5))
        made.append(Point("tf-idf", "tf-idf", None, f"d{d}", 0.4, 0.5))
    return made


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_percentiles_are_numpys(n: int):
    values = sorted(random.Random(n).random() for _ in range(n))
    assert [percentile(values, p) for p in PERCENTILES] == pytest.approx(numpy.percentile(values, PERCENTILES))


def test_families():
    assert family("houlsby:size=8") == "houlsby"
    assert family("finetune:top=3") == "finetune"
    assert family("diffprune:target=0.01") == "diffprune"
    assert family("lora:rank=4,alpha=8") == "lora:alpha=8"
    assert family("houlsby:where=ffn,size=8") == "houlsby:where=ffn"
    assert family("bitfit") == "bitfit"


def test_places_are_differences_to_the_baseline_from_small_to_large():
    made = [*points(1)[::-1], ("houlsby", "houlsby:size=8", 100, "other", 0.9, 0.5)]
    found = places(made)  # type: ignore[arg-type]
    assert [place.method for place in found["houlsby"]] == ["houlsby:size=8", "houlsby:size=64"]
    first = found["houlsby"][0]
    own = sorted([points(1)[0].value - 0.5, 0.9 - 0.5])
    assert (first.low, first.middle, first.high) == pytest.approx(tuple(numpy.percentile(own, PERCENTILES)))
    assert found["tf-idf"] == [Place("tf-idf", None, *[pytest.approx(-0.1)] * 3, 1)]
    assert places([Point("x", "x", 3, "d", float("nan"), 0.5)]) == {}


def test_one_dataset_has_no_bands():
    pytest.importorskip("matplotlib")
    panel = draw(points(1), metric="accuracy").axes[0]
    assert panel.get_xscale() == "log"
    assert panel.get_xlabel() == "trained parameters per task"
    assert panel.get_ylabel() == "accuracy\nrelative to full fine-tuning (points)"
    assert not [one for one in panel.collections if type(one).__name__ == "FillBetweenPolyCollection"]


def test_several_datasets_have_bands_for_families_and_bars_for_the_others():
    pytest.importorskip("matplotlib")
    figure = draw(points(5), metric="rmse", reference="finetune:top=1")
    panel = figure.axes[0]
    assert panel.get_ylabel() == "rmse\nrelative to finetune:top=1"
    bands = [one for one in panel.collections if type(one).__name__ == "FillBetweenPolyCollection"]
    assert len(bands) == 1  # houlsby
    assert len(panel.containers) == 2  # bitfit, finetune
    line = next(one for one in panel.lines if one.get_label() == "houlsby")
    assert list(line.get_xdata()) == [100, 1000]
    assert list(line.get_ydata()) == pytest.approx([place.middle for place in places(points(5))["houlsby"]])
    assert [text.get_text() for text in figure.legends[0].texts] == ["houlsby", "bitfit", "finetune", "tf-idf"]


def test_nothing_to_plot():
    with pytest.raises(RunError, match="nothing to plot"):
        draw([])
