"""Every row with a number of a paper is checked by something else that the paper prints: here, or in test_numbers."""

from __future__ import annotations

import statistics

import pytest
from recipes.test_numbers import ALL, AVERAGED, SAME, row

AVERAGES_OF_THE_TEXT = {
    ("houlsby-sizes", "adapters-8", "average"): 86.2,
    ("houlsby-sizes", "adapters-64", "average"): 85.8,
    ("houlsby-sizes", "adapters-256", "average"): 85.7,
    ("he-glue-1k", "adapter-128", "average"): 71.09,
    ("he-glue-1k", "adapter-256", "average"): 71.06,
    ("he-tae", "adapter-64", "low-resource"): 77.20,
    ("he-tae", "adapter-128", "low-resource"): 79.29,
    ("he-xnli", "adapter-64", "Target"): 79.01,
    ("he-xnli", "adapter-128", "Target"): 79.24,
    ("he-xnli-small", "adapter-128-5", "Target"): 75.83,
    ("he-xnli-small", "adapter-256-5", "Target"): 75.45,
}
"""Averages without scores (Houlsby et al., section 3.6; He et al., table 5), copied a second time."""
SCORES_OF_THE_TEXT = {
    ("houlsby-squad", "finetune", "SQuAD"): 90.7,
    ("houlsby-squad", "adapters-64", "SQuAD"): 90.4,
    ("houlsby-squad", "adapters-2", "SQuAD"): 89.9,
    ("houlsby-tradeoff", "top-1", "MNLI-m"): 77.8,
    ("houlsby-tradeoff", "adapters-64", "MNLI-m"): 83.7,
    ("houlsby-tradeoff", "finetune", "MNLI-m"): 84.4,
}
"""Scores that only the text has (Houlsby et al., sections 3.4 and 3.5), copied a second time."""
GLUE_SCORES = {"adapters": 80.0, "adapters-64": 79.6}
KEPT = {"bb-kept": {"CoLA"}, "bl-kept": set[str]()}
"""Rows of the share of L-alpha that is kept, and the columns without which the paper's "about 17 %" is their mean."""
TOTALS = {
    ("adapterbias-l0", "bb-kept"): 687.5,
    ("adapterbias-l0", "bl-kept"): 750.3,
    ("he-mixout", "finetune"): 293.30,
    ("he-mixout", "finetune-mixout"): 294.09,
    ("he-mixout", "adapter"): 296.28,
    ("he-mixout", "adapter-mixout"): 294.65,
    ("he-ner", "quoted"): 1361.2,
    ("he-ner", "finetune"): 1331.95,
    ("he-ner", "adapter"): 1390.58,
    ("he-overfitting", "finetune"): 318.40,
    ("he-overfitting", "finetune-best"): 332.78,
    ("he-overfitting", "adapter"): 324.97,
    ("he-overfitting", "adapter-best"): 332.68,
    ("he-pos", "quoted"): 1376.7,
    ("he-pos", "finetune"): 1401.91,
    ("he-pos", "adapter"): 1400.74,
    ("he-tae", "finetune"): 659.1,
    ("he-tae", "adapter"): 667.2,
    ("he-tae", "finetune-tapt"): 667.1,
    ("he-tae", "adapter-tapt"): 670.4,
}
"""Rows of which the paper prints no mean, or one of some columns: their sums, added up from its text a second time."""


@pytest.mark.parametrize(("recipe", "name", "average"), AVERAGES_OF_THE_TEXT)
def test_averages_that_have_no_scores(recipe: str, name: str, average: str):
    assert row(recipe, name).printed(average) == AVERAGES_OF_THE_TEXT[recipe, name, average]


@pytest.mark.parametrize(("recipe", "name", "column"), SCORES_OF_THE_TEXT)
def test_scores_that_only_the_text_has(recipe: str, name: str, column: str):
    assert row(recipe, name).scores[column] == SCORES_OF_THE_TEXT[recipe, name, column]


@pytest.mark.parametrize(("recipe", "name"), TOTALS)
def test_scores_without_a_mean_have_the_sum_of_those_in_the_paper(recipe: str, name: str):
    assert sum(row(recipe, name).scores.values()) == pytest.approx(TOTALS[recipe, name], abs=0.001)


@pytest.mark.parametrize("name", GLUE_SCORES)
def test_glues_own_score_differs_as_much_as_its_nine_sets(name: str):
    """It counts MNLI once and has WNLI, which all rows answer alike; F1 is there beside accuracy, so this is rough."""
    best, other = row("houlsby-glue", "finetune"), row("houlsby-glue", name)
    assert (best.average, other.average) == (80.4, GLUE_SCORES[name])
    lost = {column: best.scores[column] - other.scores[column] for column in best.scores}
    mnli = statistics.fmean(lost.pop(column) for column in ("MNLI-m", "MNLI-mm"))
    assert (sum(lost.values()) + mnli) / 9 == pytest.approx(80.4 - GLUE_SCORES[name], abs=0.07)


@pytest.mark.parametrize("name", KEPT)
def test_l0_saves_about_17_percent(name: str):
    kept = row("adapterbias-l0", name).scores
    assert round(100 - statistics.fmean(kept[column] for column in kept.keys() - KEPT[name])) == 17


def test_evaluations_with_adapters_are_closer_to_their_best():
    gaps = {}
    for method in ("finetune", "adapter"):
        mean, best = row("he-overfitting", method).scores, row("he-overfitting", f"{method}-best").scores
        gaps[method] = {column: best[column] - mean[column] for column in mean}
        assert min(gaps[method].values()) > 0
    assert all(gaps["adapter"][column] < gaps["finetune"][column] for column in gaps["adapter"])


def test_adapters_alone_beat_fine_tuning_on_texts_and_labels():
    low = ["ChemProt", "ACL-ARC", "SciERC", "Hyperpartisan"]
    alone, tapt = row("he-tae", "adapter").mean(low), row("he-tae", "finetune-tapt").mean(low)
    assert alone is not None
    assert tapt is not None
    assert alone > tapt == pytest.approx(80.0)


def test_every_row_with_numbers_is_checked():
    checked = {
        *((recipe, one.name) for recipe, one, _ in AVERAGED),
        *((end[0], end[1]) for line in SAME for end in (line[:2], line[2:4])),
        *((recipe, name) for recipe, name, _ in (*AVERAGES_OF_THE_TEXT, *SCORES_OF_THE_TEXT)),
        *(("houlsby-glue", name) for name in GLUE_SCORES),
        *TOTALS,
    }
    printed = {(r.name, one.name) for r in ALL for one in r.rows if one.scores or one.average or one.averages}
    assert printed - checked == set()
    assert {recipe for recipe, _ in printed} == {r.name for r in ALL} - {
        "adapterbias-squad",
        "he-robustness",
        "he-tae-sizes",
    }  # figures without numbers
