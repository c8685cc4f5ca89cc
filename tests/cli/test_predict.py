"""`inlay predict`: every way in, every way out, several tasks at once, and going on after a stop."""

from __future__ import annotations

import csv
import datetime
import gc
import io
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import inlay
from inlay.cli import predict as command
from inlay.cli import predict_display as showing
from inlay.cli import predict_input as reading
from inlay.cli import resumable_output
from inlay.cli.help import Commands
from inlay.cli.named_adapters import HostPredictor, NamedAdapter, host_with
from inlay.cli.predict_input import of_lines
from inlay.cli.resumable_output import OutputParts
from inlay.engine import predict as predicting
from inlay.errors import AdapterError, DataError, InlayError
from inlay.library.library import Library
from inlay.tasks import Task
from inlay.tasks._text import TextTask

TASKS = {
    "sms": ("lora", "classification:temperature=2.0", ["ham", "spam"]),
    "topic": ("adapterbias", "multilabel", ["a", "b", "c"]),
    "stars": ("bitfit", "regression:mean=3.0", ["value"]),
    "ner": ("lora", "tagging", ["O", "B-PER", "I-PER"]),
    "ask": ("adapterbias", "qa", ["start", "end"]),
}
TEXTS = ["you love the film", "a very bad book !", "ana meets bob in lima", "it never came", "soup , soup and soup"]
CONTEXT = "bob was in oslo . ana was in lima on june 2"
SUFFIXES = (".jsonl", ".csv", ".parquet")

app = typer.Typer(cls=Commands, rich_markup_mode=None)
app.command("predict")(command.predict)


@app.callback()
def root() -> None:
    """The command stays a subcommand."""


@dataclass(frozen=True)
class Place:
    base: str
    library: Path
    host: inlay.Host


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("predict")
    base = tiny.save_text_model(root / "base")
    host, library = inlay.Host(base), Library(root / "library")
    for seed, (name, (method, task, labels)) in enumerate(TASKS.items()):
        host.add(name, method, task=task, labels=labels, seed=seed)
        tiny.shake(host, name, seed)
        library.put(host.adapter(name), base_name=base)
    return Place(base, library.local, host)


def call(place: Place, *arguments: Any, stdin: str | bytes | None = None) -> Any:
    where = ["--library", str(place.library)]
    return CliRunner().invoke(app, ["predict", *map(str, arguments), *where], input=stdin, env={"COLUMNS": "80"})


def answers(place: Place, *arguments: Any, stdin: str | bytes | None = None) -> Any:
    done = call(place, *arguments, "--json", stdin=stdin)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def fails(place: Place, *arguments: Any, stdin: str | bytes | None = None) -> str:
    done = call(place, *arguments, stdin=stdin)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return str(done.stderr)


