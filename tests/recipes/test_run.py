"""A recipe that is run: what is found, run, chosen and reported, what is said of it, what is refused."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recipes import cooking
from training import work

import inlay
from inlay.errors import RunError
from inlay.recipes import find
from inlay.recipes.api import run
from inlay.recipes.folder import look
from inlay.recipes.plan import Changes, choose
from inlay.recipes.results import Results
from inlay.recipes.table_beside_paper import Line, TableBesidePaper
from inlay.sweeps.store import Row as Ran


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


@pytest.fixture(scope="module")
def found(host: inlay.Host, tmp_path_factory: pytest.TempPathFactory) -> TableBesidePaper:
    folder = tmp_path_factory.mktemp("recipe")
    return run(host, cooking.write(folder), cooking.serve(folder / "data", cooking.FILES))


def line(found: TableBesidePaper, name: str) -> Line:
    return next(one for one in found.lines if one.row.name == name)


# --- what is run, chosen and reported -----------------------------------------------------------------------------


def test_what_rows_have_in_common_is_run_once(found: TableBesidePaper):
    # fine-tuning has one learning rate, two sizes of adapters have two; two datasets, two seeds
    assert len(found.comparison.rows) == (1 + 2 * 2) * 2 * 2
    assert {row.state for row in found.comparison.rows} == {"done"}
    sizes = {row.config["batch_size"] for row in found.comparison.rows if row.label.startswith("Second")}
    assert sizes == {6}
    rates = {row.config["lr"] for row in found.comparison.rows if "finetune" in row.setting["method"]}
    assert rates == {1e-4}


def test_the_best_by_validation_is_reported(found: TableBesidePaper):
    splits = {"First": "validation", "Second": "test"}
    for name, methods in (("any", ("houlsby:size=4", "houlsby:size=8")), ("eight", ("houlsby:size=8",))):
        for dataset, split in splits.items():
            rows = [row for row in found.comparison.rows if row.label.split(".")[0] == dataset]
            rows = [row for row in rows if row.setting["method"] in methods]
            assert len(rows) == 4 * len(methods)
            best = max(rows, key=lambda row: row.value or 0.0)
            cell = line(found, name).cells[dataset]
            metric = "accuracy" if dataset == "First" else "f1_macro"
            assert cell.method in methods
            same = {100 * row.metrics[split][metric] for row in rows if row.value == best.value}
            assert cell.ours in same  # of runs that are equally good, any
            assert cell.spread is None


def test_averages_are_over_what_was_run(found: TableBesidePaper):
    one = line(found, "any")
    assert list(one.cells) == ["First", "Second"]
    paper, ours = one.averages["average"]
    assert paper == pytest.approx((91 + 82) / 2)
    assert ours == pytest.approx(statistics.fmean(cell.ours or 0.0 for cell in one.cells.values()))


def test_what_differs_is_said(found: TableBesidePaper):
    said = "\n".join(found.differences)
    assert "instead of bert-tiny" in said
    assert "First: scored on validation rows, which also picked the settings; the paper on secret rows" in said
    assert "Second: scored on your test rows; the paper on secret rows" in said
    assert "left out: Third: no folder or file named Third" in said
    assert "seeds" not in said
    assert "lr" not in said


def test_means_with_dev_rows_as_test_rows(host: inlay.Host, tmp_path: Path):
    more = "train_size = 12\nval_size = 6"
    own = cooking.write(tmp_path, report="mean", dev_is_test="true", more=more, measured="dev rows")
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    found = run(host, own, data, Changes(rows=["any"], only=["First"]))
    (about,) = found.comparison.datasets
    assert (about.split, dict(about.rows)) == ("test", {"train": 12, "validation": 6, "test": 24})
    cell = line(found, "any").cells["First"]
    groups: dict[str, list[Any]] = {}
    for row in found.comparison.rows:
        groups.setdefault(json.dumps(row.setting), []).append(row)
    assert {len(rows) for rows in groups.values()} == {2}
    best = max(groups.values(), key=lambda rows: statistics.fmean(row.value for row in rows))
    means = statistics.fmean(row.value for row in best)
    equal = [rows for rows in groups.values() if statistics.fmean(row.value for row in rows) == means]
    assert cell.ours in [
        pytest.approx(100 * statistics.fmean(row.metrics["test"]["accuracy"] for row in rows)) for rows in equal
    ]
    assert cell.spread is not None
    assert not any("scored on" in text for text in found.differences)


def test_a_single_file_is_split_in_three_and_a_folder_keeps_its_own(host: inlay.Host, tmp_path: Path):
    own = cooking.write(tmp_path, more='test_size = "25%"\nval_size = 4', measured="test rows")
    data = cooking.serve(tmp_path / "data", {"first.jsonl": 1, **dict(list(cooking.FILES.items())[2:])})
    found = run(host, own, data, Changes(rows=["eight"], grid={"lr": "1e-3"}))
    rows = {about.name: dict(about.rows) for about in found.comparison.datasets}
    assert rows["First"] == {"train": 14, "validation": 4, "test": 6}
    assert rows["Second"] == {"train": 24, "validation": 24, "test": 24}
    said = [text for text in found.differences if "scored on" in text]
    assert said == ["First: scored on test rows drawn here; the paper on test rows of its own"]


def test_one_metric_picks_and_another_is_reported(host: inlay.Host, tmp_path: Path):
    own = Path(cooking.write(tmp_path))
    more = 'First = { metric = "matthews", selection = "accuracy"'
    own.write_text(
        own.read_text().replace('First = { metric = "accuracy"', more) + '[protocol]\nselection = "accuracy"\n'
    )
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    found = run(host, str(own), data, Changes(rows=["eight"], seeds=4))
    rows = [row for row in found.comparison.rows if row.label.startswith("First")]
    assert {row.metric for row in rows} == {"accuracy"}
    best = max(row.metrics["validation"]["accuracy"] for row in rows)
    picked = [row for row in rows if row.value == best]
    cell = line(found, "eight").cells["First"]
    assert cell.ours in [100 * row.metrics["validation"]["matthews"] for row in picked]
    assert cell.ours != 100 * best
    assert found.differences[-1] == "selection: f1_macro instead of accuracy"  # that of the other set


def test_changes_are_made_and_said(host: inlay.Host, tmp_path: Path):
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    changes = Changes(only=["First"], rows=["eight", "tuned"], seeds=1, max_steps=2, grid={"lr": "0.001,3e-05"})
    found = run(host, cooking.write(tmp_path), data, changes, store=tmp_path / "r.sqlite")
    assert len(found.comparison.rows) == 4
    assert {row.config["max_steps"] for row in found.comparison.rows} == {2}
    assert {row.config["lr"] for row in found.comparison.rows} == {1e-3, 3e-5}
    said = found.differences[2:]
    assert said == (
        "left out, as requested: Second, Third",
        "rows left out, as requested: Adapters (4-8)",
        "seeds: 1 instead of 2",
        "max_steps: 2 instead of all steps",
        "lr: 1e-3, 3e-5 instead of 1e-4 or 1e-3, 0.01",
    )
    begun: list[Any] = []
    again = run(host, cooking.write(tmp_path), data, changes, store=tmp_path / "r.sqlite", callbacks=[begun.append])
    assert [event for event in begun if event["event"] == "begin"] == []
    assert again.document() == found.document()


def test_sizes_that_the_recipe_names_can_be_replaced(host: inlay.Host, tmp_path: Path):
    own = cooking.write(tmp_path, dev_is_test="true", more="train_size = 12\nval_size = 100")
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    rows = ["eight", "tuned"]
    with pytest.raises(RunError, match=r"^First, Second: --val-size 100 is more than the 24 rows there are$"):
        run(host, own, data, Changes(rows=rows), minutes=0)
    found = run(host, own, data, Changes(rows=rows, grid={"val_size": "5"}), minutes=0)
    assert {dict(about.rows)["validation"] for about in found.comparison.datasets} == {5}
    assert "val_size: 5 instead of 100" in found.differences


def test_a_change_of_what_no_row_says_is_beside_what_the_paper_says(host: inlay.Host, tmp_path: Path):
    own, data = Path(cooking.write(tmp_path)), cooking.serve(tmp_path / "data", cooking.FILES)
    protocol = '[protocol]\nwarmup = "not said"\nweight_decay = "0.01, of matrices"\nattention_dropout = "not said"\n'
    own.write_text(own.read_text().replace("[scores]", f"{protocol}\n[scores]"))
    grid = {"warmup": "0,0.06", "weight_decay": "0.02", "attention_dropout": "false", "clip": "2"}
    found = run(host, str(own), data, Changes(only=["First"], grid=grid), minutes=0)
    assert found.differences[-4:] == (
        "clip: 2 instead of Inlay's default",
        "warmup: none or 0.06; the paper does not say",
        "weight decay: 0.02 instead of 0.01, of matrices",
        "attention dropout: none; the paper does not say",
    )


def test_a_size_that_only_one_set_names_replaces_all_rows_of_the_others(host: inlay.Host, tmp_path: Path):
    own, data = Path(cooking.write(tmp_path)), cooking.serve(tmp_path / "data", cooking.FILES)
    own.write_text(own.read_text().replace("batch_size = 6 }", "train_size = 12 }"))
    found = run(host, str(own), data, Changes(rows=["eight"], train_size=6), minutes=0)
    assert "train_size: 6 instead of all rows or 12" in found.differences


def test_one_method_with_settings_of_two_rows_is_two_methods(host: inlay.Host, tmp_path: Path):
    own, data = Path(cooking.write(tmp_path)), cooking.serve(tmp_path / "data", cooking.FILES)
    own.write_text(own.read_text().replace('trained = "1.2K"', 'settings = { head = "tanh2", lr = 1e-3 }'))
    found = run(host, str(own), data, Changes(only=["Second"], rows=["any", "eight"], seeds=1))
    assert len(found.comparison.rows) == 2 * 2 + 1
    (last,) = [row for row in found.comparison.rows if row.config.get("head") == "tanh2"]
    cell = line(found, "eight").cells["Second"]
    assert cell.ours == 100 * last.metrics["test"]["f1_macro"]
    others = [row for row in found.comparison.rows if row.id != last.id]
    assert {row.label.split()[0] for row in others} == {"Second.any"}
    best = max(row.value or 0.0 for row in others)
    assert line(found, "any").cells["Second"].ours in [
        100 * row.metrics["test"]["f1_macro"] for row in others if row.value == best
    ]


class Steps:
    """Counts steps; stops everything after so many."""

    def __init__(self, most: int | None = None):
        self.most, self.taken = most, 0

    def __call__(self, event: dict[str, Any]) -> None:
        self.taken += event["event"] == "step"
        if self.taken == self.most:
            raise KeyboardInterrupt


def test_a_recipe_that_was_stopped_goes_on_across_its_rows(host: inlay.Host, tmp_path: Path):
    own, data = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES)
    changes = Changes(only=["First"], seeds=1)
    whole, first, second = Steps(), Steps(9), Steps()
    fresh = run(host, own, data, changes, callbacks=[whole], slots=2)
    for stop in (first, second):
        try:
            found = run(host, own, data, changes, store=tmp_path / "r.sqlite", callbacks=[stop], save_every=0, slots=2)
        except KeyboardInterrupt:
            assert stop is first
    assert second.taken < whole.taken
    assert [one.cells for one in found.lines] == [one.cells for one in fresh.lines]


def test_the_largest_number_of_epochs_is_cut_by_steps(tmp_path: Path):
    recipe = find("houlsby-glue")
    data = cooking.serve(tmp_path, {"CoLA/train.jsonl": 0})
    row, dataset = recipe.rows[1], recipe.datasets[0]
    assert choose(recipe, data, Changes()).tried(row, dataset)["epochs"] == (3, 20)
    assert choose(recipe, data, Changes(max_steps=9)).tried(row, dataset)["epochs"] == (20,)


def test_a_run_that_fails_leaves_a_gap(host: inlay.Host, tmp_path: Path):
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    changes = Changes(only=["First"], rows=["tuned"], seeds=1, grid={"lr": "1e30"})
    found = run(host, cooking.write(tmp_path), data, changes)
    assert line(found, "tuned").cells["First"].ours is None
    assert line(found, "tuned").averages == {"average": (90.0, None)}
    assert any(" failed: " in note for note in found.comparison.notes)


def test_files(found: TableBesidePaper, tmp_path: Path):
    found.to_csv(tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 2
    assert float(rows[0]["paper"]) == 90.0
    assert float(rows[0]["ours"]) == line(found, "tuned").cells["First"].ours
    assert json.loads(json.dumps(found.document()))["rows"][0]["columns"]["First"]["paper"] == 90.0


# --- where the data is ----------------------------------------------------------------------------------------------


def test_names_are_taken_as_they_are_meant(tmp_path: Path):
    recipe = find("houlsby-glue")
    files = {"cola.jsonl": 0, "sst2/train.jsonl": 1, "MNLI/train.jsonl": 2}
    files |= {"MNLI/dev_matched.jsonl": 3, "MNLI/dev_mismatched.jsonl": 4, "QNLI/dev.jsonl": 5, "notes.md": 6}
    found, missing = look(recipe, cooking.serve(tmp_path, files), recipe.datasets)
    places = {one.dataset.name: Path(one.data).name for one in found}
    assert places == {"CoLA": "cola.jsonl", "SST-2": "sst2", "MNLI-m": "MNLI", "MNLI-mm": "MNLI-mm"}
    assert {text.partition(":")[0] for text in missing} == {"MRPC", "STS-B", "QQP", "QNLI", "RTE"}
    assert "QNLI: QNLI has no training rows" in missing
    from inlay.data.source import open_splits

    opened = {one.dataset.name: open_splits(one.data)["validation"].name for one in found if "MNLI" in one.data}
    assert {name: Path(path).name for name, path in opened.items()} == {
        "MNLI-m": "dev_matched.jsonl",
        "MNLI-mm": "dev_mismatched.jsonl",
    }


def test_dev_rows_are_needed_where_they_are_tested_on(tmp_path: Path):
    recipe = find("he-glue-1k")
    files = {"CoLA/train.jsonl": 0, "RTE/train.jsonl": 1, "RTE/dev.jsonl": 2}
    found, missing = look(recipe, cooking.serve(tmp_path, files), recipe.datasets)
    assert [(one.dataset.name, Path(one.data).name, Path(one.test or "").name) for one in found] == [
        ("RTE", "train.jsonl", "dev.jsonl")
    ]
    assert "CoLA: CoLA has no dev rows, which this recipe tests on" in missing


def test_nothing_there_is_an_error_that_says_what_was_looked_for(tmp_path: Path):
    recipe = find("houlsby-glue")
    with pytest.raises(RunError, match=r"holds no dataset of houlsby-glue; CoLA: no folder or file named CoLA;.* SST"):
        look(recipe, tmp_path, recipe.datasets)
    with pytest.raises(RunError, match="cannot be read as a folder"):
        look(recipe, tmp_path / "nowhere", recipe.datasets)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_unknown_names(tmp_path: Path):
    with pytest.raises(RunError, match=r"unknown recipe 'houlsby-glu'\. Did you mean houlsby-glue"):
        find("houlsby-glu")
    with pytest.raises(RunError, match=r"dataset 'Cola'. Did you mean CoLA.*; unknown row 'adapter'. Did you mean"):
        choose(find("houlsby-glue"), str(tmp_path), Changes(only=["Cola"], rows=["adapter"]))


def test_everything_wrong_with_the_settings_is_said_together(host: inlay.Host, tmp_path: Path):
    data = cooking.serve(tmp_path / "data", cooking.FILES)
    with pytest.raises(RunError) as error:
        run(host, cooking.write(tmp_path), data, Changes(grid={"batch_sise": "4", "lr": "fast", "val_size": "3"}))
    for part in ("batch_sise", "fast", "val_size cannot vary"):
        assert part in str(error.value)
    (tmp_path / "data/first/train.jsonl").write_text('{"some": "text"}\n')
    with pytest.raises(RunError, match=r"^First: .*no column looks like the .*; the columns are some$"):
        run(host, cooking.write(tmp_path), data, Changes(only=["First"]))
    with pytest.raises(RunError, match=r"method is no key of the grid: every row has its own \(--lines\)$"):
        run(host, cooking.write(tmp_path), data, Changes(grid={"method": "lora"}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("seeds = 2", "seeds = two"), "is not TOML"),
        (("seeds = 2", "seeds = 0"), "seeds: expected greater than or equal to 1"),
        (("[grid]", "[gird]"), "gird: Extra inputs"),
        (("tuned = [90.0, 80.0, 10.0]", "tuned = [90.0]"), "tuned has 1 scores for 3 columns"),
        (("eight = [92.0, 84.0, 30.0]", ""), r"\[rows.eight\] has no scores"),
        (('order = ["First", ', 'order = ["Fist", '), "Fist is in order, but not in"),
        (("tuned = [90.0", "tuner = [90.0"), "scores of tuner have no"),
        (('metric = "accuracy"', 'metric = "rmse"'), "rmse has no place"),
        (("[rows.any]", "[row.any]"), "scores of any have no"),
        (("any", "any-tuned"), "names that end in -tuned are those of tuned rows"),
        (("[scores]", "[spreads]\nany = [1.0]\n[scores]"), "any has 1 spreads for 3 columns"),
        (("[scores]", '[averages]\nhalf = ["First", "Fourth"]\n[scores]'), "half is over Fourth, which is not"),
        (('methods = ["finetune:top=1"]', 'methods = ["tf-idf"]'), "a baseline is the only method of its row"),
        (("Third = { metric", 'Third = { languages = ["de"], metric'), "Third is in order, but not in"),
        (('methods = ["houlsby:size=8"]', 'methods = ["houlsby:size=8"]\naverages = { half = 1.0 }'), "average half"),
        (('report = "best"', 'report = "worst"'), "report: expected 'best' or 'mean'"),
        (("[datasets]", "[datasets]\nFourth = [1]"), r"expected a table \[datasets\] of tables"),
        (("[rows.any]", "[rows]\nany = [1]\n[row]"), r"expected a table \[rows\] of tables"),
        (("tuned = [90.0, 80.0, 10.0]", "tuned = { First = 90.0 }"), r"expected a table \[scores\] of lists"),
        (('order = ["First", "Second", "Third"]', "order = { First = 1 }"), r"expected a table \[scores\] of lists"),
        (("Third = { metric", "Third = { languages = 5, metric"), "languages: expected a valid tuple"),
    ],
)
def test_files_that_are_not_recipes(tmp_path: Path, change: tuple[str, str], said: str):
    path = Path(cooking.write(tmp_path))
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(RunError, match=said):
        find(path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(RunError, match="cannot be read"):
        find(tmp_path / "no.toml")


def test_the_best_run_by_validation_is_reported_by_its_test_score():
    def ran(seed: int, value: float, test: float) -> Any:
        metrics = {"validation": {"accuracy": value}, "test": {"accuracy": test}}
        parameters = {"adapter": 1, "share_of_base": 0.1}
        one = Ran(str(seed), seed, "a", {}, seed, {}, "done", "accuracy", value, metrics, [], parameters)
        return one, SimpleNamespace(id=str(seed), setting={"method": "lora"})

    runs = [ran(0, 0.6, 0.9), ran(1, 0.8, 0.7)]
    about = SimpleNamespace(name="a", split="test", metric="accuracy")
    part = SimpleNamespace(about=about, trials=[trial for _, trial in runs])
    recipe = SimpleNamespace(report="best")
    chosen: Any = SimpleNamespace(recipe=recipe, seeds=2, part=lambda row, dataset: "a")
    ours: Any = SimpleNamespace(parts=[part], rows=lambda: [one for one, _ in runs])
    row: Any = SimpleNamespace(methods=("lora",), is_baseline=False, shows="score")
    column: Any = SimpleNamespace(language=None, dataset=None, metric="accuracy")
    told = Results(chosen, ours).of(row, column)
    assert told is not None
    assert (told.values, told.setting) == ((70.0,), {"seed": 1})
    recipe.report = "mean"
    told = Results(chosen, ours).of(row, column)
    assert told is not None
    assert sorted(told.values) == [70.0, 90.0]
    assert told.spread("std") == pytest.approx(200**0.5)
    assert told.spread("sem") == pytest.approx(10.0)


def test_a_published_file_without_an_ending_is_found(tmp_path: Path):
    (tmp_path / "SMSSpamCollection").write_text("ham\tsee you\nspam\twin a prize\n", encoding="utf-8")
    wanted = [one for one in find("houlsby-text").datasets if one.name == "sms-spam"]
    (found,), missing = look(find("houlsby-text"), tmp_path, wanted)
    assert (found.data, missing) == (str(tmp_path / "SMSSpamCollection"), [])


def test_published_files_are_read_as_they_are(tmp_path: Path):
    recipe = find("houlsby-text")
    wanted = [one for one in recipe.datasets if one.name in ("airline", "disasters")]
    rows = "_unit_id,airline_sentiment,airline,text\n1,positive,Delta,caf\xe9\n2,negative,United,late\n"
    (tmp_path / "Airline-Sentiment-2-w-AA.csv").write_text(rows, encoding="latin-1")
    (tmp_path / "disasters.csv").write_text("text,label\ncaf\xe9,1\n", encoding="utf-8")
    (airline, disasters), _ = look(recipe, tmp_path, wanted)
    assert airline.published == {"encoding": "latin-1", "text": "text", "label": "airline_sentiment"}
    assert disasters.published == {}
