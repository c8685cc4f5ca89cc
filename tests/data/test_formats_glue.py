"""GLUE's folders: the columns of every task are known, with and without labels."""

from __future__ import annotations

import pytest

from inlay.data.formats.glue import TASKS
from inlay.data.source import open_source, open_splits
from inlay.errors import DataError

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
HEADERS = {
    "SST-2": "sentence label",
    "MRPC": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "QQP": "id qid1 qid2 question1 question2 is_duplicate",
    "STS-B": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    "MNLI": f"{MNLI} sentence1 sentence2 label1 gold_label",
    "QNLI": "index question sentence label",
    "RTE": "index sentence1 sentence2 label",
    "WNLI": "index sentence1 sentence2 label",
    "AX": "index sentence1 sentence2",
}
HINTS = {
    "CoLA": {"task": "classification", "text": "sentence", "label": "label", "metric": "matthews"},
    "SST-2": {"task": "classification", "text": "sentence", "label": "label", "metric": "accuracy"},
    "MRPC": {"task": "classification", "text": "#1 String", "pair": "#2 String", "label": "Quality", "metric": "f1"},
    "QQP": {
        "task": "classification",
        "text": "question1",
        "pair": "question2",
        "label": "is_duplicate",
        "metric": "f1",
    },
    "STS-B": {"task": "regression", "text": "sentence1", "pair": "sentence2", "label": "score", "metric": "spearman"},
    "MNLI": {
        "task": "classification",
        "text": "sentence1",
        "pair": "sentence2",
        "label": "gold_label",
        "metric": "accuracy",
    },
    "QNLI": {"task": "classification", "text": "question", "pair": "sentence", "label": "label", "metric": "accuracy"},
    "RTE": {"task": "classification", "text": "sentence1", "pair": "sentence2", "label": "label", "metric": "accuracy"},
    "WNLI": {
        "task": "classification",
        "text": "sentence1",
        "pair": "sentence2",
        "label": "label",
        "metric": "accuracy",
    },
    "AX": {"task": "classification", "text": "sentence1", "pair": "sentence2", "metric": "matthews"},
}
COLA = 'x1\t1\t\tThe bees sang.\nx1\t0\t*\tBees the sang.\nx2\t1\t\t"Hello they said.\nx2\t0\t??\tSaid hello.\n'


def names(task):
    header = HEADERS[task]
    return header.split("|") if "|" in header else header.split()


def table(columns, rows=3):
    cells = [[f'"{column} {i}' for column in columns] for i in range(rows)]  # a quote that is never closed
    return "".join("\t".join(row) + "\n" for row in [columns, *cells])


def write(folder, name, content, encoding="utf-8"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content, encoding=encoding)
    return folder / name


def test_every_task_is_tested():
    assert {name.lower().replace("-", "") for name in HINTS} == set(TASKS)


@pytest.mark.parametrize("task", HEADERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_task_in_its_folder(task, encoding, tmp_path):
    opened = open_source(write(tmp_path / task, "train.tsv", table(names(task)), encoding))
    assert (opened.format, opened.hints) == ("glue", HINTS[task])
    assert opened.columns == tuple(names(task))
    found = [record.fields[HINTS[task]["text"]] for record in opened.records()]
    assert found == [f'"{HINTS[task]["text"]} {i}' for i in range(3)]


@pytest.mark.parametrize("task", ["MRPC", "QQP", "STS-B", "MNLI"])
def test_a_task_known_by_its_columns(task, tmp_path):
    assert open_source(write(tmp_path / "data", "train.tsv", table(names(task)))).hints == HINTS[task]


def test_columns_that_anyone_might_have_need_the_folder(tmp_path):
    assert open_source(write(tmp_path / "data", "a.tsv", "sentence\tlabel\nfine\t1\nbad\t0\n")).format == "tsv"


def test_cola_has_no_header(tmp_path):
    found = open_splits(str(write(tmp_path / "data", "train.tsv", COLA).parent))
    opened = found["train"]
    assert (opened.format, opened.columns) == ("glue", ("source", "label", "mark", "sentence"))
    assert opened.hints == HINTS["CoLA"]
    assert [record.fields["sentence"] for record in opened.records()][2] == '"Hello they said.'
    assert len(list(opened.records())) == 4


def test_a_test_file_has_no_label(tmp_path):
    for task in ("CoLA", "RTE"):
        columns = ["index", "sentence"] if task == "CoLA" else ["index", "sentence1", "sentence2"]
        opened = open_source(write(tmp_path / task, "test.tsv", table(columns)))
        assert opened.hints == {role: name for role, name in HINTS[task].items() if role != "label"}


def test_mnli_has_two_dev_sets(tmp_path):
    for name in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        write(tmp_path / "MNLI", f"{name}.tsv", table(names("MNLI")))

    def files(data):
        return [source.name.rpartition("/")[2] for source in open_splits(data).values()]

    assert files(f"{tmp_path}/MNLI") == ["train.tsv", "dev_matched.tsv", "test_matched.tsv"]
    assert files(f"{tmp_path}/MNLI-m") == ["train.tsv", "dev_matched.tsv", "test_matched.tsv"]
    assert files(f"{tmp_path}/MNLI-mm") == ["train.tsv", "dev_mismatched.tsv", "test_mismatched.tsv"]


def test_ax_is_a_test_set(tmp_path):
    write(tmp_path / "AX", "diagnostic.tsv", table(names("AX")))
    assert list(open_splits(str(tmp_path / "AX"))) == ["test"]


def test_a_wrong_row_is_told_with_its_line(tmp_path):
    path = write(tmp_path / "RTE", "train.tsv", table(names("RTE")) + "7\tonly one sentence\n")
    with pytest.raises(DataError, match=r"train\.tsv:5: 2 cells where 4 are expected"):
        list(open_source(path).records())