def table(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as a file of the format that its name says."""
    columns = list(rows[0])
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            written = csv.DictWriter(file, columns, delimiter="\t" if path.suffix == ".tsv" else ",")
            written.writeheader()
            written.writerows(rows)
    return path


def many(tmp_path: Path, rows: int = 23) -> Path:
    return table(tmp_path / "in.csv", [{"text": f"{TEXTS[i % 5]} {i}", "n": i} for i in range(rows)])


def test_a_file_in_the_place_of_a_text_is_pointed_out(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text("text\nhello\n")
    done = call(place, "sms", "new.csv", "x" * 5000)
    assert done.exit_code == 0
    assert done.stderr == "'new.csv' is taken as a text; --file new.csv reads the file of this name\n"


# --- what is answered ---------------------------------------------------------------------------------------------


def test_every_task_answers_every_text_in_order(place: Place):
    found = answers(place, "stars,sms,ner", *TEXTS)
    expected = place.host.predict([(name, text) for text in TEXTS for name in ("stars", "sms", "ner")])
    assert found == expected  # floats too
    assert [one["task"] for one in found[:3]] == ["stars", "sms", "ner"]
    assert [set(one) for one in found[:3]] == [
        {"task", "text", "value"},
        {"task", "text", "label", "score", "scores"},
        {"task", "text", "tokens", "tags", "spans"},
    ]


def test_the_adapters_differ(place: Place):
    """Else equal answers would show nothing."""
    sms, topic = answers(place, "sms,topic", TEXTS[0])
    assert sms["scores"].keys() != topic["scores"].keys()
    assert len({one["score"] for one in answers(place, "sms", *TEXTS)}) == len(TEXTS)


def test_int8_answers_nearly_the_same_and_only_if_asked(place: Place):
    exact, small = (answers(place, "sms,stars", *TEXTS, *flags) for flags in ((), ("--weights", "int8")))
    host = inlay.Host(place.base, weights="int8")
    for name in ("sms", "stars"):
        host.load(place.host.adapter(name), name)
    assert small == host.predict([(name, text) for text in TEXTS for name in ("sms", "stars")])
    for one, other in zip(exact, small, strict=True):
        key = "value" if one["task"] == "stars" else "score"
        assert one[key] != other[key]
        assert one[key] == pytest.approx(other[key], abs=0.1)


def test_a_resumed_output_is_int8_or_not(place: Place, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    resumable_output.open_parts(out, {"text": "string"}, {"input": "x", "--weights": "int8"})
    assert "--weights was int8, is not given" in fails(
        place, "sms", "--file", many(tmp_path), "--text", "text", "--out", out, "--resume"
    )


def test_stdin_is_a_text_per_line(place: Place):
    expected = answers(place, "sms,ner", *TEXTS)
    assert answers(place, "sms,ner", stdin="\n".join(TEXTS)) == expected
    assert answers(place, "sms,ner", stdin=("\ufeff" + "\r\n".join(TEXTS) + "\r\n").encode()) == expected
    assert answers(place, "sms", stdin='{"text": "a"}')[0]["text"] == '{"text": "a"}'
    assert answers(place, "sms", "--encoding", "cp1252", stdin="caf\xe9".encode("cp1252"))[0]["text"] == "café"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".parquet"])
def test_every_format_of_file(place: Place, tmp_path: Path, suffix: str):
    file = table(tmp_path / f"in{suffix}", [{"text": text, "label": "unheard of"} for text in TEXTS])
    expected = answers(place, "sms,stars,ner", *TEXTS)
    assert answers(place, "sms,stars,ner", "--file", file, "--keep", "none") == expected


def test_stdin_as_a_file(place: Place):
    expected = answers(place, "sms,ner", *TEXTS)
    lines = "\n".join(json.dumps({"id": i, "text": text}) for i, text in enumerate(TEXTS))
    assert answers(place, "sms,ner", "--file", "-", "--keep", "none", stdin=lines) == expected
    assert answers(place, "sms,ner", "--file", "-", "--keep", "none", stdin="\n".join(TEXTS)) == expected
    questions = "\n".join(json.dumps({"question": "who was in oslo ?", "context": CONTEXT}) for _ in range(250))
    assert answers(place, "ask", "--file", "-", stdin=questions)[249]["context"] == CONTEXT


def test_words_keep_their_places(place: Place, tmp_path: Path):
    file = tmp_path / "in.conll"
    file.write_text("ana B-PER\nmeets O\nbob XYZ\n\nit O\nis O\n")
    found = answers(place, "ner", "--file", file, "--keep", "none")
    assert found == place.host.predict([("ner", ["ana", "meets", "bob"]), ("ner", ["it", "is"])])


def test_columns_are_chosen_for_each_task(place: Place, tmp_path: Path):
    rows = [{"q": "who was in oslo ?", "about": CONTEXT, "y": "bob"}, {"q": "when ?", "about": CONTEXT, "y": ""}]
    file = table(tmp_path / "in.csv", rows)
    named = ("--text", "q", "--pair", "about", "--label", "y")
    found = answers(place, "ask,sms,ner", "--file", file, *named, "--keep", "none")
    asked = [
        (name, row["q"] if name == "ner" else (row["q"], CONTEXT)) for row in rows for name in ("ask", "sms", "ner")
    ]
    assert found == place.host.predict(asked)
    answer = found[0]
    assert CONTEXT[answer["start"] : answer["end"]] == answer["answer"]


def test_a_pair_on_the_command_line(place: Place):
    found = answers(place, "ask,sms,ner", "who was in oslo ?", "--pair", CONTEXT)
    expected = [("ask", ("who was in oslo ?", CONTEXT)), ("sms", ("who was in oslo ?", CONTEXT))]
    assert found == place.host.predict([*expected, ("ner", "who was in oslo ?")])
    assert ("pair" in found[1], "pair" in found[2]) == (True, False)


def test_a_pair_goes_to_those_that_were_trained_on_pairs():
    about = {"similar": {"columns": {"text": "a", "pair": "b"}}, "sms": {"columns": {"text": "a"}}, "older": {}}
    task = "classification"
    adapters = {name: NamedAdapter(1, "", task, task, (), one) for name, one in about.items()}
    found = next(of_lines([("text 1", "hi", "")], "there", adapters).rows({}))
    assert {name: example.pair for name, example in found.examples.items()} == {
        "similar": "there",
        "sms": None,
        "older": "there",
    }
    with pytest.raises(DataError, match="answers for one text, not for a pair"):
        of_lines([("text 1", "hi", "")], "there", {"sms": adapters["sms"]})


def test_fewer_scores_abstaining_and_no_calibration(place: Place):
    plain = answers(place, "sms,topic,ner", TEXTS[2])
    best = answers(place, "sms,topic,ner", TEXTS[2], "--top-k", 1)
    assert best[0]["scores"] == {plain[0]["label"]: plain[0]["score"]}
    assert list(best[1]["scores"].values()) == [max(plain[1]["scores"].values())]
    unsure = answers(place, "sms,topic,ner", TEXTS[2], "--threshold", 0.99)
    assert [unsure[0]["label"], unsure[1]["label"], unsure[2]["spans"]] == [None, None, []]
    assert unsure[0]["score"] == plain[0]["score"]
    assert answers(place, "sms", TEXTS[2], "--threshold", 0.0)[0] == plain[0]
    raw = answers(place, "sms", TEXTS[2], "--raw")[0]
    odds = [one["scores"]["ham"] / one["scores"]["spam"] for one in (raw, plain[0])]
    assert odds[0] == pytest.approx(odds[1] ** 2, rel=1e-4)  # its temperature is 2


def test_versions_are_names_of_their_own(place: Place, tmp_path: Path):
    library = Library(tmp_path)
    library.put(place.host.adapter("sms"), base_name=place.base)
    library.put(place.host.adapter("topic"), "sms", base_name=place.base)
    both = answers(Place(place.base, tmp_path, place.host), "sms@1,sms", TEXTS[0])
    assert [one["task"] for one in both] == ["sms@1", "sms"]
    assert [len(one["scores"]) for one in both] == [2, 3]


def test_the_base_may_be_named(place: Place, tmp_path: Path):
    Library(tmp_path).put(place.host.adapter("sms"), base_name="somewhere/else")
    other = Place(place.base, tmp_path, place.host)
    assert answers(other, "sms", TEXTS[0], "--base", place.base) == answers(place, "sms", TEXTS[0])
    wrong = tiny.save_text_model(tmp_path / "wrong", intermediate_size=20)
    assert "sms: this adapter belongs to the base" in fails(other, "sms", TEXTS[0], "--base", wrong)


# --- for people ---------------------------------------------------------------------------------------------------


def test_the_table(place: Place):
    done = call(place, "sms,topic,stars,ner,ask", TEXTS[2], "a\x1b[31m " * 40, "--pair", CONTEXT)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["text", "task", "answer", "score"]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert "…" in done.stdout
    first = place.host.predict([("sms", (TEXTS[2], CONTEXT))])[0]
    text, _, rest = lines[2].partition(" / ")
    assert text.startswith(TEXTS[2][:10])
    assert rest.startswith(CONTEXT[:6])
    assert rest.split()[-3:] == ["sms", first["label"], f"{first['score']:.3f}"]
    assert done.stdout.count("ana meets") == 1  # a text is shown once
    one = call(place, "sms", TEXTS[0], "--top-k", 2).stdout
    assert one.splitlines()[0].split() == ["text", "answer", "score", "scores"]
    assert "(unsure)" in call(place, "sms", TEXTS[0], "--threshold", 1).stdout


def test_texts_are_cut_to_the_width_of_the_console():
    text, pair = "x" * 70, "y" * 300
    found = [{"task": "sms", "text": text, "label": "ham", "score": 0.5}]
    paired = [{**found[0], "pair": pair}, {"task": "ner", "text": text, "spans": []}]

    def lines(width: int, some: Any, tasks: int) -> list[str]:
        screen = Console(width=width, file=io.StringIO())
        showing.show(screen, some, tasks, None)
        return str(screen.file.getvalue()).splitlines()[2:]

    assert lines(120, found, 1)[0].split() == [text, "ham", "0.500"]
    for width in (60, 80, 120, 200):
        for some in (paired, paired[::-1]):  # the first answer need not be the one for the pair
            first, second = lines(width, some, 2)
            assert len(first.rstrip()) <= width
            shown, _, rest = first.partition(" / ")
            assert shown == text if width == 200 else shown.startswith("xxx") and shown.endswith("…")
            assert rest.startswith("yyy")
            assert "…" in rest
            assert "y" not in second
            used = len(first[: first.rindex("…") + 1])
            assert used == width - len("   task   (none)   0.500")
    short = [{**found[0], "text": "a", "pair": "b"}]
    assert lines(80, short, 1)[0].split() == ["a", "/", "b", "ham", "0.500"]


def test_guesses_are_told_and_json_is_alone_on_stdout(place: Place, tmp_path: Path):
    done = call(place, "sms", "--file", many(tmp_path), "--json")
    assert 'guessed: text = "text"' in done.stderr
    assert len(json.loads(done.stdout)) == 23


# --- files of answers ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_output, "ROWS", {"cpu": 4, "cuda": 4})


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("small_parts")
def test_the_outputs_agree(place: Place, tmp_path: Path):
    file = many(tmp_path)
    for suffix in SUFFIXES:
        summary = answers(place, "sms,ner,stars", "--file", file, "--out", tmp_path / f"out{suffix}")
        assert (summary["rows"], summary["answers"], summary["skipped"]) == (23, 69, 0)
    lines, cells, stored = (read(tmp_path / f"out{suffix}") for suffix in SUFFIXES)
    shown = answers(place, "sms,ner,stars", "--file", file)
    assert [(one["task"], one["text"]) for one in lines] == [(one["task"], one["text"]) for one in shown]
    for line, one in zip(lines, shown, strict=True):
        assert line.keys() - {"n"} == one.keys() - {"input"}
        assert line["n"] == one["input"]["n"]
        assert line.get("label") == one.get("label")
        assert line.get("score", line.get("value", 0)) == pytest.approx(one.get("score", one.get("value", 0)), abs=1e-5)
    columns = ["task", "text", "n", "label", "score", "spans", "value", "score_ham", "score_spam", "error"]
    assert list(cells[0]) == list(stored[0]) == columns
    for line, cell, row in zip(lines, cells, stored, strict=True):
        scores = {f"score_{label}": score for label, score in line.get("scores", {}).items()}
        spans = {"spans": json.dumps(line["spans"]) if "spans" in line else None}
        own = {key: line[key] for key in line.keys() & set(columns)}
        assert row == {**dict.fromkeys(columns), **own, **scores, **spans}
        assert cell == {k: "" if v is None else v if isinstance(v, str) else repr(v) for k, v in row.items()}


def test_only_needed_columns(place: Place, tmp_path: Path):
    out = tmp_path / "out.csv"
    for names, more, columns in (
        ("stars", [], "task text value error"),
        ("sms", ["--pair", "a"], "task text pair label score score_ham score_spam error"),
        ("ask", ["--pair", CONTEXT], "task text context score answer start end error"),
    ):
        assert call(place, names, "who ?", *more, "--out", out, "--overwrite").exit_code == 0
        assert list(read(out)[0]) == columns.split()


def test_the_last_line_counts(place: Place, tmp_path: Path):
    done = call(place, "sms", *TEXTS, "--out", tmp_path / "out.jsonl")
    assert done.stdout.startswith(f"5 answers for 5 rows in {tmp_path / 'out.jsonl'} (")
    assert done.stdout.endswith(" rows/s)\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    done = call(place, "sms", TEXTS[0], "--out", tmp_path / "one.jsonl")
    assert done.stdout.startswith("1 answer for 1 row in ")


class Killed(BaseException):
    """As SIGKILL, handled by nobody."""


class Stop:
    """Parts can be written until one is too many."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, error: type[BaseException]):
        self.written: list[int] = []
        real = OutputParts.write

        def write(store: OutputParts, index: int, some: Sequence[Any]) -> None:
            if len(self.written) == after:
                raise error
            self.written.append(index)
            real(store, index, some)

        monkeypatch.setattr(OutputParts, "write", write)


@pytest.mark.thin(1)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_resuming_after_a_kill_between_parts_changes_no_byte(
    place: Place, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
):
    asked = ["sms,ner", "--file", many(tmp_path), "--top-k", 2]
    whole, out = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    answers(place, *asked, "--out", whole)
    with monkeypatch.context() as patch:
        Stop(patch, 2, Killed)
        with pytest.raises(Killed):
            call(place, *asked, "--out", out)
    assert not out.exists()
    with monkeypatch.context() as patch:
        stop = Stop(patch, 99, Killed)
        summary = answers(place, *asked, "--out", out, "--resume")
    assert stop.written == [2, 3, 4, 5]
    assert (summary["rows"], summary["answers"]) == (23, 46)
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / f"out{suffix}.parts").exists()


