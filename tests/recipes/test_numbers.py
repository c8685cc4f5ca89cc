"""The recipes that come with Inlay: the papers' numbers against one another, and settings that can be run."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import inlay
from inlay import recipes
from inlay.base.shapes import sites_of
from inlay.comparison.plan import Plan
from inlay.data.benchmarks import METRICS
from inlay.data.formats import glue
from inlay.recipes.recipe import MEAN, Recipe, Row
from inlay.runs.run import make_run

ALL = [recipes.find(name) for name in recipes.names()]
FOLDER = Path(recipes.__file__).parent
WRONG = {("sharing-glue", "not-shared"): 79.5, ("sharing-glue", "three-layers"): 79.4}
"""Averages that are not what the paper prints: recomputed by hand."""


def row(recipe: str, name: str) -> Row:
    return next(one for one in recipes.find(recipe).rows if one.name == name)


def fits(one: Row) -> bool:
    """Whether the paper's average is the mean of its entries, up to its own rounding."""
    mean = one.mean(one.scores)
    assert mean is not None
    assert one.average is not None
    return abs(mean - one.average) <= 0.05 + 1e-9


AVERAGED = [(r.name, one) for r in ALL if r.average == MEAN for one in r.rows if one.average is not None]


def test_there_are_tables_of_all_four_papers():
    assert recipes.names() == sorted(path.stem for path in FOLDER.glob("*.toml"))
    assert {re.split(" et al| &", r.paper)[0] for r in ALL} == {"Houlsby", "Fu", "He", "Mohebbi"}


@pytest.mark.parametrize(("recipe", "one"), AVERAGED, ids=lambda v: getattr(v, "name", v))
def test_averages_are_the_means_of_their_entries(recipe: str, one: Row):
    known = WRONG.get((recipe, one.name))
    if known is None:
        assert fits(one)
    else:  # the paper's slip, and not ours: the numbers are as they were when it was noticed
        assert one.mean(one.scores) == pytest.approx(known, abs=0.05)


def test_a_typing_error_would_be_noticed():
    one = row("adapterbias-glue", "lora")
    assert fits(one)
    for name in one.scores:
        assert not fits(one.model_copy(update={"scores": {**one.scores, name: one.scores[name] + 1}}))


def test_papers_quote_one_another():
    assert row("adapterbias-glue", "adapters").scores == row("houlsby-glue", "adapters-64").scores
    quoted, original = row("adapterbias-glue", "finetune").scores, row("houlsby-glue", "finetune").scores
    assert {name for name in quoted if quoted[name] != original[name]} == {"QNLI"}  # GLUE has renewed it in between


@pytest.mark.parametrize(
    ("recipe", "name", "mean", "datasets"),
    [
        ("he-glue-1k", "finetune", 69.86, None),
        ("he-glue-1k", "adapter-64", 71.20, None),
        ("he-tae", "finetune", 78.52, 4),
        ("he-tae", "adapter", 80.41, 4),
    ],
)
def test_he_et_al_give_the_same_means_in_their_table_5(recipe: str, name: str, mean: float, datasets: int | None):
    one = row(recipe, name)
    assert one.mean(list(one.scores)[:datasets]) == pytest.approx(mean, abs=0.05)


def counted(text: str) -> tuple[float, float]:
    """`0.17M` -> 170,000 and half a unit of its last digit."""
    number, unit = re.fullmatch(r"([\d.,]+)([KM]?)", text).groups()  # type: ignore[union-attr]
    scale = {"": 1.0, "K": 1e3, "M": 1e6}[unit]
    digits = len(number.partition(".")[2])
    return float(number.replace(",", "")) * scale, 0.51 * scale * 10**-digits


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        *itertools.product(
            ["adapterbias-sharing"], ["no-alpha", "share-v", "share-alpha", "share-both", "adapterbias"]
        ),
        *itertools.product(["adapterbias-glue"], ["bitfit", "lora", "adapterbias"]),
        *itertools.product(["sharing-glue"], ["sublayers", "three-layers"]),
    ],
)
def test_methods_train_as_many_parameters_as_the_paper_says(recipe: str, name: str):
    sites = sites_of("bert-large" if "large" in recipes.find(recipe).base else "bert-base")
    one = row(recipe, name)
    assert one.trained is not None
    told, within = counted(one.trained)
    assert inlay.parse_method(one.methods[0]).count(sites) == pytest.approx(told, abs=within)


@pytest.mark.thin(2)
@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_everything_can_be_run(recipe: Recipe):
    total = 0
    seen = set()
    for one, dataset in itertools.product(recipe.rows, recipe.datasets):
        tried = recipe.tried(one, dataset)
        fixed = {key: values[0] for key, values in tried.items() if len(values) == 1}
        run = make_run({"data": "x", **fixed, "metric": dataset.metric})
        for spec in one.methods:
            space, problems = Plan([spec], {k: v for k, v in tried.items() if k not in fixed}, 1).space(run)
            assert problems == []
            for setting in space.settings():
                key = (dataset.name, spec, str(space.run(setting).config()))
                total += key not in seen
                seen.add(key)
    assert recipe.runs == total * recipe.seeds


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_metrics_are_those_that_the_sets_are_known_by(recipe: Recipe):
    known = {}
    for dataset in recipe.datasets:
        tasks = [glue.TASKS[task].metric for name in dataset.places if (task := glue.task_of(name))]
        found = {*tasks, *(METRICS[name] for name in dataset.places if name in METRICS)}
        if found:
            assert found == {dataset.metric}, dataset.name
            known[dataset.name] = found
    assert known


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_recipes_are_frozen(recipe: Recipe):
    with pytest.raises(ValueError, match="frozen"):
        recipe.seeds = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        recipe.rows[0].average = 1.0  # type: ignore[misc]
