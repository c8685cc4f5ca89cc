"""Files, folders and names become sources."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from inlay.data.formats.text import HEAD
from inlay.data.record import Skipped
from inlay.data.source import open_per_language, open_source, open_splits
from inlay.errors import DataError

EXTENSIONS = ["csv", "tsv", "txt", "json", "jsonl", "conll", "conllu", "csv.gz", ""]
TABLE = "text,label\ngood,pos\nbad,neg\nfine,pos\n"


def write(path, content=TABLE):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", newline="")
    return path


def rows(source):
    return [dict(record.fields) for record in source.records()]


def test_a_source_knows_itself_and_can_be_read_again(tmp_path):
    path = write(tmp_path / "sms.csv")
    source = open_source(path)
    assert (source.name, source.format, source.columns, source.hints) == (str(path), "csv", ("text", "label"), {})
    assert source.notes == ()
    expected = [{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}, {"text": "fine", "label": "pos"}]
    assert rows(source) == rows(source) == expected
    assert [record.place for record in source.records()] == [f"{path}:{line}" for line in (2, 3, 4)]


def test_bad_rows_are_told_or_stop(tmp_path):
    path = write(tmp_path / "a.csv", TABLE + "alone\nlast,neg\none,two,three\n")
    with pytest.raises(DataError, match=r"a\.csv:5: 1 cell where 2 are expected"):
        list(open_source(path).records())
    skipped = Skipped()
    found = list(open_source(path).records(skipped))
    assert [record.fields["text"] for record in found] == ["good", "bad", "fine", "last"]
    assert skipped.count == 2
    assert [message.split(": ")[0] for message in skipped.first] == [f"{path}:5", f"{path}:7"]


def test_opening_reads_the_beginning_only(tmp_path):
    """What is wrong far down is noticed by reading, not by opening."""
    path = tmp_path / "big.csv"
    path.write_bytes(b"text,label\n" + b"some words,pos\n" * (HEAD // 10) + b"caf\xe9,neg\n")
    source = open_source(path)
    read = source.records()
    assert next(read).fields == {"text": "some words", "label": "pos"}
    with pytest.raises(DataError, match=rf"big\.csv:{HEAD // 10 + 2}: byte 0xe9 is not UTF-8"):
        list(read)


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ["big.csv", "big.tsv", "big.jsonl", "big.conll"])
def test_reading_takes_constant_memory(name, tmp_path):
    text = "some words " * 10
    header, row = {
        "big.csv": ("text,label\n", f'"{text}",pos\n'),
        "big.tsv": ("text\tlabel\n", f"{text}\tpos\n"),
        "big.jsonl": ("", json.dumps({"text": text, "label": "pos"}) + "\n"),
        "big.conll": ("", "word\tO\n" * 16 + "\n"),
    }[name]

    def peak(count):
        (tmp_path / name).write_text(header + row * count)
        tracemalloc.start()
        try:
            assert sum(1 for _ in open_source(tmp_path / name).records()) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is imported or cached once is not counted
    few, many = peak(4_000), peak(16_000)
    assert 4_000 * len(row) > HEAD
    assert many < 1.2 * few


def test_gzip_is_known_by_its_bytes(tmp_path):
    for name in ("a.csv.gz", "a.csv"):
        (tmp_path / name).write_bytes(gzip.compress(TABLE.encode()))
        source = open_source(tmp_path / name)
        assert (source.format, len(rows(source))) == ("csv", 3)


@pytest.mark.parametrize(
    ("content", "format"),
    [
        ('{"text": "a", "label": "b"}\n{"text": "c", "label": "d"}\n', "jsonl"),
        ('[{"text": "a", "label": "b"}]', "json"),
        ("ham\tsee you\nspam\twin now\nham\tok\n", "tsv"),
        ("EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n", "conll"),
        ("Die\tDET\nBiene\tNOUN\n\nDie\tDET\nBlume\tNOUN\n", "conll"),
        ("1\tHi\thi\tINTJ\t_\t_\t0\troot\t_\t_\n\n", "conllu"),
        (TABLE, "csv"),
        ("a first text\nand, well, another\n", "tsv"),
    ],
)
@pytest.mark.parametrize("name", ["data.txt", "DATA", "data.unknown"])
def test_without_a_telling_extension_the_content_decides(name, content, format, tmp_path):
    assert open_source(write(tmp_path / name, content)).format == format


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("tags.tsv", "R.H.\tB-ORG\nSaunders\tI-ORG\n\nis\tO\n", "conll"),
        ("table.tsv", "text\tlabel\nfine\tpos\n\nbad\tneg\n", "tsv"),
        ("lines.json", '{"text": "a"}\n{"text": "b"}\n', "jsonl"),
        ("one.json", '{"text": "a", "label": "b"}\n', "jsonl"),
        ("keyed.json", '{"0": {"text": "a"}, "1": {"text": "b"}}', "json"),
        ("array.jsonl", '[\n{"text": "a"},\n{"text": "b"}]', "json"),
        ("ud.conll", "# text = Hi\n1\tHi\thi\tINTJ\t_\t_\t0\troot\t_\t_\n\n", "conllu"),
        ("commas.tsv", TABLE, "csv"),
    ],
)
def test_content_that_contradicts_the_extension(name, content, format, tmp_path):
    assert open_source(write(tmp_path / name, content)).format == format


def test_a_format_can_be_forced(tmp_path):
    path = write(tmp_path / "a.txt", "Acme\tB-ORG\nSaunders\tI-ORG\n\nVolta\tB-ORG\n")
    assert open_source(path).format == "conll"
    assert rows(open_source(path, format="tsv"))[1] == {"column1": "Saunders", "column2": "I-ORG"}
    with pytest.raises(DataError, match="Did you mean jsonl"):
        open_source(path, format="jsonlines")
    with pytest.raises(DataError, match="not those of a GLUE task"):
        open_source(path, format="glue")


def test_what_is_no_file(tmp_path):
    write(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"this is a folder; expected a file"):
        open_source(tmp_path)
    with pytest.raises(DataError, match=r"trian\.csv: there is no such file. Did you mean train\.csv\?"):
        open_source(tmp_path / "trian.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="not a regular file"):
        open_source(tmp_path / "pipe.csv")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv")

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(DataError, match=r"a\.csv: cannot be read: Permission denied"):
        open_source(path)


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train.csv", "dev.csv", "test.csv"], {"train": 0, "validation": 1, "test": 2}),
        (["train.csv", "valid.csv"], {"train": 0, "validation": 1}),
        (["train.csv.gz", "validation.csv"], {"train": 0, "validation": 1}),
        (["en_ewt-ud-train.csv", "en_ewt-ud-dev.csv"], {"train": 0, "validation": 1}),
        (["train_subset.csv", "dev-v1.1.csv"], {"train": 0, "validation": 1}),
        (["train.csv", "train_small.csv"], {"train": 0}),
        (["train.csv", "README.txt", ".hidden.csv", "notes.pdf"], {"train": 0}),
        (["reviews.csv"], {"train": 0}),
        (["train.csv", "dev_matched.csv", "dev_mismatched.csv"], {"train": 0, "validation": 1}),
    ],
)
def test_the_splits_of_a_folder(files, splits, tmp_path):
    for name in files:
        path = write(tmp_path / name)
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
    found = open_splits(str(tmp_path))
    assert {split: source.name for split, source in found.items()} == {
        split: str(tmp_path / files[number]) for split, number in splits.items()
    }
    assert all(len(rows(source)) == 3 for source in found.values())


def test_a_file_is_train(tmp_path):
    assert list(open_splits(str(write(tmp_path / "dev.csv")))) == ["train"]


def test_folders_that_leave_it_open(tmp_path):
    write(tmp_path / "two" / "train-a.csv")
    write(tmp_path / "two" / "train-b.csv")
    with pytest.raises(DataError, match=r"2 files for train \(train-a\.csv, train-b\.csv\)"):
        open_splits(str(tmp_path / "two"))
    write(tmp_path / "none" / "a.csv")
    write(tmp_path / "none" / "b.csv")
    with pytest.raises(DataError, match=r"no file named train, dev or test.*found a\.csv, b\.csv"):
        open_splits(str(tmp_path / "none"))
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="found nothing"):
        open_splits(str(tmp_path / "bare"))


def test_a_path_that_is_no_name_of_a_dataset_is_not_looked_for_elsewhere(tmp_path, monkeypatch):
    def never(name):
        raise AssertionError(name)

    monkeypatch.setattr("inlay.data.source.open_hub", never)
    with pytest.raises(DataError, match="there is no file or folder"):
        open_splits(str(tmp_path / "missing"))
    with pytest.raises(DataError, match=r"missing\.csv: there is no such file"):
        open_splits("missing.csv")


@pytest.mark.parametrize(
    ("files", "codes"),
    [
        (["dev-de.csv", "dev-en.csv", "train-en.csv"], {"de": 0, "en": 1}),
        (["test.fr.csv", "test.zh.csv"], {"fr": 0, "zh": 1}),
        (["de.csv", "sw.csv", "hau.csv"], {"de": 0, "sw": 1, "hau": 2}),
        (["de/test.csv", "fr/dev.csv", "fr/test.csv"], {"de": 0, "fr": 2}),
        (["UD_X/xx_pud-ud-test.csv", "UD_A/grc_ptb-ud-dev.csv", "UD_A/grc_ptb-ud-train.csv"], {"xx": 0, "grc": 1}),
        (["pt-BR.test.csv", "xnli.dev.en.csv"], {"pt": 0, "en": 1}),
    ],
)
def test_one_source_per_language(files, codes, tmp_path):
    for name in files:
        write(tmp_path / name)
    found = open_per_language(tmp_path)
    assert {code: source.name for code, source in found.items()} == {
        code: str(tmp_path / files[number]) for code, number in codes.items()
    }


def test_languages_that_cannot_be_told(tmp_path):
    write(tmp_path / "none" / "reviews.csv")
    write(tmp_path / "none" / "train.csv")
    with pytest.raises(DataError, match=r"no language code.*found reviews\.csv, train\.csv"):
        open_per_language(tmp_path / "none")
    write(tmp_path / "two" / "test-de.csv")
    write(tmp_path / "two" / "de_test.csv")
    with pytest.raises(DataError, match="2 files for language de"):
        open_per_language(tmp_path / "two")
    with pytest.raises(DataError, match="expected a folder"):
        open_per_language(tmp_path / "two" / "test-de.csv")


@examples(300)
@given(
    st.lists(st.sampled_from([*b'"\t,;\n\r{}[]:#\\1a \0\xff\xfe\xef\xbb\xbf', *b"ab12"]), max_size=40),
    st.sampled_from(EXTENSIONS),
)
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, content, extension):
    path = tmp_path_factory.mktemp("any") / f"a.{extension}"
    path.write_bytes(bytes(content))
    refused = ""
    try:
        found = [record.place for record in open_source(path).records(Skipped())]
    except DataError as error:
        refused = str(error)
    assert all(text.startswith(f"{path}:") for text in ([refused] if refused else found))
    assert "\n" not in refused


def test_nothing_heavy_is_imported():
    code = (
        "import sys, inlay.data.source; print(*{'numpy', 'pandas', 'pyarrow', 'datasets', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