@pytest.mark.thin(1)
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("when", ["joining", "placing", "cleaning"])
def test_resuming_after_a_kill_at_the_end(place: Place, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch):
    asked = ["sms", "--file", many(tmp_path)]
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    answers(place, *asked, "--out", whole)

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if when == "joining":
            patch.setattr("inlay.cli.resumable_output.shutil.copyfileobj", kill)
        elif when == "placing":
            patch.setattr(OutputParts, "_keep", lambda self, state: kill() if "joined" in state else keep(self, state))
        else:
            patch.setattr(OutputParts, "remove", kill)
        with pytest.raises(Killed):
            call(place, *asked, "--out", out)
    assert out.exists() == (when == "cleaning")
    with monkeypatch.context() as patch:
        stop = Stop(patch, 0, AssertionError)  # no part is answered again
        summary = answers(place, *asked, "--out", out, "--resume")
    assert stop.written == []
    assert summary["rows"] == 23
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "out.csv.parts").exists()


keep = OutputParts._keep


@pytest.mark.full
@pytest.mark.usefixtures("small_parts")
def test_a_killed_process_is_resumed(place: Place, tmp_path: Path):
    file, out, whole = many(tmp_path), tmp_path / "out.parquet", tmp_path / "whole.parquet"
    code = f"""
import os, signal, typer
from inlay.cli import predict, resumable_output
from inlay.cli.resumable_output import OutputParts
import torch
torch.set_num_threads(1)
resumable_output.ROWS, real = {{"cpu": 4, "cuda": 4}}, OutputParts._place
def place(self, path, write):
    real(self, path, (lambda _: os.kill(os.getpid(), signal.SIGKILL)) if path.stem == "00000003" else write)
OutputParts._place = place
app = typer.Typer()
app.command()(predict.predict)
app(["sms,ner", "--file", {str(file)!r}, "--out", {str(out)!r}, "--library", {str(place.library)!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = {path.name for path in (tmp_path / "out.parquet.parts").iterdir()}
    assert left == {"state.json", *(f"0000000{i}.parquet" for i in range(3))}
    answers(place, "sms,ner", "--file", file, "--out", out, "--resume")
    answers(place, "sms,ner", "--file", file, "--out", whole)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("small_parts")
def test_an_interrupt_says_how_to_go_on(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, out = many(tmp_path), tmp_path / "out.csv"
    for after, said in (
        (0, "nothing is saved"),
        (1, "1 finished part is saved in"),
        (2, "2 finished parts are saved in"),
    ):
        with monkeypatch.context() as patch:
            Stop(patch, after, KeyboardInterrupt)
            shutil.rmtree(tmp_path / "out.csv.parts", ignore_errors=True)
            done = call(place, "sms", "--file", file, "--out", out)
        assert (done.exit_code, done.stdout) == (130, 'guessed: text = "text" (pass --text or --pair to choose)\n')
        assert done.stderr.startswith(f"interrupted: {said}")
        assert (tmp_path / "out.csv.parts").exists() == (after > 0)
    assert "--resume" in done.stderr
    assert "--resume" in fails(place, "sms", "--file", file, "--out", out, "--text", "text")
    assert call(place, "sms", "--file", file, "--out", out, "--resume").exit_code == 0
    with monkeypatch.context() as patch:
        Stop(patch, 1, KeyboardInterrupt)
        done = call(place, "sms", "--out", tmp_path / "other.csv", stdin="\n".join(TEXTS))
    assert (done.exit_code, done.stderr) == (130, "interrupted: nothing is saved, since stdin cannot be resumed\n")
    assert not (tmp_path / "other.csv.parts").exists()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("stage", ["encode", "run", "decode"])
def test_a_stage_that_fails_is_one_clear_line_and_what_was_before_it_is_kept(
    place: Place, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
):
    asked = ["sms,ner", "--file", many(tmp_path), "--text", "text", "--out"]
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    before = threading.active_count(), sys.getswitchinterval(), gc.get_threshold()
    real, calls = getattr(HostPredictor, stage), [0]

    def fails_at_the_third(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise InlayError("the third does not fit")
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(HostPredictor, stage, fails_at_the_third)
        said = fails(place, *asked, out)
    assert said.startswith("error: the third does not fit; 2 finished parts are saved in")
    assert (threading.active_count(), sys.getswitchinterval(), gc.get_threshold()) == before
    assert call(place, *asked, out, "--resume").exit_code == 0
    answers(place, *asked, whole)
    assert out.read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_breaks_off_is_answered_up_to_there(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, read_row = many(tmp_path), reading._row

    def broken(record: Any, *more: Any) -> Any:
        if record.fields["n"] == "14":
            raise DataError("in.csv:16: damaged")
        return read_row(record, *more)

    monkeypatch.setattr(reading, "_row", broken)
    said = fails(place, "sms", "--file", file, "--text", "text", "--out", tmp_path / "out.csv")
    assert said.startswith("error: in.csv:16: damaged; 3 finished parts are saved in")


@pytest.mark.full
def test_ctrl_c_ends_every_stage(place: Place, tmp_path: Path):
    file, out = many(tmp_path, 400), tmp_path / "out.csv"
    code = f"""
