"""`inlay eval`: the metrics of training again, language by language, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.data.digest import digest, is_same
from inlay.engine import evaluate
from inlay.library.library import Library

ROWS: dict[str, Sequence[Mapping[str, Any]]] = {
    "classification": work.texts(30),
    "multilabel": work.topics(30),
    "regression": work.ratings(30),
    "tagging": work.entities(30),
    "mlm": work.texts(30),
}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class Place:
    """A library with an adapter for every task, trained and validated on files."""

    def __init__(self, root: Path):
        self.root = root
        self.base = tiny.save_text_model(root / "base")
        self.documents: dict[str, Any] = {}
        for task, rows in ROWS.items():
            train, val = write(root / f"{task}.jsonl", rows[:20]), write(root / f"{task}-val.jsonl", rows[20:])
            asked = [train, "--val", val, "--test", val, "--task", task, "--name", task, "--max-steps", 3]
            done = self.call("train", *asked, "--base", self.base, "--json")
            assert done.exit_code == 0, done.output
            self.documents[task] = json.loads(done.stdout)

    def call(self, *arguments: Any) -> Any:
        where = ["--library", str(self.root / "library")]
        return CliRunner().invoke(app, [*map(str, arguments), *where], env={"COLUMNS": "80"})

    def eval(self, *arguments: Any) -> Any:
        done = self.call("eval", *arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def fails(self, *arguments: Any) -> str:
        done = self.call("eval", *arguments)
        assert (done.exit_code, "Traceback" in done.output) == (1, False), done.output
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        return str(done.stderr)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("eval"))


@pytest.mark.thin(2)
@pytest.mark.parametrize("task", ROWS)
def test_the_metrics_are_those_of_training(place: Place, task: str):
    found = place.eval(task, place.root / f"{task}-val.jsonl")
    with_classes = task in ("classification", "multilabel", "tagging")
    assert found.keys() == {"name", "rows", "metrics", *(["majority"] if with_classes else [])}
    assert (found["name"], found["rows"]) == (task, 10)
    assert found["metrics"] == pytest.approx(place.documents[task]["metrics"]["validation"], rel=1e-5)
    assert found["metrics"] == pytest.approx(place.documents[task]["metrics"]["test"], rel=1e-5)


def test_the_majority_of_labels_is_said_in_words(place: Place):
    found = place.eval("multilabel", place.root / "multilabel-val.jsonl")["majority"]
    assert isinstance(found["label"], list)
    assert set(found["metrics"]) == set(place.documents["multilabel"]["metrics"]["validation"])
    out = place.call("eval", "multilabel", place.root / "multilabel-val.jsonl").stdout
    assert f"majority: always {', '.join(found['label']) or 'no label'}\n" in out


@pytest.mark.parametrize("task", ["regression", "mlm"])
def test_other_rows_have_other_metrics(place: Place, task: str):
    """Else the test above would show nothing."""
    other = place.eval(task, place.root / f"{task}.jsonl")
    assert other["metrics"] != pytest.approx(place.documents[task]["metrics"]["validation"], rel=1e-3)


def test_in_int8_the_metrics_are_nearly_the_same(place: Place):
    exact = place.eval("regression", place.root / "regression-val.jsonl")["metrics"]
    small = place.eval("regression", place.root / "regression-val.jsonl", "--weights", "int8")["metrics"]
    assert small != exact
    assert small == pytest.approx(exact, abs=0.15)


def test_what_people_see(place: Place):
    done = place.call("eval", "classification", place.root / "classification-val.jsonl")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("classification on 10 rows\n")  # the columns are those it was trained on: no guess
    value = place.documents["classification"]["metrics"]["validation"]["accuracy"]
    assert ["accuracy", "*", f"{value:.4f}", "0.5000"] in [line.split() for line in done.stdout.splitlines()]


def test_with_json_people_read_stderr(place: Place):
    done = place.call("eval", "classification", place.root / "classification-val.jsonl", "--json")
    assert json.loads(done.stdout)["rows"] == 10
    assert "classification on 10 rows" in done.stderr


def test_the_file_that_it_was_trained_on_is_told(place: Place, tmp_path: Path):
    copy = tmp_path / "under-another-name.jsonl"
    copy.write_bytes((place.root / "regression.jsonl").read_bytes())
    done = place.call("eval", "regression", copy, "--json")
    assert json.loads(done.stdout)["trained_on"] is True
    assert "expect lower scores on new rows" in done.stderr
    copy.write_bytes(copy.read_bytes().replace(b"text", b"Text", 1))  # as long, but another file
    assert "trained_on" not in place.eval("regression", copy, "--text", "text", "--skip-bad-rows")
    assert "trained_on" not in place.eval("regression", place.root / "regression-val.jsonl")


def test_a_card_of_older_versions_does_not_say_what_it_was_trained_on(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_text("text,label\n")
    for known in (None, "sha256", {}, {"bytes": 11}, {"bytes": 3, "sha256": "x"}):
        assert not is_same(str(file), known)
    assert is_same(str(file), digest(str(file)))
    assert digest(str(tmp_path)) is digest(str(tmp_path / "none")) is None


def test_a_version(place: Place):
    assert place.eval("tagging@1", place.root / "tagging-val.jsonl")["name"] == "tagging@1"
    assert "tagging has no version '9'" in place.fails("tagging@9", place.root / "tagging-val.jsonl")


def test_the_test_split_of_a_folder_unless_asked(place: Place, tmp_path: Path):
    for split, n in (("train", 20), ("dev", 6), ("test", 4)):
        write(tmp_path / f"{split}.jsonl", ROWS["classification"][:n])
    assert place.eval("classification", tmp_path)["rows"] == 4
    for split, rows in (("train", 20), ("validation", 6), ("test", 4)):
        assert place.eval("classification", tmp_path, "--split", split)["rows"] == rows
    (tmp_path / "test.jsonl").unlink()
    assert place.eval("classification", tmp_path)["rows"] == 6
    assert "has no split 'test', only train, validation" in place.fails("classification", tmp_path, "--split", "test")


def test_a_test_split_without_labels_is_not_taken(place: Place, tmp_path: Path):
    rows = ROWS["classification"]
    write(tmp_path / "d" / "dev.jsonl", rows[20:])
    write(tmp_path / "d" / "test.jsonl", [{"text": row["text"]} for row in rows])
    assert place.eval("classification", tmp_path / "d")["rows"] == 10


def test_a_second_text_is_not_read_by_an_adapter_that_had_none(place: Place, tmp_path: Path):
    """`sentence1` and `sentence2` would be guessed to be a pair."""
    rows = [{**row, "sentence1": row["text"], "sentence2": "never"} for row in ROWS["classification"][20:]]
    mine = place.eval("classification", write(tmp_path / "pairs.jsonl", rows))
    assert mine["metrics"] == pytest.approx(place.documents["classification"]["metrics"]["validation"])
    other = [{key: value for key, value in row.items() if key != "text"} for row in rows]
    guessed = place.call("eval", "classification", write(tmp_path / "other.jsonl", other))
    assert 'guessed: text = "sentence1", label = "label" (' in guessed.output  # said aloud where it must guess
    assert "trained on single texts" in place.fails("classification", tmp_path / "other.jsonl", "--pair", "sentence2")


def test_columns_can_be_given(place: Place, tmp_path: Path):
    rows = [{"a": row["text"], "b": row["label"], "text": "x", "label": "pos"} for row in ROWS["classification"][20:]]
    found = place.eval("classification", write(tmp_path / "f.jsonl", rows), "--text", "a", "--label", "b")
    assert found["metrics"] == place.documents["classification"]["metrics"]["validation"]


# --- labels -------------------------------------------------------------------------------------------------------


def test_labels_that_the_adapter_does_not_know(place: Place, tmp_path: Path):
    known = ROWS["classification"][20:]
    file = write(tmp_path / "f.jsonl", [*known, {"text": "film", "label": "mixed"}])
    done = place.call("eval", "classification", file, "--json")
    assert f"{file}: the adapter does not know 1 of the labels: mixed\n" in done.stderr
    right = place.documents["classification"]["metrics"]["validation"]["accuracy"]
    assert json.loads(done.stdout)["metrics"]["accuracy"] == pytest.approx(right * 10 / 11)  # it can only be missed
    file = write(tmp_path / "f.jsonl", [{"text": "film", "label": label} for label in ("up", "down")])
    assert f"{file}:1: the labels are down, up; classification knows neg, pos" in place.fails("classification", file)


def test_bad_rows(place: Place, tmp_path: Path):
    file = write(tmp_path / "f.jsonl", [*ROWS["regression"][20:], {"text": "film", "label": "high"}])
    assert f"{file}:11: the column 'label' holds 'high'; expected a number" in place.fails("regression", file)
    done = place.call("eval", "regression", file, "--skip-bad-rows")
    assert done.exit_code == 0
    assert f"skipped 1 row that cannot be used; the first: {file}:11: " in done.stdout


# --- languages ----------------------------------------------------------------------------------------------------


@pytest.fixture
def languages(tmp_path: Path) -> Path:
    """Files of four languages with different numbers of right answers."""
    for seed, code in enumerate(("en", "de", "fi", "tr")):
        write(tmp_path / f"test-{code}.jsonl", work.texts(5 + seed, seed=seed))
    return tmp_path


def fixed(monkeypatch: pytest.MonkeyPatch, values: Mapping[str, float]) -> None:
    """A language is as good as the test says; languages are told apart by their numbers of rows."""
    by_rows = dict(zip((5, 6, 7, 8), (values[code] for code in ("en", "de", "fi", "tr")), strict=True))

    def measure(host: Any, name: str, examples: Sequence[Any]) -> tuple[dict[str, float], set[str]]:
        return {"accuracy": by_rows[len(examples)], "f1_macro": 0.0}, set()

    monkeypatch.setattr(evaluate, "measure", measure)


def test_means_over_languages(place: Place, languages: Path, monkeypatch: pytest.MonkeyPatch):
    fixed(monkeypatch, {"en": 0.9, "de": 0.8, "fi": 0.5, "tr": 0.4})
    found = place.eval("classification", languages, "--per-language")
    assert found["means"] == pytest.approx({"all": 0.65, "target": 1.7 / 3, "distant": 0.45})
    assert (found["name"], found["metric"], found["source_language"]) == ("classification", "accuracy", "en")
    assert {code: one["rows"] for code, one in found["languages"].items()} == {"en": 5, "de": 6, "fi": 7, "tr": 8}
    assert {code: one["metrics"]["accuracy"] for code, one in found["languages"].items()} == {
        "en": 0.9,
        "de": 0.8,
        "fi": 0.5,
        "tr": 0.4,
    }


def test_another_language_can_be_the_source(place: Place, languages: Path, monkeypatch: pytest.MonkeyPatch):
    fixed(monkeypatch, {"en": 0.9, "de": 0.8, "fi": 0.5, "tr": 0.4})
    found = place.eval("classification", languages, "--per-language", "--source-language", "tr")
    assert found["means"] == pytest.approx({"all": 0.65, "target": 2.2 / 3, "distant": 0.45})


def test_a_language_has_the_metrics_of_its_file(place: Place, languages: Path):
    found = place.eval("classification", languages, "--per-language")
    for code in ("en", "de", "fi", "tr"):
        alone = place.eval("classification", languages / f"test-{code}.jsonl")
        assert found["languages"][code] == {key: alone[key] for key in ("rows", "metrics", "majority")}


def test_the_table_of_languages(place: Place, languages: Path):
    write(languages / "test-vo.jsonl", work.texts(4))
    out = place.call("eval", "classification", languages, "--per-language", "--text", "text", "--label", "label").stdout
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["language", "rows", "accuracy", "f1_macro", "majority"]
    assert [line[:2] for line in lines[2:7]] == [["en", "5"], ["de", "6"], ["fi", "7"], ["tr", "8"], ["vo", "4"]]
    assert "means of accuracy: all 0." in out
    assert "unknown language family, counted as not distant: vo\n" in out


def test_what_is_wrong_with_languages(place: Place, languages: Path):
    asked = ["classification", languages, "--per-language", "--text", "text", "--label", "label"]
    said = place.call("eval", *asked, "--source-language", "fr")
    assert said.exit_code == 1
    assert "the training language, 'fr'; found: de, en, fi, tr\n" in said.stderr
    (languages / "test-en.jsonl").unlink()
    assert "'en'; found: de, fi, tr" in place.call("eval", *asked).stderr
    file = languages / "test-de.jsonl"
    assert "expected a folder with one file" in place.fails("classification", file, "--per-language")
    both = place.call("eval", *asked, "--split", "train")
    assert (both.exit_code, "--split cannot be combined with --per-language" in both.stderr) == (2, True)


def test_tags_of_another_kind_have_no_entity_score(place: Place, tmp_path: Path):
    write(tmp_path / "en.jsonl", ROWS["tagging"][:5])
    write(tmp_path / "de.jsonl", [{"tokens": ["ana", "film"], "tags": ["O", "PLACE"]}])
    done = place.call("eval", "tagging", tmp_path, "--per-language")
    assert done.exit_code == 1
    assert "error: f1 cannot be computed for de" in done.stderr


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_another_base_is_refused_with_both_names(place: Place, tmp_path: Path):
    other = tiny.save_text_model(tmp_path / "other", intermediate_size=20)
    said = place.fails("classification", place.root / "classification-val.jsonl", "--base", other)
    assert other in said
    assert str(Library(place.root / "library").find("classification").card["base"]) in said
    assert place.base in said


def test_mistakes_are_one_clear_line(place: Place, tmp_path: Path):
    file = place.root / "classification-val.jsonl"
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    bare = write(tmp_path / "bare.jsonl", [{"text": "film"}] * 3)
    for arguments, said in (
        (["clasification", file], "Did you mean classification?"),
        (["classification", tmp_path / "none.csv"], "there is no such file"),
        (["classification", empty], "the file is empty"),
        (["classification", bare], "no column looks like the label"),
        (["classification", file, "--label", "y"], "no column 'y' (--label)"),
        (["classification", file, "--base", tmp_path], "config.json"),
    ):
        assert said in place.fails(*arguments), arguments


@pytest.mark.parametrize("arguments", [[], ["classification"], ["a", "b", "c"], ["a", "b", "--nonsense"]])
def test_bad_usage_is_2(place: Place, arguments: list[str]):
    done = place.call("eval", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
