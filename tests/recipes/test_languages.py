"""A dataset with languages: trained in one, scored in all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recipes import cooking
from training import work

import inlay
from inlay.engine.evaluate import measure
from inlay.errors import RunError
from inlay.recipes import find
from inlay.recipes.api import run
from inlay.recipes.folder import look
from inlay.recipes.plan import Changes, choose
from inlay.recipes.table_beside_paper import TableBesidePaper
from inlay.tasks import Example

TEXT = """
paper = "Somebody 2020, A Paper"
table = "Table 9"
title = "One set in three languages"
base = "bert-tiny"
measured = "test rows"
seeds = 1
report = "best"

[settings]
batch_size = 4
epochs = 2
lr = 1e-2

[datasets.Mood]
metric = "accuracy"
languages = ["en", "de", "fr", "zh"]

[averages]
All = ["en", "de", "fr", "zh"]
Target = ["de", "fr", "zh"]
Distant = ["zh"]

[rows.eight]
label = "Adapters (8)"
methods = ["houlsby:size=8"]
averages = { All = 60.0, Distant = 20.0 }

[scores]
order = ["en", "de", "fr", "zh"]
eight = [90.0, 50.0, "-", "-"]
"""
FILES = {"mood/train-en.jsonl": 1, "mood/dev-en.jsonl": 2, "mood/test-en.jsonl": 3, "mood/test-de.jsonl": 4}
FILES |= {"mood/dev-zh.jsonl": 5}


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mood.toml"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def test_every_language_is_scored_with_the_adapter_that_was_trained_in_one(
    host: inlay.Host, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
):
    data, store = cooking.serve(tmp_path / "data", FILES), tmp_path / "r.sqlite"
    for file, label in (("test-de", "pos"), ("dev-zh", "neg")):  # so that always the same answer scores differently
        path = tmp_path / "data/mood" / f"{file}.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(text for i, text in enumerate(lines) if i < 6 or f'"{label}"' in text))
    found = run(host, recipe, data, store=store)
    cells = found.lines[0].cells
    assert list(cells) == ["en", "de", "zh"]
    (row,) = found.comparison.rows
    assert row.config["data"].endswith("train-en.jsonl")
    assert row.config["val"].endswith("dev-en.jsonl")
    assert "test" not in row.config
    from inlay.sweeps.store import Store

    with Store(store) as opened:
        adapter = opened.adapter(row.id)
    assert adapter is not None
    host.load(adapter, "again")
    for code, file in {"en": "test-en", "de": "test-de", "zh": "dev-zh"}.items():
        rows = [json.loads(text) for text in (tmp_path / "data/mood" / f"{file}.jsonl").read_text().splitlines()]
        examples = [Example(one["text"], target=one["label"], place=code) for one in rows]
        assert cells[code].ours == pytest.approx(100 * measure(host, "again", examples)[0]["accuracy"]), code
    host.unload("again")
    assert len({cell.ours for cell in cells.values()}) == 3
    _check_averages(found)
    assert not any(text.startswith(("de", "en")) for text in found.differences)
    assert "zh: scored on dev rows; the paper on test rows" in found.differences
    assert "left out: fr: no test file" in found.differences

    def refused(*_: Any) -> Any:
        raise AssertionError("what is known is not scored again")

    monkeypatch.setattr("inlay.recipes.results.measure", refused)
    assert run(host, recipe, data, store=store).document() == found.document()
    cooking.serve(tmp_path / "data", {"mood/test-de.jsonl": 9})
    with pytest.raises(AssertionError, match="not scored again"):  # but a file that has changed is
        run(host, recipe, data, store=store)


def _check_averages(found: TableBesidePaper) -> None:
    line = found.lines[0]
    ours = {name: cell.ours or 0.0 for name, cell in line.cells.items()}
    means = line.averages
    assert means["All"][1] == pytest.approx(sum(ours.values()) / 3)
    assert means["Target"][1] == pytest.approx((ours["de"] + ours["zh"]) / 2)
    assert means["Distant"] == (20.0, pytest.approx(ours["zh"]))  # all of it was run: the paper's printed average
    assert means["All"][0] is None  # fr was not run, and the paper's mean without it is not known


def test_the_dev_rows_that_chose_are_named(host: inlay.Host, tmp_path: Path, recipe: str):
    files = {"mood/train-en.jsonl": 1, "mood/dev-en.jsonl": 2, "mood/dev-de.jsonl": 4}
    found = run(host, recipe, cooking.serve(tmp_path / "data", files), Changes(only=["en", "de"], max_steps=1))
    assert "en: scored on validation rows, which also picked the settings; the paper on test rows" in found.differences
    assert "de: scored on dev rows; the paper on test rows" in found.differences
    assert "left out, as requested: fr, zh" in found.differences


def test_labels_that_the_adapter_does_not_know_leave_a_gap(host: inlay.Host, tmp_path: Path, recipe: str):
    data = cooking.serve(tmp_path / "data", FILES)
    (tmp_path / "data/mood/test-de.jsonl").write_text('{"text": "gut", "label": "froh"}\n{"text": "a", "label": "b"}\n')
    found = run(host, recipe, data, Changes(max_steps=1))
    assert found.lines[0].cells["de"].ours is None
    assert found.lines[0].averages["Target"][1] is None
    assert any("the labels are b, froh" in note for note in found.notes)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"mood.jsonl": 1}, r"mood.jsonl is a file; expected a folder with files such as train-en.tsv"),
        ({"mood/train-de.jsonl": 1}, "mood has no training file in en, such as train-en.tsv"),
        ({"mood/train-en.jsonl": 1}, "no file to test on, as in .*; found train-en.jsonl"),
        ({"mood/train-en.jsonl": 1, "mood/en/train.jsonl": 1, "mood/test-de.jsonl": 2}, "has 2 training files in en"),
        ({"mood/train-en.jsonl": 1, "mood/test-ja.jsonl": 2}, "has no test file in any of its languages"),
    ],
)
def test_folders_that_lack_something(tmp_path: Path, recipe: str, files: dict[str, int], said: str):
    known = find(recipe)
    with pytest.raises(RunError, match=said):
        look(known, cooking.serve(tmp_path / "data", files), known.datasets)


def test_languages_in_folders_of_their_own(tmp_path: Path, recipe: str):
    known = find(recipe)
    files = {"mood/en/train.jsonl": 1, "mood/en/dev.jsonl": 2, "mood/de/test.jsonl": 3, "mood/de/train.jsonl": 4}
    (found,), _ = look(known, cooking.serve(tmp_path / "data", files), known.datasets)
    assert (Path(found.data).parts[-2:], Path(found.val or "").parts[-2:]) == (
        ("en", "train.jsonl"),
        ("en", "dev.jsonl"),
    )
    assert {code: path.parts[-2:] for code, path in found.languages.items()} == {
        "de": ("de", "test.jsonl"),
        "en": ("en", "dev.jsonl"),
    }


def test_a_language_that_is_not_there(tmp_path: Path, recipe: str):
    data = cooking.serve(tmp_path / "data", FILES)
    with pytest.raises(RunError, match=r"fr cannot be scored; .* has de, en, zh"):
        choose(find(recipe), data, Changes(only=["fr"]))
    with pytest.raises(RunError, match="unknown dataset 'it'"):
        choose(find(recipe), data, Changes(only=["it"]))


def test_one_dataset_with_languages_is_all_that_a_recipe_has(tmp_path: Path):
    path = tmp_path / "two.toml"
    path.write_text(
        TEXT.replace("[averages]", '[datasets.More]\nmetric = "accuracy"\n[averages]')
        .replace('"zh"]\neight', '"zh", "More"]\neight')
        .replace('"-", "-"]', '"-", "-", 1.0]')
    )
    with pytest.raises(RunError, match="a dataset with languages is the only one"):
        find(path)


def test_both_texts_of_a_pair_are_read_from_files_without_a_header(
    host: inlay.Host, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "data" / "mood"
    folder.mkdir(parents=True)
    for file, seed in {"train-en": 1, "dev-en": 2, "test-de": 3}.items():
        rows = ["\t".join([one["a"], one["b"], one["label"]]) for one in work.pairs(24, seed)]
        (folder / f"{file}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    seen: list[Example] = []

    def measured(host: inlay.Host, name: str, examples: list[Example]) -> Any:
        seen.extend(examples)
        return measure(host, name, examples)

    monkeypatch.setattr("inlay.recipes.results.measure", measured)
    found = run(host, recipe, tmp_path / "data", Changes(only=["de"], max_steps=1))
    assert found.lines[0].cells["de"].ours is not None
    assert [(e.text, e.pair, e.target) for e in seen] == [
        (one["a"], one["b"], one["label"]) for one in work.pairs(24, 3)
    ]


def test_treebanks_of_one_language_are_joined(host: inlay.Host, tmp_path: Path, recipe: str):
    files = {f"mood/{name}.jsonl": i for i, name in enumerate(("en_a-ud-train", "en_b-ud-train", "en_a-ud-dev"))}
    files |= {f"mood/{name}.jsonl": i for i, name in enumerate(("de_a-ud-test", "de_b-ud-test", "en_b-ud-dev"), 3)}
    found = run(host, recipe, cooking.serve(tmp_path / "data", files), store=tmp_path / "r.sqlite")
    (about,) = found.comparison.datasets
    assert dict(about.rows) == {"train": 48, "validation": 48}
    cells = found.lines[0].cells
    assert cells["de"].ours is not None
    assert cells["de"].ours * 48 / 100 == pytest.approx(round(cells["de"].ours * 48 / 100))  # of 48 rows
    again = run(host, recipe, str(tmp_path / "data"), store=tmp_path / "r.sqlite")
    assert again.document() == found.document()
