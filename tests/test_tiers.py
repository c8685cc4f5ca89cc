"""What the quick tier leaves out, and what it says about that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tiers


class Item:
    """As much of a test as thinning looks at."""

    def __init__(self, test: str, case: str, *marks: pytest.MarkDecorator):
        self.name, self.nodeid = f"{test}[{case}]", f"tests/test_it.py::{test}[{case}]"
        self.marks = [mark.mark for mark in marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


def quick(items: list[Item]) -> list[str]:
    tiers.thin(items)  # type: ignore[arg-type]
    return [item.name for item in items if item.get_closest_marker("full") is None]


def cases(number: int, thin: int = 4) -> list[Item]:
    return [Item("test_many", str(i), pytest.mark.thin(thin)) for i in range(number)]


def test_so_many_cases_stay_and_the_first_is_one_of_them():
    kept = quick(cases(40))
    assert len(kept) == 4
    assert kept[0] == "test_many[0]"
    assert quick(cases(3)) == ["test_many[0]", "test_many[1]", "test_many[2]"]
    assert quick(cases(9, thin=1)) == ["test_many[0]"]


def test_the_same_cases_stay_every_time_and_nearly_all_of_them_beside_a_new_one():
    kept = quick(cases(40))
    assert quick(cases(40)) == kept
    assert len(set(quick(cases(41))) & set(kept)) >= 3


def test_tests_are_thinned_one_by_one_and_others_not_at_all():
    others = [Item("test_other", str(i)) for i in range(9)]
    more = [Item("test_more", str(i), pytest.mark.thin(2)) for i in range(9)]
    kept = quick([*cases(9), *others, *more])
    assert [sum(name.startswith(test) for name in kept) for test in ("test_many", "test_other", "test_more")] == [
        4,
        9,
        2,
    ]


def test_the_end_says_how_to_get_a_browser():
    skipped = [SimpleNamespace(longrepr=("a.py", 3, f"Skipped: {why}")) for why in ("no CUDA", "it needs chromium")]
    assert tiers.missing_browser(skipped[:1]) == ""
    assert tiers.missing_browser(skipped) == (
        "tests that need a browser were skipped: 1. To run them: apt-get install chromium"
    )


def test_the_full_tier_tries_more_examples(monkeypatch: pytest.MonkeyPatch):
    found = []
    for full in (False, True):
        monkeypatch.setattr(tiers, "FULL", full)
        found.append(tiers.examples(200).max_examples)
    assert found == [50, 200]
