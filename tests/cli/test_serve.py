"""`inlay serve` and `inlay predict --url`: what is said at the start, wrong usage, and the same answers from afar."""

from __future__ import annotations

import csv
import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from serve import place as places
from serve.place import PAIR, TEXT, until
from serve.process import Process
from typer.testing import CliRunner

import inlay
from inlay.cli import serve
from inlay.cli.main import app
from inlay.library.library import Library

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    base, library = places.make_library(tmp_path_factory.mktemp("serve"))
    host = inlay.Host(base)
    places.add(host, library, "sms", 60, base)
    library.alias("sms", "prod", 1)
    return library


@pytest.fixture(scope="module")
def process(library: Library) -> Any:
    with Process(library, "--port", 0, "--watch") as one:
        yield one


def call(*arguments: Any, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin, env={"COLUMNS": "80"})


def fails(*arguments: Any) -> str:
    done = call("serve", *arguments)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return str(done.stderr)


# --- serve --------------------------------------------------------------------------------------------------------


def test_it_says_where_it_is_and_what_it_serves(process: Process):
    assert process.url.startswith("http://127.0.0.1:")
    assert process.about["tasks"] == ["ask@1", "ner@1", "sms@2", "stars@1", "topic@1"]
    assert process.about["open"] is True
    assert process.about["memory"]["cpu"] > 10**8
    assert "serves 5 tasks" in process.said()
    assert "no --key-file: anyone on this machine" in process.said()
    assert "tasks cannot be changed over HTTP" in process.said()


def test_a_new_version_appears_by_itself(process: Process, library: Library):
    base = str(library.find("ner").card["base_name"])
    places.add(inlay.Host(base), library, "ner", 61, base)
    with inlay.Client(process.url) as client:
        until(lambda: {card["name"]: card["version"] for card in client.tasks()}["ner"] == 2)


@pytest.mark.full
def test_an_alias_a_key_file_and_the_log(library: Library, tmp_path: Path):
    (tmp_path / "keys").write_text("web predict,manage a-key\n")
    options = ("--port", 0, "--alias", "prod", "--key-file", tmp_path / "keys", "--log-texts", "--resident", 2)
    with Process(library, *options) as process:
        assert (process.about["tasks"], process.about["open"]) == (["sms@1"], False)
        with inlay.Client(process.url, key="a-key") as client:
            assert client.ask("sms", TEXT)["version"] == 1
            client.serve("topic", "topic@1")
            assert [card["ref"] for card in client.tasks()] == ["sms@1", "topic@1"]
        assert process.end() == 0
        lines = [json.loads(line) for line in process.said().splitlines() if line.startswith("{")]
        (line,) = [line for line in lines if line["path"] == "/v1/predict"]
        assert (line["key"], line["tasks"], line["texts"]) == ("web", ["sms"], [TEXT])


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(library: Library):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is taken" in fails("--port", port, "--library", library.root)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--key-file", "/none"], "the key file /none cannot be read"),
        (["--tasks", "no"], "no adapter 'no'"),
        (["--tasks", "sms@9"], "sms has no version '9'"),
        (["--tasks", "sms,sms"], "--tasks names sms twice"),
        (["--library", "/no/such/folder"], "--library /no/such/folder: there is no such folder"),
        (["--tasks", ","], "names no adapter"),
        (["--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
        (["--base", "/none"], "/none"),
    ],
)
def test_wrong_usage_is_one_line(library: Library, options: list[str], said: str):
    assert said in fails("--port", 0, "--library", library.root, *options)


def test_a_task_that_is_named_and_cannot_be_served_is_an_error(library: Library, tmp_path: Path):
    own = Library(str(tmp_path / "library"))
    base = str(library.find("sms").card["base_name"])
    host = inlay.Host(base)
    places.add(host, own, "sms", 60, base)
    for name in ("bare", "bare2"):
        host.add(name, "lora")
        own.put(host.adapter(name), base_name=base)
    said = fails("--port", 0, "--library", own.root, "--tasks", "sms,bare,bare2")
    why = "cannot be served: it has no head that gives answers"
    assert said == f"error: bare@1 {why}; bare2@1 {why}\n"


@pytest.mark.parametrize("options", [["--port", "x"], ["--port", "70000"], ["--watch", "x"], ["--queue", "0"]])
def test_a_value_that_is_none_is_wrong_usage(options: list[str]):
    assert call("serve", *options).exit_code == 2