import time, typer
from inlay.cli import predict, resumable_output
from inlay.cli.named_adapters import HostPredictor
resumable_output.ROWS, real = {{"cpu": 4, "cuda": 4}}, HostPredictor.run
def run(self, encoded):
    time.sleep(0.05)
    return real(self, encoded)
HostPredictor.run = run
app = typer.Typer()
app.command()(predict.predict)
app(["sms", "--file", {str(file)!r}, "--out", {str(out)!r}, "--library", {str(place.library)!r}])
"""
    started = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while not list((tmp_path / "out.csv.parts").glob("0000000[5-9].csv")) and time.monotonic() < until:
            time.sleep(0.02)
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=20)
    finally:
        started.kill()
    assert (started.returncode, said.count("interrupted")) == (130, 1), said
    assert "finished parts are saved in" in said
    answers(place, "sms", "--file", file, "--out", out, "--resume")
    assert [int(one["n"]) for one in read(out)] == list(range(400))


@pytest.mark.usefixtures("small_parts")
def test_a_kill_before_the_first_part_leaves_nothing_to_resume(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = ["sms", "--file", many(tmp_path), "--text", "text", "--out", tmp_path / "out.csv"]
    said = "nothing to resume: starting from the beginning\n"
    for again in ([], ["--resume"]):
        with monkeypatch.context() as patch:
            Stop(patch, 0, Killed)
            with pytest.raises(Killed):
                call(place, *asked, "--overwrite")
        assert [path.name for path in (tmp_path / "out.csv.parts").iterdir()] == ["state.json"]
        done = call(place, *asked, "--overwrite", *again)
        assert (done.exit_code, done.stderr) == (0, said if again else "")
        assert len(read(tmp_path / "out.csv")) == 23
    assert call(place, *asked, "--overwrite", "--resume").stderr == said


def test_parts_have_the_size_that_the_command_began_with(
    place: Place, stopped: list[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resumable_output, "ROWS", {"cpu": 7, "cuda": 7})
    stop = Stop(monkeypatch, 99, Killed)
    done = call(place, *stopped, "--resume")
    assert (done.exit_code, done.stderr) == (0, "")
    assert stop.written == [2, 3, 4, 5]
    assert call(place, *stopped, "--overwrite").exit_code == 0
    assert stop.written[4:] == [0, 1, 2, 3]


@pytest.fixture
def stopped(place: Place, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A command that was killed after two parts."""
    asked = ["sms", "--file", many(tmp_path), "--text", "text", "--out", tmp_path / "out.csv"]
    with monkeypatch.context() as patch:
        Stop(patch, 2, Killed)
        with pytest.raises(Killed):
            call(place, *asked)
    return asked


