"""From scores to a table: the papers' totals, averages, the best, tests against it, and what to make of it."""

from __future__ import annotations

import pytest

from inlay.comparison.baselines import MAJORITY, TFIDF
from inlay.comparison.conclusions import conclusions
from inlay.comparison.exports import sized, spread, times
from inlay.comparison.ranking import ranked, total_parameters
from inlay.comparison.table import Cell, Dataset, Line

SEEDS = range(3)


def dataset(name: str, metric: str = "accuracy") -> Dataset:
    return Dataset(name, f"{name}.csv", "classification", metric, "test", {"train": 10, "test": 5})


def line(method: str, parameters: int = 0, **values: list[float]) -> Line:
    cells = {
        name: Cell(dict(enumerate(own)), own[0], {}, 1.0, parameters, parameters / 1e6) for name, own in values.items()
    }
    return Line(method, method, method in (MAJORITY, TFIDF), cells, None)


THREE = [dataset(name) for name in "abc"]


def everywhere(method: str, parameters: int, value: float, step: float = 0.001) -> Line:
    return line(method, parameters, **{d.name: [value + i * step for i in SEEDS] for d in THREE})


# --- parameters ---------------------------------------------------------------------------------------------------


def test_totals_are_those_of_the_paper():
    """Houlsby et al., table 1: 9 tasks; table 2: 17 tasks, 9.9x for 52.9 % and 1.19x for 1.14 %."""
    assert f"{total_parameters(0.036, 9):.1f}" == "1.3"
    assert f"{total_parameters(0.021, 9):.1f}" == "1.2"
    assert total_parameters(1.0, 9, replaces=True) == 9
    assert total_parameters(0.529, 17) == pytest.approx(9.9, abs=0.1)
    assert f"{total_parameters(0.0114, 17):.2f}" == "1.19"
    assert total_parameters(1.0, 17, replaces=True) == 17
    assert total_parameters(0.01, 1) == pytest.approx(1.01)


def test_cells_for_people():
    assert [times(v) for v in (1.0003, 1.32, 9.0, 17.0)] == ["1.000", "1.32", "9.00", "17.0"]
    assert [sized(n) for n in (12, 1_234, 123_456, 90_000_000, 1_340_000_000)] == [
        "12 bytes",
        "1.2 kB",
        "123 kB",
        "90.0 MB",
        "1.3 GB",
    ]
    assert spread(0.91234, 0.0051, "accuracy") == "91.2 ± 0.5"
    assert spread(0.91234, None, "rmse") == "0.9123"


# --- the best, and the others -------------------------------------------------------------------------------------


def test_averages_and_order():
    found = ranked([everywhere("small", 10, 0.7), everywhere("large", 100, 0.9)], THREE)
    assert [one.method for one in found] == ["large", "small"]
    assert found[0].average == pytest.approx(0.901)
    assert found[0].average_std == pytest.approx(0.001)
    assert (found[0].is_best, found[0].verdict, found[0].p) == (True, "best", None)
    assert found[1].difference == pytest.approx(-0.2)
    assert (found[1].pairs, found[1].p, found[1].verdict) == (9, 2 / 2**9, "worse")


def test_equals_go_to_fewer_parameters_and_are_not_distinguishable():
    found = ranked([everywhere("large", 100, 0.9), everywhere("small", 10, 0.9)], THREE)
    assert [one.method for one in found] == ["small", "large"]
    assert (found[1].p, found[1].verdict) == (1.0, "not distinguishable")


def test_too_few_pairs_cannot_tell():
    one = [dataset("a")]
    found = ranked([line("x", 10, a=[0.9, 0.9, 0.9]), line("y", 10, a=[0.1, 0.1, 0.1])], one)
    assert (found[1].pairs, found[1].p, found[1].verdict) == (3, None, "cannot tell")
    assert any("3 pairs of runs" in text and "6 are needed" in text for text in conclusions(found, one))
    single = ranked([line("x", 10, a=[0.9]), line("y", 10, a=[0.1])], one)
    assert any("1 pair of runs (datasets times seeds) is too few" in text for text in conclusions(single, one))


def test_what_lacks_a_dataset_comes_last_and_is_no_winner():
    part = line("part", 10, a=[1.0, 1.0, 1.0], b=[1.0, 1.0, 1.0])
    found = ranked([part, everywhere("whole", 10, 0.5)], THREE)
    assert [one.method for one in found] == ["whole", "part"]
    assert found[1].average is None
    assert found[1].pairs == 6


def test_less_is_better():
    lower = [dataset(name, "rmse") for name in "abc"]
    found = ranked([everywhere("bad", 10, 0.9), everywhere("good", 10, 0.2)], lower)
    assert [one.method for one in found] == ["good", "bad"]
    assert found[1].difference == pytest.approx(-0.7)


def test_a_lost_seed_leaves_the_pairs_that_both_have():
    short = line("short", 10, a=[0.5, 0.6, 0.7], b=[0.5, 0.6, 0.7], c=[0.5])
    found = ranked([everywhere("whole", 10, 0.9), short], THREE)
    assert found[1].pairs == 7
    assert found[1].average_std is None  # one seed is left that all datasets have


# --- what to make of it -------------------------------------------------------------------------------------------


def said(*lines: Line) -> str:
    return "; ".join(conclusions(ranked(lines, THREE), THREE))


def test_when_no_transformer_is_needed():
    best = everywhere("houlsby", 1000, 0.9)
    assert "within 0.4 points of the best, houlsby: a transformer may not be needed" in said(
        best, everywhere(TFIDF, 0, 0.896)
    )
    assert "is the best: as trained here, no transformer is needed" in said(best, everywhere(TFIDF, 0, 0.95))
    assert "TF-IDF with a linear model is 20.0 points below houlsby" in said(best, everywhere(TFIDF, 0, 0.7))
    assert "TF-IDF" not in said(best, everywhere("bitfit", 10, 0.8))


def test_when_something_smaller_is_as_good():
    noisy = line("adapterbias", 27, a=[0.9, 0.902, 0.9], b=[0.9, 0.9, 0.902], c=[0.903, 0.9, 0.9])
    text = said(everywhere("houlsby", 1000, 0.9), noisy)
    assert "adapterbias is not distinguishable from houlsby" in text
    assert "at 1/37 of the parameters" in text
    assert "nothing much smaller comes near it" in said(everywhere("houlsby", 1000, 0.9), everywhere("bitfit", 9, 0.5))


def test_a_small_method_that_is_surely_worse_is_not_recommended():
    assert "nothing much smaller" in said(everywhere("houlsby", 1000, 0.9), everywhere("bitfit", 10, 0.895))


def test_methods_that_have_hardly_learned_are_named():
    a = {"b": [0.9] * 3, "c": [0.9] * 3}
    majority = line(MAJORITY, 0, a=[0.5] * 3, b=[0.6] * 3, c=[0.6] * 3)
    stuck = [line(name, 10, a=[value] * 3, **a) for name, value in (("houlsby", 0.505), ("lora", 0.5), ("bitfit", 0.8))]
    assert "on a, 2 of 3 methods are hardly better than the most common answer" in said(majority, *stuck)
    assert "hardly" not in said(majority, *stuck[1:])  # one of two
    assert "hardly" not in said(*stuck)  # there is nothing to compare with


def test_nothing_learned():
    assert "nothing is better than the most common answer" in said(
        everywhere("houlsby", 1000, 0.5), everywhere(MAJORITY, 0, 0.6)
    )


def test_nothing_whole():
    assert "nothing can be compared" in said(line("x", 10, a=[0.1]))