@pytest.mark.parametrize("file", ["Dockerfile", "inlay.service"])
def test_what_deploys_it_names_options_that_exist(file: str):
    words = [
        word for line in (ROOT / "deploy" / file).read_text().splitlines() if _starts(line) for word in line.split()
    ]
    given = {option for word in words for option in re.findall(r"--[a-z][a-z-]+", word)}
    assert {"--watch"} < given
    assert given <= set(re.findall(r"--[a-z][a-z-]+", call("serve", "--help").stdout))


def _starts(line: str) -> bool:
    return line.startswith(("ExecStart=", "ENTRYPOINT", "CMD"))


# --- predict --url ------------------------------------------------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "asked",
    [
        ["sms,topic,stars", TEXT, "a very bad book"],
        ["sms@2", TEXT, "--top-k", "1", "--threshold", "0.99"],
        ["sms,stars", TEXT, "--threshold", "0.99"],
        ["sms", TEXT, "--raw"],
        ["ner", TEXT],
        ["ask", PAIR[0], "--pair", PAIR[1]],
    ],
)
def test_answers_from_afar_are_those_from_here(process: Process, library: Library, asked: list[str]):
    here = call("predict", *asked, "--library", library.root, "--json")
    there = call("predict", *asked, "--url", process.url, "--json")
    assert (here.exit_code, there.exit_code) == (0, 0), there.stderr
    expected, found = json.loads(here.stdout), json.loads(there.stdout)
    assert found == _near(expected)
    table = call("predict", *asked, "--url", process.url)
    assert table.stdout == call("predict", *asked, "--library", library.root).stdout


def _near(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _near(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_near(one) for one in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


def test_a_file_of_texts_goes_through_a_service(process: Process, library: Library, tmp_path: Path):
    rows = [f"a film {i} was very good" for i in range(300)]
    (tmp_path / "in.txt").write_text("\n".join(rows))
    asked = ["predict", "sms,topic", "--file", tmp_path / "in.txt"]
    for where, out in ((["--url", process.url], "there.jsonl"), (["--library", library.root], "here.jsonl")):
        assert call(*asked, *where, "--out", tmp_path / out).exit_code == 0
    texts = ((tmp_path / out).read_text() for out in ("there.jsonl", "here.jsonl"))
    found, expected = ([json.loads(line) for line in text.splitlines()] for text in texts)
    assert len(found) == 600
    assert found == _near(expected)


@pytest.mark.full
def test_a_table_from_afar_has_the_uncertainty_of_an_ensemble(process: Process, library: Library, tmp_path: Path):
    library.put(inlay.Ensemble((library.read_adapter(library.find("sms@1")),) * 2, name="both"))
    with inlay.Client(process.url) as client:
        until(lambda: "both" in {card["name"] for card in client.tasks()})
    done = call("predict", "both", TEXT, "--url", process.url, "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    (row,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert float(row["uncertainty"]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["nope"], "no task 'nope' is served"),
        (["sms@7"], "'sms' is served at version 2, not at '7'"),
        (["sms,sms"], "named twice"),
    ],
)
def test_what_a_service_does_not_have(process: Process, asked: list[str], said: str):
    done = call("predict", *asked, TEXT, "--url", process.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.count(process.url) <= 1


def test_a_service_that_is_not_there():
    done = call("predict", "sms", TEXT, "--url", "http://127.0.0.1:9")
    assert (done.exit_code, "cannot be reached" in done.stderr) == (1, True)
    assert "is inlay serve running there?" in done.stderr
    assert call("predict", "sms", TEXT, "--url", "http://127.0.0.1:9", "--base", "x").exit_code == 2


def test_on_a_cpu_weights_are_packed_unless_a_task_changes_them(monkeypatch: pytest.MonkeyPatch):
    entries = {
        spec: SimpleNamespace(card={"method": spec}) for spec in ("lora", "houlsby:size=8", "finetune:top=1", "?")
    }
    small = [entries["lora"], entries["houlsby:size=8"]]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert serve._form(None, "local", small) == "prepack"
    assert serve._form(None, "local", [*small, entries["finetune:top=1"]]) is None
    for own, form in ((small, "prepack"), ([*small, entries["finetune:top=1"]], None)):
        whole = SimpleNamespace(card={"method": "ensemble", "members": [one.card for one in own]})
        assert serve._form(None, "local", [whole]) == form
    assert serve._form(None, "local", [entries["?"]]) is None
    assert serve._form(None, "local", []) is None
    assert [serve._form(given, "local", small) for given in ("plain", "int8")] == ["plain", "int8"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert serve._form(None, "local", small) is None


def test_a_base_can_be_asked_for_plainly(tmp_path: Path):
    host = inlay.Host(tiny.save_text_model(tmp_path / "base"), weights="plain")
    assert not host.base.form