def test_several_files_are_one_input(place: Place, tmp_path: Path):
    one, two = (table(tmp_path / name, [{"text": text}]) for name, text in (("a.csv", TEXTS[0]), ("b.csv", TEXTS[1])))
    asked = ["sms", "--file", f"{one},{two}", "--text", "text", "--out"]
    assert call(place, *asked, tmp_path / "out.jsonl").exit_code == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == list(TEXTS[:2])
    assert "is the input" in fails(place, *asked, two, "--overwrite")


def test_another_command_is_not_resumed(place: Place, stopped: list[Any], tmp_path: Path):
    assert "top_k was not given, is 1" in fails(place, *stopped, "--resume", "--top-k", 1)
    assert "raw was not given, is True" in fails(place, *stopped, "--resume", "--raw")
    assert "adapters was sms 1 " in fails(place, "stars", *stopped[1:], "--resume")
    with (tmp_path / "in.csv").open("a") as file:
        file.write("one more,24\n")
    assert "its bytes was " in fails(place, *stopped, "--resume")


def test_a_resumed_command_takes_the_version_it_began_with(
    place: Place, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
):
    library = Library(tmp_path / "library")
    own = Place(place.base, library.local, place.host)
    library.put(place.host.adapter("sms"), base_name=place.base)
    asked = ["sms", "--file", many(tmp_path), "--text", "text", "--out"]
    answers(own, *asked, tmp_path / "whole.csv")
    with monkeypatch.context() as patch:
        Stop(patch, 2, Killed)
        with pytest.raises(Killed):
            call(own, *asked, tmp_path / "out.csv")
    library.put(place.host.adapter("topic"), "sms", base_name=place.base)
    answers(own, *asked, tmp_path / "out.csv", "--resume")
    answers(own, *asked, tmp_path / "new.csv")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert (tmp_path / "new.csv").read_bytes() != (tmp_path / "whole.csv").read_bytes()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("out", [False, True])
def test_bad_rows(place: Place, tmp_path: Path, out: bool):
    rows = [{"text": TEXTS[i % 5], "n": str(i)} for i in range(14)]
    rows[10]["text"] = rows[12]["text"] = ""
    file = table(tmp_path / "in.jsonl", rows)
    asked = ["sms", "--file", file, "--json", *(["--out", tmp_path / "out.jsonl", "--overwrite"] if out else [])]
    done = call(place, *asked)
    assert done.exit_code == 0
    assert f"rows with an error: 2; the first: {file}:11: the column 'text' is empty" in done.stderr
    found = json.loads(done.stdout)
    if out:
        assert (found["rows"], found["answers"], found["errors"], found["skipped"]) == (14, 14, 2, 0)
        found = read(tmp_path / "out.jsonl")
    assert [one["text"] for one in found] == [row["text"] for row in rows]  # a line for every line
    assert [i for i, one in enumerate(found) if "error" in one] == [10, 12]
    empty = {"task": "sms", "text": "", "error": "the column 'text' is empty"}
    assert found[10] == {**empty, **({"n": "10"} if out else {"input": {"text": "", "n": "10"}})}
    done = call(place, *asked, "--skip-bad-rows")
    assert done.exit_code == 0
    assert f"rows left out: 2; the first: {file}:11" in done.stderr
    found = json.loads(done.stdout)
    if out:
        assert (found["rows"], found["skipped"], found["errors"]) == (12, 2, 0)
        found = read(tmp_path / "out.jsonl")
    assert [one["text"] for one in found] == [row["text"] for row in rows if row["text"]]


