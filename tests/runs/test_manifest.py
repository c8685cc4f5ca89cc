"""Many tasks in one file: good ones are trained, bad ones are named, and mistakes are told all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.errors import RunError
from inlay.library.library import Library
from inlay.runs.manifest import read_manifest
from inlay.training.loop import Loop


def write(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def manifest(folder: Path, text: str) -> Path:
    path = folder / "tasks.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(folder: Path, text: str) -> str:
    with pytest.raises(RunError) as caught:
        read_manifest(manifest(folder, text))
    return str(caught.value)


# --- the file -----------------------------------------------------------------------------------------------------


def test_defaults_and_settings(tmp_path):
    first, second = read_manifest(
        manifest(
            tmp_path,
            """
            [defaults]
            method = "lora:rank=2"
            epochs = 3
            [tasks.one]
            data = "imdb"
            [tasks.two-b]
            data = "owner/set"
            epochs = 7
            train_size = "10%"
            """,
        )
    )
    assert first.config() == {"data": "imdb", "name": "one", "method": "lora:rank=2", "epochs": 3}
    expected = {"data": "owner/set", "name": "two-b", "method": "lora:rank=2", "epochs": 7, "train_size": "10%"}
    assert second.config() == expected


def test_files_are_beside_the_manifest(tmp_path, monkeypatch):
    write(tmp_path / "sub" / "a.jsonl", work.texts(2))
    absolute = tmp_path / "b.jsonl"
    write(absolute, work.texts(2))
    text = f"""
        [tasks.a]
        data = "a.jsonl"
        val = "../b.jsonl"
        test = "{absolute}"
        [tasks.missing]
        data = "none.csv"
        [tasks.hub]
        data = "imdb"
    """
    path = manifest(tmp_path / "sub", text)
    a, missing, hub = read_manifest(path)
    assert Path(a.data) == tmp_path / "sub" / "a.jsonl"
    assert Path(a.val).resolve() == absolute
    assert Path(a.test) == absolute
    assert Path(missing.data) == tmp_path / "sub" / "none.csv"
    assert hub.data == "imdb"
    monkeypatch.chdir(tmp_path)
    assert Path(read_manifest("sub/tasks.toml")[0].data) == Path("sub/a.jsonl")


def test_all_mistakes_are_told_together(tmp_path):
    said = refused(
        tmp_path,
        """
        [defaults]
        epoch = 3
        batch_size = 0
        [tasks.good]
        data = "imdb"
        [tasks.bad]
        data = "imdb"
        lr = -1
        sed = 5
        [tasks.worse]
        epochs = "many"
        """,
    )
    where = f"{tmp_path / 'tasks.toml'} "
    assert f"{where}[defaults]: batch_size=0 is not valid" in said
    assert "unknown setting 'epoch'. Did you mean epochs" in said
    assert said.count("[defaults]") == said.count("'epoch'") == 1  # not again for every task
    assert f"{where}[tasks.bad]: lr=-1 is not valid" in said
    assert "unknown setting 'sed'. Did you mean seed" in said
    assert f"{where}[tasks.worse]: 'data' is missing; epochs='many' is not valid" in said
    assert "[tasks.good]" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no tasks"),
        ("tasks = 3", "has no tasks"),
        ("defaults = 3\n[tasks.a]\ndata = 'imdb'", "has no tasks"),
        ("[tasks]", "has no tasks"),
        ("[tasks]\na = 3", "[tasks.a]: is not a table"),
        ("[task.a]\ndata = 'x'", "has 'task'; expected [defaults] and [tasks.NAME]"),
        ("[tasks.a\ndata = 'x'", "is not TOML"),
        ("[tasks.a]\ndata = 'x'\n[tasks.a]\ndata = 'y'", "is not TOML"),
        ("[tasks.'a b']\ndata = 'x'", "name='a b' is not valid"),
        ("[tasks.a]\ndata = 5", "data=5 is not valid"),
        ("[tasks.a]\ndata = 'x'\ntrain_size = []", "train_size=[] is not valid"),
    ],
)
def test_a_file_that_is_no_manifest(tmp_path, text, said):
    message = refused(tmp_path, text)
    assert message.startswith(str(tmp_path / "tasks.toml"))
    assert said in message


def test_one_mistake_is_told_once(tmp_path):
    assert refused(tmp_path, "[tasks.a]\ndata = 5").count("data=5") == 1
    long = refused(tmp_path, f"[tasks.a]\ndata = 'x'\nlong = '{'x' * 5000}'")
    assert len(long) < 400


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(RunError, match=r"none\.toml: cannot be read: No such file or directory$"):
        read_manifest(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match=r"bytes\.toml: cannot be read"):
        read_manifest(tmp_path / "bytes.toml")


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("manifest") / "base")


def train(base: str, path: Path, *more: str) -> Any:
    where = ["--base", base, "--library", str(path.parent / "library")]
    return CliRunner().invoke(app, ["train", "--manifest", str(path), *where, *more], env={"COLUMNS": "80"})


MIXED = """
[defaults]
max_steps = 2
batch_size = 4
[tasks.opinion]
data = "texts.jsonl"
[tasks.torn]
data = "torn.jsonl"
[tasks.stars]
data = "stars.jsonl"
task = "regression"
method = "lora:rank=2"
[tasks.names]
data = "names.jsonl"
method = "adapterbias"
[tasks.diverges]
data = "texts.jsonl"
lr = 1e30
clip = 1e30
epochs = 9
max_steps = 50
"""


@pytest.fixture
def mixed(tmp_path) -> Path:
    write(tmp_path / "texts.jsonl", work.texts())
    write(tmp_path / "stars.jsonl", work.ratings())
    write(tmp_path / "names.jsonl", work.entities())
    (tmp_path / "torn.jsonl").write_text('{"text": "a", "label": "b"}\n{"text": \n')
    return manifest(tmp_path, MIXED)


def test_good_tasks_are_kept_and_bad_ones_named(base, mixed):
    done = train(base, mixed)
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    library = Library(mixed.parent / "library")
    assert library.names() == ["names", "opinion", "stars"]
    summary = done.stdout[done.stdout.index("parameters") :]
    rows = {line.split()[0]: line.split()[1:] for line in summary.splitlines() if line.strip()}
    assert rows["opinion@1"][0] == "houlsby"
    assert rows["stars@1"][0] == "lora:rank=2"
    assert rows["names@1"][0] == "adapterbias"
    assert f"torn failed: {mixed.parent / 'torn.jsonl'}:2: not JSON" in summary
    assert "diverges failed: the loss is " in summary
    assert f"3 of 5 tasks trained, saved to {library.root}\n" in summary
    assert not any((library.local / "runs").iterdir())


def test_the_document_has_every_task_in_order(base, mixed):
    done = train(base, mixed, "--json")
    assert done.exit_code == 1
    documents = json.loads(done.stdout)
    assert [one["name"] for one in documents] == ["opinion", "torn", "stars", "names", "diverges"]
    assert ["problem" in one for one in documents] == [False, True, False, False, True]
    assert [one["version"] for one in documents] == [1, None, 1, 1, None]
    assert "3 of 5 tasks trained" in done.stderr


def test_a_task_gives_what_it_gives_alone(base, mixed):
    together = {one["name"]: one for one in json.loads(train(base, mixed, "--json").stdout)}
    asked = [str(mixed.parent / "names.jsonl"), "--method", "adapterbias", "--max-steps", "2", "--batch-size", "4"]
    where = ["--name", "alone", "--base", base, "--library", str(mixed.parent / "library"), "--json"]
    alone = json.loads(CliRunner().invoke(app, ["train", *asked, *where]).stdout)
    assert alone["metrics"]["validation"] == pytest.approx(together["names"]["metrics"]["validation"], abs=1e-6)
    assert alone["history"][0]["loss"] == pytest.approx(together["names"]["history"][0]["loss"], rel=1e-5)


def test_when_no_task_can_be_trained(base, tmp_path):
    done = train(base, manifest(tmp_path, "[tasks.a]\ndata = 'none.csv'"))
    assert done.exit_code == 1
    assert f"a failed: {tmp_path / 'none.csv'}: there is no such file" in done.stdout
    assert "0 of 1 tasks trained" in done.stdout


def test_mistakes_in_the_file_end_the_command(base, tmp_path):
    done = train(base, manifest(tmp_path, "[tasks.a]\ndata = 'x'\nlr = -1\n[tasks.b]\nepochs = -1"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "[tasks.a]: lr=-1" in done.stderr
    assert "[tasks.b]: 'data' is missing; epochs=-1" in done.stderr


def test_an_interrupted_manifest_goes_on(base, mixed, monkeypatch):
    whole = {one["name"]: one["history"] for one in json.loads(train(base, mixed, "--json", "--slots", "2").stdout)}
    steps, real = [0], Loop._step_all

    def go_on(loop: Loop) -> None:
        steps[0] += 1
        if steps[0] == 3:
            loop.interrupt.pending = True
        real(loop)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step_all", go_on)
        assert train(base, mixed, "--slots", "2").exit_code == 130
    assert "--resume to continue it" in train(base, mixed).stderr
    resumed = train(base, mixed, "--resume", "--json")
    assert {one["name"]: one["history"] for one in json.loads(resumed.stdout)} == whole


@pytest.mark.full
def test_forty_tasks_in_one_command(base, tmp_path, monkeypatch):
    kinds = {"texts": work.texts(12), "ratings": work.ratings(12), "entities": work.entities(12)}
    for name, rows in kinds.items():
        write(tmp_path / f"{name}.jsonl", rows)
    methods = ("houlsby:size=4", "lora:rank=2", "adapterbias", "bitfit")
    tasks = [
        f"[tasks.t{i:02}]\ndata = '{list(kinds)[i % 3]}.jsonl'\nmethod = '{methods[i % 4]}'\nseed = {i}\n"
        for i in range(40)
    ]
    at_once: list[int] = []
    real = Loop._step_all

    def go_on(loop: Loop) -> None:
        at_once.append(len(loop.active))
        real(loop)

    monkeypatch.setattr(Loop, "_step_all", go_on)
    done = train(base, manifest(tmp_path, "[defaults]\nepochs = 1\nbatch_size = 6\n" + "".join(tasks)), "--slots", "16")
    assert done.exit_code == 0, done.output
    assert "40 of 40 tasks trained" in done.stdout
    assert max(at_once) == 16
    assert len(at_once) == 2 * 3  # two steps each, in 16 slots: 40 tasks in three turns
    library = Library(tmp_path / "library")
    assert library.names() == [f"t{i:02}" for i in range(40)]
    assert len({entry.sha256 for entry in library.list()}) == 40
    assert {entry.card["task"].split(":")[0] for entry in library.list()} == {"classification", "regression", "tagging"}
