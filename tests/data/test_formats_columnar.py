"""Parquet and the hub, both through packages that need not be installed."""

from __future__ import annotations

import sys

import pytest

from inlay.data.source import open_source, open_splits
from inlay.errors import DataError


def rows(opened):
    return [dict(record.fields) for record in opened.records()]


@pytest.fixture
def pyarrow():
    pytest.importorskip("pyarrow.parquet")
    return pytest.importorskip("pyarrow")


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


def test_parquet_over_several_row_groups(pyarrow, tmp_path):
    table = [{"text": f"row {i}", "tokens": ["a", "b"], "score": i / 2 if i % 3 else None} for i in range(2500)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "a.parquet", row_group_size=700)
    opened = open_source(tmp_path / "a.parquet")
    assert (opened.format, opened.columns) == ("parquet", ("text", "tokens", "score"))
    assert rows(opened) == rows(opened) == table
    places = [record.place for record in opened.records()]
    assert (places[0], places[-1]) == (f"{tmp_path}/a.parquet row 1", f"{tmp_path}/a.parquet row 2500")


def test_parquet_is_known_by_its_bytes(pyarrow, tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"text": "a"}]), tmp_path / "data")
    assert open_source(tmp_path / "data").format == "parquet"


def test_parquet_written_by_datasets_has_names_of_labels(datasets, tmp_path):
    pytest.importorskip("pyarrow")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["neg", "pos"]),
            "ner_tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"])),
        }
    )
    table = {"text": ["a", "b"], "label": [1, 0], "ner_tags": [[0, 1], []]}
    datasets.Dataset.from_dict(table, features=features).to_parquet(tmp_path / "a.parquet")
    assert rows(open_source(tmp_path / "a.parquet")) == [
        {"text": "a", "label": "pos", "ner_tags": ["O", "B-PER"]},
        {"text": "b", "label": "neg", "ner_tags": []},
    ]


@pytest.mark.parametrize(
    "said",
    [
        '{"label": {"_type": "ClassLabel", "names": 5}}',
        '{"label": {"_type": "ClassLabel", "names": {"0": "no"}}}',
        "[1]",
    ],
)
def test_what_is_said_of_labels_may_be_damaged(pyarrow, tmp_path, said):
    table = pyarrow.table({"text": ["a"], "label": [0]})
    damaged = table.replace_schema_metadata({"huggingface": f'{{"info": {{"features": {said}}}}}'})
    pyarrow.parquet.write_table(damaged, tmp_path / "a.parquet")
    assert rows(open_source(tmp_path / "a.parquet")) == [{"text": "a", "label": 0}]


def test_without_pyarrow_the_message_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'inlay\[parquet\]'"):
        open_source(tmp_path / "a.parquet")


@pytest.fixture
def hub(datasets, monkeypatch):
    """`load_dataset` without a network; it remembers what it was asked for."""
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})

    def part(labels):
        return datasets.Dataset.from_dict({"text": ["x"] * len(labels), "label": labels}, features=features)

    parts = {"train": part([0, 1, 1]), "validation_matched": part([1]), "test": part([-1]), "unsupervised": part([-1])}
    asked = []

    def load(path, name=None, **options):
        asked.append((path, name))
        return datasets.DatasetDict(parts)

    monkeypatch.setattr(datasets, "load_dataset", load)
    return asked


def test_a_hub_dataset(hub):
    found = open_splits("org/reviews:small")
    assert hub == [("org/reviews", "small")]
    assert list(found) == ["train", "validation", "test"]
    assert (found["train"].format, found["train"].columns) == ("hub", ("text", "label"))
    assert [record.fields["label"] for record in found["train"].records()] == ["neg", "pos", "pos"]
    assert next(found["train"].records()).place == "org/reviews:small train row 1"
    assert next(found["validation"].records()).place == "org/reviews:small validation_matched row 1"
    assert rows(found["test"]) == [{"text": "x"}]


def test_a_hub_dataset_that_cannot_be_had(datasets, monkeypatch):
    def fail(*args, **options):
        raise ConnectionError("could not reach the hub:\n  tried 5 times")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError) as caught:
        open_splits("reviewz")
    assert str(caught.value) == (
        "there is no file or folder 'reviewz', and no hub dataset of this name could be loaded: "
        "could not reach the hub: tried 5 times"
    )


def test_a_hub_dataset_without_known_splits(datasets, monkeypatch):
    only = datasets.DatasetDict({"dump": datasets.Dataset.from_dict({"text": ["a"]})})
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: only)
    with pytest.raises(DataError, match="the dataset has dump"):
        open_splits("reviews")


def test_without_datasets_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'inlay\[hub\]'"):
        open_splits("reviews")