def test_lines_that_cannot_be_read(place: Place, tmp_path: Path):
    file = table(tmp_path / "in.jsonl", [{"text": text} for text in TEXTS])
    file.write_text(f"{file.read_text()}{{broken\n")
    expected = answers(place, "sms", *TEXTS)
    for name, stdin in ((str(file), None), ("-", file.read_text())):
        asked = ("sms", "--file", name, "--json", "--keep", "none")
        done = call(place, *asked, stdin=stdin)
        *good, bad = json.loads(done.stdout)
        assert (done.exit_code, good) == (0, expected)
        assert (bad["task"], bad["text"]) == ("sms", None)
        assert bad["error"].startswith("not JSON")
        done = call(place, *asked, "--skip-bad-rows", stdin=stdin)
        assert json.loads(done.stdout) == expected
        assert "rows left out: 1; the first: " in done.stderr


def test_a_line_out_for_every_line_of_stdin(place: Place):
    done = call(place, "sms,ner", "--json", stdin=b"you love\n\n  \ncaf\xe9\nthe film\n\n")
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert [one["text"] for one in found[::2]] == ["you love", "", "  ", None, "the film", ""]
    assert [one["task"] for one in found] == ["sms", "ner"] * 6
    assert [one.get("error", "")[:13] for one in found[::2]] == [
        "",
        *["the line is e"] * 2,
        "byte 0xe9 is ",
        "",
        "the line is e",
    ]
    good = [one for one in found if "error" not in one]
    assert good == answers(place, "sms,ner", "you love", "the film")
    assert "rows with an error: 4; the first: stdin:2: the line is empty" in done.stderr
    for_people = call(place, "sms", stdin="you love\n\n").stdout
    assert "error: the line is empty" in for_people


def test_an_input_without_one_good_row_fails(place: Place):
    done = call(place, "sms", "--json", stdin="\n\n")
    assert done.exit_code == 1
    assert [one["error"] for one in json.loads(done.stdout)] == ["the line is empty"] * 2


def test_a_row_may_be_bad_for_one_adapter_alone(place: Place, tmp_path: Path):
    file = table(tmp_path / "in.jsonl", [{"question": "who ?", "context": c} for c in (CONTEXT, "")])
    found = answers(place, "ask,ner", "--file", file, "--text", "question")
    assert [sorted({"error", "answer", "spans"} & set(one)) for one in found] == [
        ["answer"],
        ["spans"],
        ["error"],
        ["spans"],
    ]


# --- columns that are passed on -----------------------------------------------------------------------------------


def odd(tmp_path: Path) -> Path:
    """A file whose columns have the names of an answer's own."""
    rows = [
        {"id": str(i), "text": t, "label": "mine", "score": "=1+1", "input_label": "x", "task": "7"}
        for i, t in enumerate(TEXTS)
    ]
    return table(tmp_path / "in.csv", rows)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_are_passed_on_and_none_is_lost(place: Place, tmp_path: Path, suffix: str):
    file, out = odd(tmp_path), tmp_path / f"out{suffix}"
    answers(place, "sms", "--file", file, "--text", "text", "--out", out, "--raw-csv")
    found, expected = read(out), answers(place, "sms", *TEXTS)
    assert [one["text"] for one in found] == TEXTS
    assert [one["label"] for one in found] == [one["label"] for one in expected]  # ours
    assert [one["id"] for one in found] == [str(i) for i in range(5)]
    assert {one["input_input_label"] for one in found} == {"mine"}  # input_label is the user's own
    assert {one["input_label"] for one in found} == {"x"}
    assert {(one["input_score"], one["input_task"]) for one in found} == {("=1+1", "7")}
    assert "input_text" not in found[0]  # it is the text


def test_columns_to_keep(place: Place, tmp_path: Path):
    file, out = odd(tmp_path), tmp_path / "out.jsonl"
    for keep, kept in (("none", set()), ("id,task", {"id", "input_task"}), ("text", set())):
        answers(place, "sms", "--file", file, "--keep", keep, "--out", out, "--overwrite")
        assert set(read(out)[0]) == {"task", "text", "label", "score", "scores"} | kept
    assert answers(place, "sms", "--file", file, "--keep", "id")[2]["input"] == {"id": "2"}
    every = answers(place, "sms", "--file", file)[2]
    assert every["input"]["label"] == "mine"
    assert every == {**answers(place, "sms", TEXTS[2])[0], "input": every["input"]}
    said = fails(place, "sms", "--file", file, "--keep", "id,labl")
    assert "no column 'labl' (--keep). Did you mean label" in said
    assert call(place, "sms", "hi", "--keep", "id").exit_code == 2


def test_another_name_of_the_text_is_a_column_like_any_other(place: Place, tmp_path: Path):
    file, out = table(tmp_path / "in.csv", [{"body": TEXTS[0], "text": "short"}]), tmp_path / "out.jsonl"
    answers(place, "sms", "--file", file, "--text", "body", "--out", out)
    (found,) = read(out)
    assert (found["text"], found["body"], found["input_text"]) == (TEXTS[0], TEXTS[0], "short")


def test_typed_columns_go_into_every_format(place: Place, tmp_path: Path):
    rows = [
        {"text": TEXTS[0], "n": 3, "start": 1.5, "flag": True, "tags": ["a", "b"], "when": datetime.date(2026, 1, 2)}
    ]
    file = table(tmp_path / "in.parquet", rows)
    for suffix in SUFFIXES:
        answers(place, "sms", "--file", file, "--out", tmp_path / f"out{suffix}")
    line, cell, row = (read(tmp_path / f"out{suffix}")[0] for suffix in SUFFIXES)
    assert (line["n"], line["start"], line["flag"], line["tags"], line["when"]) == (
        3,
        1.5,
        True,
        ["a", "b"],
        "2026-01-02",
    )
    assert (row["n"], row["start"], row["flag"], row["tags"]) == ("3", "1.5", "true", '["a", "b"]')
    assert (cell["n"], cell["when"], cell["tags"]) == ("3", "2026-01-02", '["a", "b"]')
    assert json.loads(call(place, "sms", "--file", file, "--json").stdout)[0]["input"]["when"] == "2026-01-02"


