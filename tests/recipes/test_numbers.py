"""The recipes that come with Inlay: the papers' numbers against one another, and settings that can be run."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

import inlay
from inlay import recipes
from inlay.base.shapes import sites_of
from inlay.comparison import baselines
from inlay.comparison.plan import Plan
from inlay.data.benchmarks import METRICS
from inlay.data.formats import glue
from inlay.recipes.recipe import BASELINES, MEAN, Recipe, Row, decimals, trained_specs
from inlay.runs.run import Run, make_run

ALL = [recipes.find(name) for name in recipes.names()]
FOLDER = Path(recipes.__file__).parent
PROTOCOL = {"pool", "warmup", "schedule", "weight_decay", "attention_dropout", "selection"}
"""What every recipe says of its paper, be it that the paper is silent."""
NOT_THE_MEAN = {
    ("he-glue-1k", "roberta-adapter-64", "average"): 75.944,
    ("he-glue-1k", "roberta-adapter", "average"): 76.456,
    ("he-tae", "adapter", "low-resource"): 80.4,
    ("he-xnli", "finetune", "All"): 79.286,
    ("houlsby-text", "variable", "average"): 74.076,
    ("sharing-glue", "not-shared", "average"): 79.544,
    ("sharing-glue", "three-layers", "average"): 79.389,
    ("sharing-text", "not-shared", "average"): 74.975,
}
"""Printed averages that are not the means of the printed scores, and the means: most by the rounding of scores, those
of sharing-glue by more. The numbers are as they were when that was noticed."""


def row(recipe: str, name: str) -> Row:
    return next(one for one in recipes.find(recipe).rows if one.name == name)


def fits(one: Row, columns: Sequence[str], printed: float) -> bool:
    """Whether a printed average is the mean of the printed scores, up to its own rounding."""
    mean = one.mean(columns)
    assert mean is not None
    return abs(mean - printed) <= 0.5 * 10 ** -decimals(printed) + 1e-9


AVERAGED = [
    (r.name, one, name)
    for r in ALL
    for one in r.rows
    for name, columns in r.groups.items()
    if r.average == MEAN and one.printed(name) is not None and one.mean(columns) is not None
]


def test_there_are_tables_of_all_four_papers():
    assert recipes.names() == sorted(path.stem for path in FOLDER.glob("*.toml"))
    assert {re.split(" et al| &", r.paper)[0] for r in ALL} == {"Houlsby", "Fu", "He", "Mohebbi"}
    assert len(AVERAGED) == 80


@pytest.mark.parametrize(("recipe", "one", "name"), AVERAGED, ids=lambda v: getattr(v, "name", v))
def test_averages_are_the_means_of_their_entries(recipe: str, one: Row, name: str):
    columns, printed = recipes.find(recipe).groups[name], one.printed(name)
    assert printed is not None
    known = NOT_THE_MEAN.get((recipe, one.name, name))
    if known is None:
        assert fits(one, columns, printed)
    else:  # the paper's slip, and not ours
        assert not fits(one, columns, printed)
        assert one.mean(columns) == pytest.approx(known, abs=0.001)


def test_a_typing_error_would_be_noticed():
    one = row("adapterbias-glue", "lora")
    assert one.average is not None
    assert fits(one, list(one.scores), one.average)
    for name in one.scores:
        wrong = one.model_copy(update={"scores": {**one.scores, name: one.scores[name] + 1}})
        assert not fits(wrong, list(one.scores), one.average)


def gain(recipe: str, better: str, worse: str, average: str = "average") -> float:
    """The difference of two printed averages."""
    first, second = row(recipe, better).printed(average), row(recipe, worse).printed(average)
    assert first is not None
    assert second is not None
    return first - second


def wins(recipe: str, better: str, worse: str, columns: int | None = None) -> int:
    """In how many columns a row is better than another."""
    first, second = row(recipe, better).scores, row(recipe, worse).scores
    return sum(first[name] > second[name] for name in list(first)[:columns])


def spread(recipe: str, name: str) -> float:
    """The mean of what is printed after ±, in one digit."""
    return round(statistics.fmean(row(recipe, name).spreads.values()), 1)


def printed(recipe: str, name: str, column: str) -> float:
    return row(recipe, name).scores[column]


CLAIMS: list[tuple[str, str, str, float, float]] = [
    (
        "houlsby-glue",
        "section 3.2",
        "mean GLUE score 80.0 against 80.4",
        gain("houlsby-glue", "adapters", "finetune"),
        -0.4,
    ),
    ("houlsby-text", "section 3.3", "0.4 behind fine-tuning", gain("houlsby-text", "adapters", "finetune"), -0.4),
    ("houlsby-text", "section 3.3", "1.14 % for 17 tasks are 1.19 times", round(1 + 17 * 0.0114, 2), 1.19),
    ("houlsby-text", "table 2", "17 sets", len(recipes.find("houlsby-text").datasets), 17),
    ("houlsby-glue", "table 1", "3.6 % for 9 tasks are 1.3 times", round(1 + 9 * 0.036, 1), 1.3),
    ("houlsby-glue", "table 1", "2.1 % for 9 tasks are 1.2 times", round(1 + 9 * 0.021, 1), 1.2),
    ("houlsby-squad", "section 3.5", "size 64 attains 90.4", printed("houlsby-squad", "adapters-64", "SQuAD"), 90.4),
    ("he-glue-1k", "section 3.2", "2.5 more with BERT", gain("he-glue-1k", "adapter", "finetune"), 2.5),
    (
        "he-glue-1k",
        "section 3.2",
        "0.7 more with RoBERTa",
        gain("he-glue-1k", "roberta-adapter", "roberta-finetune"),
        0.7,
    ),
    (
        "he-glue-5k",
        "section 3.3",
        "0.4 more with RoBERTa",
        gain("he-glue-5k", "roberta-adapter", "roberta-finetune"),
        0.4,
    ),
    *(
        ("he-glue-1k", "table 2", f"± of the average of {name}", spread("he-glue-1k", name), told)
        for name, told in {
            "finetune": 1.7,
            "adapter-64": 1.1,
            "adapter": 1.0,
            "roberta-finetune": 1.2,
            "roberta-adapter-64": 1.1,
            "roberta-adapter": 0.8,
        }.items()
    ),
    *(
        ("he-glue-5k", "table 2", f"± of the average of {name}", spread("he-glue-5k", name), told)
        for name, told in {
            "finetune": 1.2,
            "adapter-64": 0.6,
            "adapter": 0.5,
            "roberta-finetune": 0.7,
            "roberta-adapter-64": 0.6,
            "roberta-adapter": 0.6,
        }.items()
    ),
    (
        "he-tae",
        "section 3.1",
        "1.9 more on low-resource sets",
        round(gain("he-tae", "adapter", "finetune", "low-resource"), 1),
        1.9,
    ),
    ("he-tae", "section 3.1", "better on all four of them", wins("he-tae", "adapter", "finetune", 4), 4),
    ("he-tae", "section 3.1", "TAPT helps adapters on three of four", wins("he-tae", "adapter-tapt", "adapter", 4), 3),
    ("he-pos", "section 4", "2.06 more on target languages", gain("he-pos", "adapter", "quoted", "Target"), 2.06),
    ("he-pos", "section 4", "3.71 more on distant languages", gain("he-pos", "adapter", "quoted", "Distant"), 3.71),
    ("he-ner", "section 4", "1.08 more on target languages", gain("he-ner", "adapter", "quoted", "Target"), 1.08),
    ("he-ner", "section 4", "0.8 more on distant languages", gain("he-ner", "adapter", "quoted", "Distant"), 0.8),
    ("he-ner", "section 4", "40 languages", len(recipes.find("he-ner").columns), 40),
    ("he-xnli", "section 4", "0.87 more on target languages", gain("he-xnli", "adapter", "quoted", "Target"), 0.87),
    ("he-xnli", "section 4", "0.87 more on distant languages", gain("he-xnli", "adapter", "quoted", "Distant"), 0.87),
    ("he-xnli", "section 4", "15 languages", len(recipes.find("he-xnli").columns), 15),
    (
        "he-mixout",
        "section 5",
        "mixout helps fine-tuning on CoLA and MRPC only",
        wins("he-mixout", "finetune-mixout", "finetune"),
        2,
    ),
    ("he-mixout", "section 5", "it helps adapters once", wins("he-mixout", "adapter-mixout", "adapter"), 1),
    (
        "he-overfitting",
        "section 5",
        "the mean of adapters is better everywhere",
        wins("he-overfitting", "adapter", "finetune"),
        4,
    ),
    (
        "adapterbias-l0",
        "section 4.6.2",
        "L0 helps on 7 of 9 with BERT-base",
        wins("adapterbias-l0", "bb-l0", "bb-adapterbias"),
        7,
    ),
    ("sharing-text", "table 3", "12 sets", len(recipes.find("sharing-text").datasets), 12),
    ("sharing-text", "abstract", "21 tasks, with GLUE", 12 + len(recipes.find("sharing-glue").datasets), 21),
]


@pytest.mark.parametrize(
    ("file", "table", "claim", "ours", "theirs"), CLAIMS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_the_papers_say_of_their_tables(file: str, table: str, claim: str, ours: float, theirs: float):
    assert ours == pytest.approx(theirs, abs=0.001)


SAME = [
    ("adapterbias-glue", "adapters", "houlsby-glue", "adapters-64", set()),
    ("adapterbias-glue", "finetune", "houlsby-glue", "finetune", {"QNLI"}),  # GLUE has renewed it in between
    ("adapterbias-bases", "bb-adapterbias", "adapterbias-sharing", "adapterbias", set()),
    ("adapterbias-bases", "bl-adapterbias", "adapterbias-glue", "adapterbias", set()),
    ("adapterbias-bases", "bl-finetune", "adapterbias-glue", "finetune", set()),
    ("adapterbias-bases", "bb-finetune", "sharing-glue", "finetune", {"STS-B"}),  # Spearman and, it seems, Pearson
    *(
        ("adapterbias-l0", f"{b}-{m}", "adapterbias-bases", f"{b}-{m}", set())
        for b in ("bb", "bl")
        for m in ("finetune", "adapterbias")
    ),
    ("sharing-text", "finetune", "houlsby-text", "finetune", set()),
]
"""Rows that a paper has twice or quotes, and the columns in which they differ."""


@pytest.mark.parametrize(
    ("recipe", "name", "other", "original", "but"), SAME, ids=lambda v: v if isinstance(v, str) else ""
)
def test_papers_quote_themselves_and_one_another(recipe: str, name: str, other: str, original: str, but: set[str]):
    quoted, first = row(recipe, name).scores, row(other, original).scores
    assert quoted.keys() <= first.keys()
    assert {column for column in quoted if quoted[column] != first[column]} == but


@pytest.mark.parametrize(("name", "original"), [("finetune", "finetune"), ("adapter", "adapter-64")])
def test_mixout_is_compared_with_rows_of_another_table(name: str, original: str):
    more = row("he-mixout", name).scores
    assert {column: round(score + 1e-9, 1) for column, score in more.items()} == {
        column: row("he-glue-1k", original).scores[column] for column in more
    }


@pytest.mark.parametrize(
    ("recipe", "name", "mean", "columns"),
    [
        ("he-glue-1k", "finetune", 69.86, None),
        ("he-glue-1k", "adapter-64", 71.20, None),
        ("he-tae", "finetune", 78.52, 4),
        ("he-tae", "adapter", 80.41, 4),
    ],
)
def test_he_et_al_give_the_same_means_in_their_table_5(recipe: str, name: str, mean: float, columns: int | None):
    one = row(recipe, name)
    assert one.mean(list(one.scores)[:columns]) == pytest.approx(mean, abs=0.05)


@pytest.mark.parametrize("name", ["quoted", "finetune", "adapter"])
@pytest.mark.parametrize(("recipe", "missing"), [("he-pos", 16), ("he-ner", 20)])
def test_the_half_of_a_table_that_is_missing_has_a_mean_that_it_may_have(recipe: str, missing: int, name: str):
    one, columns = row(recipe, name), recipes.find(recipe).groups["All"]
    assert len(columns) - len(one.scores) == missing
    rest = (one.averages["All"] * len(columns) - sum(one.scores.values())) / missing
    assert 55 < rest < 75
    english = one.averages["All"] * len(columns) - one.averages["Target"] * (len(columns) - 1)
    within = 1.4 if name == "quoted" else 0.4  # 33 or 40 times a rounding; the recipes note what others have reported
    assert english == pytest.approx(one.scores["en"], abs=within)


@pytest.mark.parametrize(("column", "rows"), [("MRPC", 408), ("SST-2", 872), ("QNLI", 5463)])
@pytest.mark.parametrize("name", ["finetune-best", "adapter-best"])
def test_best_evaluations_are_whole_numbers_of_dev_rows(name: str, column: str, rows: int):
    score = row("he-overfitting", name).scores[column]
    right = round(score * rows / 100)
    assert 100 * right / rows == pytest.approx(score, abs=0.006)


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_every_recipe_says_what_its_paper_does(recipe: Recipe):
    assert recipe.protocol.keys() >= PROTOCOL
    unknown = [key for key in recipe.protocol if key not in {*Run.model_fields, "selection"}]
    assert unknown == []


def test_baselines_have_the_names_that_a_comparison_gives_them():
    assert BASELINES == baselines.NAMES


def counted(text: str) -> tuple[float, float]:
    """`0.17M` -> 170,000 and half a unit of its last digit."""
    number, unit = re.fullmatch(r"([\d.,]+)([kKM]?)", text).groups()  # type: ignore[union-attr]
    scale = {"": 1.0, "K": 1e3, "M": 1e6}[unit.upper()]
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
        *itertools.product(["adapterbias-bases"], ["bb-bitfit", "bb-adapterbias", "bl-bitfit", "bl-adapterbias"]),
        *itertools.product(["adapterbias-bases"], ["rob-bitfit", "rob-adapterbias", "rol-adapterbias"]),
    ],
)
def test_methods_train_as_many_parameters_as_the_paper_says(recipe: str, name: str):
    one = row(recipe, name)
    sites = sites_of("bert-large" if "large" in recipes.find(recipe).base_of(one) else "bert-base")
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
        for spec in trained_specs([one]):
            space, problems = Plan([spec], {k: v for k, v in tried.items() if k not in fixed}, 1).space(run)
            assert problems == []
            for setting in space.settings():
                key = (recipe.base_of(one), dataset.name, spec, str(space.run(setting).config()))
                total += key not in seen
                seen.add(key)
    assert recipe.runs == total * recipe.seeds


BY_ACCURACY = {
    "houlsby-tradeoff": "figure 4: validation accuracy",
    "houlsby-sizes": "section 3.6, footnote 5: for consistency, accuracy for all",
    "he-overfitting": "table 6: best scores of MRPC are whole numbers of 408 rows, which F1 is not",
}
"""Where a paper has accuracy in the place of a set's own metric, and where it says so."""


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_metrics_are_those_that_the_sets_are_known_by(recipe: Recipe):
    for dataset in recipe.datasets:
        tasks = [glue.TASKS[task].metric for name in dataset.places if (task := glue.task_of(name))]
        found = {*tasks, *(METRICS[name] for name in dataset.places if name in METRICS)}
        if found and not (dataset.metric == "accuracy" and recipe.name in BY_ACCURACY):
            assert found == {dataset.metric}, dataset.name


@pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
def test_recipes_are_frozen(recipe: Recipe):
    with pytest.raises(ValueError, match="frozen"):
        recipe.seeds = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        recipe.rows[0].average = 1.0  # type: ignore[misc]


PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
PRINTED = {
    "Houlsby": [*(f"Table {n}" for n in (1, 2)), *(f"Figure {n}" for n in range(1, 7))],
    "Fu": [*(f"Table {n}" for n in "12345AB"), *(f"Figure {n}" for n in "1234567ABCDE")],
    "He": [*(f"Table {n}" for n in range(1, 16)), *(f"Figure {n}" for n in range(1, 11))],
    "Mohebbi": [*(f"Table {n}" for n in (1, 2, 3)), "Figures 1 to 7", "Figure 8"],
}


@pytest.mark.parametrize("author", PRINTED)
def test_every_table_and_figure_has_a_line_in_the_documentation(author: str):
    section = PAGE.partition(f"### {author} ")[2].partition("\n## ")[0].partition("\n### ")[0]
    lines = re.findall(r"^\| ([^|]*) \| ([^|]*) \|", section, re.M)
    assert [what for what, _ in lines if what.startswith(("Table", "Figure"))] == PRINTED[author]
    named = {name for _, how in lines for name in re.findall(r"`([a-z0-9]+-[a-z0-9-]+)[ `]", how)}
    assert named - {"bb-kept", "bl-kept"} == {r.name for r in ALL if r.paper.startswith(author)}
    for r in (r for r in ALL if r.paper.startswith(author)):  # and what a recipe says it is, it is in that line
        for what in re.findall(r"(?:Table|Figure)s? [0-9A-Z]+", r.table):
            line = next(how for name, how in lines if name == what.replace("s ", " "))
            assert r.name in line, (r.name, what)
