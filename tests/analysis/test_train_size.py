"""`train-size`: the best setting at each number of rows, by validation; its test values, with their spread."""

from __future__ import annotations

import statistics

import pytest
from analysis.planted import row

from inlay.analysis.robustness import robustness
from inlay.analysis.train_size import train_size
from inlay.errors import RunError

SIZES = ("100", 1000, "50%", None)
ROWS = [
    row("houlsby", 0.5 + lr * 100, test=0.3 + 0.1 * i + 0.01 * seed + lr, lr=lr, seed=seed, train_size=size)
    for i, size in enumerate(SIZES)
    for lr in (1e-3, 1e-4)
    for seed in range(3)
]


def test_the_best_setting_by_validation_and_its_test_values():
    found = train_size([*ROWS, *(row("lora", 0.9, test=0.2, lr=1e-3, seed=s) for s in range(2))])
    lines = [dict(zip(found.columns, line, strict=True)) for line in found.rows]
    assert [(line["method"], line["rows"]) for line in lines] == [
        *(("houlsby", rows) for rows in ("100", "1,000", "50 %", "all")),
        ("lora", "all"),
    ]
    for i, line in enumerate(lines[:4]):
        values = [0.301 + 0.1 * i + 0.01 * seed for seed in range(3)]
        assert (line["setting"], line["runs"], line["split"]) == ("lr=0.001", 3, "test")
        assert line["mean"] == pytest.approx(statistics.fmean(values))
        assert line["std"] == pytest.approx(statistics.stdev(values))
        assert (line["low"], line["high"]) == pytest.approx((values[0], values[-1]))
    assert found.summary["a.csv: houlsby"].startswith("0.3110 (100), 0.4110 (1,000)")


def test_without_test_rows_it_is_validation():
    rows = [row(value=0.2 * size / 100, seed=s, train_size=size) for size in (100, 200) for s in (0, 1)]
    found = train_size(rows)
    assert [line[-1] for line in found.rows] == ["validation"] * 2
    assert [line[5] for line in found.rows] == pytest.approx([0.2, 0.4])


def test_one_number_of_rows_is_refused():
    with pytest.raises(RunError, match="the same number of training rows; vary it"):
        train_size([row(seed=s, train_size=100) for s in (0, 1)])


def test_the_picture():
    pytest.importorskip("matplotlib")
    panel = train_size(ROWS).draw().axes[0]
    assert [t.get_text() for t in panel.get_xticklabels()] == ["100", "1,000", "50 %", "all"]
    assert panel.get_ylabel() == "test accuracy"
    (line,) = panel.get_lines()
    assert list(line.get_ydata()) == pytest.approx([0.311, 0.411, 0.511, 0.611])
    (band,) = panel.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.301, 0.621))


def test_boxes_of_robustness_do_not_mix_numbers_of_rows():
    found = robustness(ROWS)
    names = ["a.csv, 100 rows", "a.csv, 1,000 rows", "a.csv, 50 % rows", "a.csv, all rows"]
    assert list(dict.fromkeys(line[0] for line in found.rows)) == names
    assert {line[3] for line in found.rows if line[2] == "all"} == {6}
    shares = [row(train_size=size) for size in ("10%", 0.1, "20 %")]
    assert [line[0] for line in robustness(shares).rows if line[2] == "all"] == ["a.csv, 10 % rows", "a.csv, 20 % rows"]
    assert [line[0] for line in robustness([r for r in ROWS if r.config["train_size"] == 1000]).rows] == ["a.csv"] * 3