# --- text that something might act on -----------------------------------------------------------------------------


def test_a_csv_holds_no_formulas(place: Place, tmp_path: Path):
    texts = ["=HYPERLINK(1)", "+cmd", "-1+1", "@SUM(A1)", "\tx", "-3.5", "+7", "plain = text"]
    file, out = table(tmp_path / "in.jsonl", [{"text": t, "=n": "=2"} for t in texts]), tmp_path / "out.csv"
    answers(place, "sms", "--file", file, "--out", out)
    found = read(out)
    assert [one["text"] for one in found] == [f"'{t}" for t in texts[:5]] + texts[5:]
    assert {one["'=n"] for one in found} == {"'=2"}
    answers(place, "sms", "--file", file, "--out", out, "--raw-csv", "--overwrite")
    assert [one["text"] for one in read(out)] == texts
    assert {one["=n"] for one in read(out)} == {"=2"}


def test_a_terminal_obeys_no_label_or_text(place: Place, tmp_path: Path):
    label = "\x1b[31mham\u202e"
    host = place.host
    host.add("evil", "lora", labels=[label, "\x9bspam"])
    Library(tmp_path).put(host.adapter("evil"), base_name=place.base)
    host.unload("evil")
    own = Place(place.base, tmp_path, host)
    done = call(own, "evil", "a\x1b[2Jb", "--top-k", 2)
    assert not {"\x1b", "\x9b", "\u202e"} & set(done.stdout)
    assert "\\x1b[31mham\\u202e" in done.stdout
    assert "a\\x1b[2Jb" in done.stdout
    plain = call(own, "evil", "hi", "--json")
    assert not {"\x1b", "\x9b"} & set(plain.stdout)
    assert set(json.loads(plain.stdout)[0]["scores"]) == {label, "\x9bspam"}
    file = table(tmp_path / "in.csv", [{"\x1b[31ma": "1", "b": "2"}])
    assert "\x1b" not in fails(place, "sms", "--file", file, "--text", "c")


def test_top_k_is_for_labels(place: Place):
    for names in ("ask", "ask,sms", "stars", "ner,stars"):
        done = call(place, names, "who ?", "--pair", CONTEXT, "--top-k", 2)
        assert done.exit_code == 2
        assert "--top-k needs scores of labels" in " ".join(done.stderr.split())


def test_a_threshold_is_for_scores(place: Place):
    done = call(place, "stars", "who ?", "--threshold", 0.5)
    assert done.exit_code == 2
    assert "--threshold 0.5 needs scores, and stars (regression) has none" in " ".join(done.stderr.split())
    assert call(place, "stars,sms", "who ?", "--threshold", 0.5).exit_code == 0


