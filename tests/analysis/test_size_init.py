"""`size` and `init`: planted rows give the planted best and mean; mistakes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from analysis.planted import row

from inlay.analysis.init import init
from inlay.analysis.size import size
from inlay.errors import RunError

ROWS = [
    *(row("houlsby:size=4", v, lr=1e-3, seed=s, parameters=40) for s, v in enumerate((0.60, 0.70))),
    *(row("houlsby:size=4", v, lr=3e-3, seed=s, parameters=40) for s, v in enumerate((0.50, 0.90))),
    *(row("houlsby", v, lr=1e-3, seed=s, test=0.1, parameters=64) for s, v in enumerate((0.80, 0.90))),
    *(row("houlsby", v, lr=3e-3, seed=s, test=0.9, parameters=64) for s, v in enumerate((0.70, 0.80))),
]


def by_setting(found):
    return {(line["method"], line["size"], line["lr"]): line for line in found.document()["rows"]}


def test_means_spreads_and_the_chosen_rate():
    lines = by_setting(size(ROWS))
    assert len(lines) == 4
    four = lines["houlsby", 4, 3e-3]
    assert (four["mean"], four["low"], four["high"]) == pytest.approx((0.7, 0.5, 0.9))
    assert four["std"] == pytest.approx(0.08**0.5)
    assert {where[1:]: line["chosen"] for where, line in lines.items()} == {
        (4, 1e-3): False,
        (4, 3e-3): True,
        (64, 1e-3): True,  # by validation, although another is better on test
        (64, 3e-3): False,
    }
    assert size(ROWS).summary["a.csv: best"] == "houlsby size=64 lr=0.001"
    assert size(ROWS).summary["a.csv: accuracy"] == pytest.approx(0.85)


def test_a_setting_without_all_its_seeds_is_not_chosen_before_whole_ones():
    rows = [*ROWS, row("houlsby", 0.99, lr=1e-2)]
    assert not by_setting(size(rows))["houlsby", 64, 1e-2]["chosen"]


def test_less_is_better_where_it_is():
    rows = [row(f"houlsby:size={s}", v, lr=lr, metric="rmse") for s in (2, 4) for lr, v in ((1e-3, 0.4), (3e-3, 0.2))]
    assert {where[2] for where, line in by_setting(size(rows)).items() if line["chosen"]} == {3e-3}


def test_ranks_are_sizes_and_other_settings_are_told_apart():
    rows = [row(f"lora:rank={r}", 0.5 + r / 100 + e / 1000, lr=1e-3, epochs=e) for r in (2, 8) for e in (1, 7)]
    lines = size(rows).document()["rows"]
    assert {(line["method"], line["size"], line["settings"], line["chosen"]) for line in lines} == {
        ("lora", 2, "epochs=1", False),
        ("lora", 2, "epochs=7", True),
        ("lora", 8, "epochs=1", False),
        ("lora", 8, "epochs=7", True),
    }


def test_init():
    rows = [row(f"houlsby:init={s}", v, lr=1e-3) for s, v in (("1e-07", 0.8), ("0.01", 0.9), ("1", 0.5), ("0", 0.7))]
    found = init(rows)
    lines = {line["init"]: line["mean"] for line in found.document()["rows"]}
    assert lines == {1e-7: 0.8, 0.01: 0.9, 1: 0.5}  # zero has no place on the axis
    assert found.rows[0][1] == "houlsby"


def test_the_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    figure = size([*ROWS, *(row(f"houlsby:size={s}", 0.4, data="b.csv", metric="f1") for s in (8, 16))]).draw()
    left, right = figure.axes
    assert left.get_xscale() == "log"
    assert [t.get_text() for t in left.get_xticklabels()] == ["4", "64"]
    assert (left.get_ylabel(), right.get_ylabel()) == ("validation accuracy", "validation f1")
    line = left.containers[0].lines[0]
    assert list(line.get_xdata()) == [4, 64]
    assert list(line.get_ydata()) == pytest.approx([0.7, 0.85])
    assert [t.get_text() for t in left.texts] == ["3e-3", "1e-3"]
    of_two = size([*ROWS, *(row(f"lora:rank={r}", 0.4, data="b.csv") for r in (2, 4))]).draw()
    assert [t.get_text() for t in of_two.legends[0].get_texts()] == ["houlsby", "lora"]
    files = size(ROWS).write(tmp_path / "s")
    with files[2].open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4


def test_data_of_the_same_name_is_told_apart():
    value_of = {"/a/data/glue/sst2.csv": 0.4, "/b/data/glue/sst2.csv": 0.6}
    rows = [row(f"houlsby:size={s}", value, data=path) for path, value in value_of.items() for s in (2, 4)]
    assert [(line[0], line[6]) for line in size(rows).rows] == [item for item in value_of.items() for _ in range(2)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no run of this sweep has finished"),
        ([row(state="failed", value=None)], "no run of this sweep has finished"),
        ([row("norms"), row("bitfit")], "no method in this sweep has the option size or rank"),
        ([row(seed=0), row(seed=1)], "all runs have size=64"),
        ([row("houlsby:size=2"), row("houlsby:size=4", metric="f1")], "accuracy and by f1"),
    ],
)
def test_mistakes(rows, said):
    with pytest.raises(RunError, match=said):
        size(rows)