@pytest.mark.usefixtures("small_parts")
def test_memory_does_not_grow_with_the_input(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However slowly parts are written, four are on their way behind the one in hand, and no more."""
    read_rows, real_row, real_write = [0], reading._row, OutputParts.write

    def row(*arguments: Any) -> Any:
        read_rows[0] += 1
        return real_row(*arguments)

    def write(store: OutputParts, index: int, some: Sequence[Any]) -> None:
        if index == 0:
            wait_until_still(read_rows)
            assert read_rows[0] == 4 * 5  # else nothing would overlap
        assert read_rows[0] <= 4 * (index + 5)
        assert len(some) <= 2 * 4
        real_write(store, index, some)

    monkeypatch.setattr(reading, "_row", row)
    monkeypatch.setattr(OutputParts, "write", write)
    answers(place, "sms,ner", "--file", many(tmp_path, 43), "--out", tmp_path / "out.csv")
    assert read_rows[0] == 43


def wait_until_still(count: list[int]) -> None:
    """Wait until a count has not changed for a while."""
    before = -1
    while before != count[0]:
        before = count[0]
        time.sleep(0.3)


@pytest.mark.parametrize(
    ("names", "suffix"),
    [("sms", ".jsonl"), ("sms,sms@1", ".jsonl"), ("sms", ".csv"), ("topic,sms", ".parquet"), ("sms,ner", ".jsonl")],
)
def test_a_file_by_column_is_the_same_as_row_by_row(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, suffix: str
):
    """One part of three has a row that cannot be used."""
    rows = [{"text": f"{TEXTS[i % 5]} {i}", "n": i, "label": "it's", "score %": None} for i in range(23)]
    file = table(tmp_path / "in.jsonl", rows)
    file.write_text(file.read_text().replace('"soup , soup and soup 9"', "7 7"))
    monkeypatch.setattr(resumable_output, "size_of", lambda before: 8)
    found, decode = [], predicting.decode
    for way in ("fast", "plain"):
        if way == "plain":
            monkeypatch.setattr(predicting, "decode", lambda *given: list(decode(*given)))
            monkeypatch.setattr(TextTask, "packed", Task.packed)
        out = tmp_path / f"{way}{suffix}"
        assert call(place, names, "--file", file, "--text", "text", "--out", out).exit_code == 0
        found.append(out.read_bytes())
    assert found[0] == found[1]
    if suffix == ".jsonl":
        asked, kept, said = ["task", "text"], ["n", "input_label", "score %"], ["label", "score", "scores"]
        assert list(json.loads(found[0].splitlines()[0])) == asked + kept + said


def test_one_pass_for_all_adapters(place: Place, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    real = predicting.pooled_logits
    monkeypatch.setattr(
        predicting, "pooled_logits", lambda host, batch, names: calls.append(len(names)) or real(host, batch, names)
    )
    answers(place, "sms,stars,topic", *TEXTS)
    assert calls == [15]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_holds_what_the_host_answers_to_the_bit(place: Place, tmp_path: Path, suffix: str):
    """Parts on their way at once are not mixed up, and each is a call of `Host.predict`."""
    rows = [{"text": f"{TEXTS[i % 5]} {'very ' * (i % 7)}{i}"} for i in range(23)]
    file, out = table(tmp_path / "in.jsonl", rows), tmp_path / f"out{suffix}"
    answers(place, "sms,topic", "--file", file, "--out", out)
    found = [float(one["score"]) for one in read(out)]
    asked = [[(name, row["text"]) for row in rows[i : i + 4] for name in ("sms", "topic")] for i in range(0, 23, 4)]
    expected = [one["score"] for some in asked for one in place.host.predict(some)]
    assert found == expected
    assert len(set(found)) > 40


def test_much_on_a_cpu_runs_on_packed_weights(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forms: list[str | None] = []
    real = command.host_with
    monkeypatch.setattr(command, "host_with", lambda base, form, *more: forms.append(form) or real(base, form, *more))
    file, out = many(tmp_path), tmp_path / "out.jsonl"

    def form(*arguments: Any, stdin: str | None = None) -> str | None:
        answers(place, "sms", *arguments, stdin=stdin)
        return forms.pop()

    assert form("--file", file, "--out", out) is None
    assert form("hi", "--out", tmp_path / "a.jsonl") is None
    assert form(stdin="hi") is None
    best = None if torch.cuda.is_available() else "prepack"
    assert form("--out", tmp_path / "b.jsonl", stdin="hi") == best
    monkeypatch.setattr(command, "_MUCH", file.stat().st_size)
    assert form("--file", file) == best
    assert form("--file", file, "--weights", "plain") == "plain"
    host = place.host
    host.add("tuned", "finetune:top=1", labels=["a", "b"])
    Library(tmp_path / "library").put(host.adapter("tuned"), base_name=place.base)
    host.unload("tuned")
    own = Place(place.base, tmp_path / "library", host)
    answers(own, "tuned", "--file", file)
    assert forms.pop() is None


# --- mistakes -----------------------------------------------------------------------------------------------------


def test_mistakes_are_one_clear_line(place: Place, tmp_path: Path):
    missing = tmp_path / "missing.csv"
    file = table(tmp_path / "in.csv", [{"a": 1, "b": 2}])
    out = tmp_path / "out.csv"
    out.write_text("precious")
    for arguments, said in (
        (["smss", "hi"], "Did you mean sms?"),
        (["sms@7", "hi"], "sms has no version '7'"),
        (["sms,sms", "hi"], "sms is named twice"),
        ([",", "hi"], "names no adapter"),
        (["ask", "who ?"], "pass that text with --pair"),
        (["ner", "hi", "--pair", "x"], "answers for one text"),
        (["sms", " "], "text 1 is empty"),
        (["sms"], "stdin: no texts"),
        (["sms", "--file", "-"], "stdin: no texts"),
        (["sms", "--file", missing], "there is no such file"),
        (["sms", "--file", file], "no column looks like the text"),
        (["sms", "--file", file, "--text", "c"], "no column 'c'"),
        (["ner", "--file", file, "--text", "c"], "no column 'c'"),
        (["sms", "--file", "-", "--format", "csv"], "cannot be read from a pipe"),
        (["sms", "hi", "--out", tmp_path / "out.txt"], "must end with"),
        (["sms", "hi", "--out", out], "pass --overwrite to replace it"),
        (["sms", "--file", file, "--out", file, "--overwrite"], "is the input"),
        (["sms", "--out", tmp_path / "new.csv", "--resume"], "stdin cannot be resumed"),
        (["sms", "--encoding", "hex"], "unknown text encoding 'hex'"),
        (["sms", "hi", "--base", tmp_path], "config.json"),
    ):
        assert said in fails(place, *arguments), arguments
    assert out.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"in.csv", "out.csv"}


def test_bytes_that_are_no_text_are_named_by_their_line(place: Place):
    done = call(place, "sms", stdin=b"good\ncaf\xe9\n")
    assert "stdin:2: byte 0xe9 is not UTF-8; pass --encoding" in done.stdout
    assert "stdin:1: not JSON" in fails(place, "sms", "--file", "-", stdin="{bad\n")


def test_adapters_that_cannot_be_asked(place: Place, tmp_path: Path):
    library = Library(tmp_path / "library")
    own = Place(place.base, library.local, place.host)
    other = inlay.Host(tiny.save_text_model(tmp_path / "other", intermediate_size=20))
    for host, name, more in (
        (place.host, "bare", {}),
        (place.host, "words", {"task": "mlm", "labels": ["word"]}),
        (other, "far", {"labels": 2}),
    ):
        host.add(name, "bitfit", **more)
        library.put(host.adapter(name), base_name=place.base)
        host.unload(name)
    library.put(place.host.adapter("sms"), base_name=place.base)
    assert "bare cannot predict" in fails(own, "bare", "hi")
    assert "words cannot predict" in fails(own, "words", "hi")
    assert "sms and far belong to different bases" in fails(own, "sms,far", "hi")
    with pytest.raises(AdapterError, match="sms and far belong to different bases"):  # as export and analyze ask
        host_with(None, None, library, {name: library.find(name) for name in ("sms", "far")})
    assert "name that with --base" in fails(own, "far", "hi")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sms", "hi", "--file", "f.csv"],
        ["sms", "hi", "--text", "a"],
        ["sms", "hi", "--format", "csv"],
        ["sms", "hi", "--resume"],
        ["sms", "hi", "--overwrite"],
        ["sms", "hi", "--raw-csv"],
        ["sms", "hi", "--top-k", "0"],
        ["sms", "hi", "--threshold", "1.5"],
    ],
)
def test_bad_usage_is_2(place: Place, arguments: list[str]):
    done = call(place, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_the_command_imports_nothing_heavy():
    names = ", ".join(
        f"inlay.cli.{name}" for name in ("predict", "resumable_output", "predict_input", "predict_display")
    )
    code = f"import sys, {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert not {"torch", "numpy", "pyarrow", "transformers", "rich.table"} & set(done.stdout.split())
    assert "typer" in done.stdout.split()
