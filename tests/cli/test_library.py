"""`inlay library`: what is listed and shown, aliases, the trash, exports and imports, and that it is quick."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from training import work
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.interop import hub
from inlay.library.adapter import Adapter
from inlay.library.library import Library

TEXTS = ("the film was good", "awful soup , never came")


class Place:
    """A library that was filled on the command line, and a base to use it with."""

    def __init__(self, root: Path):
        self.root, self.library = root, root / "library"
        self.base = tiny.save_text_model(root / "base")
        rows = work.texts(30)
        (root / "tone.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self.train("tone", "--method", "houlsby:size=4", "--seed", "1")
        self.train("tone", "--method", "houlsby:size=4", "--lr", "0.01")
        self.train("small", "--method", "adapterbias", "--half")
        self.train("low", "--method", "lora:rank=2", "--pool", "pooler")

    def train(self, name: str, *more: str) -> None:
        asked = ["train", self.root / "tone.jsonl", "--name", name, "--max-steps", 3, "--base", self.base, *more]
        done = CliRunner().invoke(app, [*map(str, asked), "--library", str(self.library)])
        assert done.exit_code == 0, done.output

    def copy(self, folder: Path) -> Place:
        made = object.__new__(Place)
        made.root, made.library, made.base = folder, folder / "library", self.base
        shutil.copytree(self.library, made.library)
        return made

    def call(self, *arguments: Any, width: int = 100, **options: Any) -> Any:
        asked = ["library", *map(str, arguments), "--library", str(self.library)]
        return CliRunner().invoke(app, asked, env={"COLUMNS": str(width)}, **options)

    def says(self, *arguments: Any, **options: Any) -> str:
        done = self.call(*arguments, **options)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return str(done.stdout)

    def json(self, *arguments: Any) -> Any:
        done = self.call(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def fails(self, *arguments: Any) -> str:
        done = self.call(*arguments)
        assert (done.exit_code, done.stdout) == (1, ""), done.output
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        return str(done.stderr)

    def scores(self, adapter: Adapter) -> list[float]:
        host = inlay.Host(self.base, device="cpu")
        host.load(adapter, "x")
        answers = host.predict([("x", text) for text in TEXTS])
        return [score for answer in answers for _, score in sorted(answer["scores"].items())]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("library"))


@pytest.fixture
def place(trained: Place, tmp_path: Path) -> Place:
    return trained.copy(tmp_path)


def test_list(place: Place):
    place.says("alias", "tone", "prod", 1)
    lines = place.says("list", width=120).splitlines()
    assert lines[0].split() == ["adapter", "alias", "method", "task", "labels", "size", "of", "base", "metric", "when"]
    rows = {line.split()[0]: line for line in lines[2:5]}
    assert list(rows) == ["low@1", "small@1", "tone@2"]
    assert "prod=1" in rows["tone@2"]
    entry = Library(place.library).find("tone")
    value = entry.card["metrics"]["validation"]["accuracy"]
    assert re.search(rf"houlsby:size=4 +classification +2 .*accuracy {value:.4f}", rows["tone@2"])
    every = place.says("list", "--all-versions", width=120)
    assert re.search(r"\ntone@1 +prod +houlsby", every)
    assert "all 4 versions" in every
    assert lines[-1] == "1 older version is not shown (--all-versions shows all)"
    assert "not shown" not in every


def test_what_a_card_does_not_say_is_a_dash(tmp_path: Path):
    library = Library(tmp_path / "own")
    library.put(Adapter("lora", "sha256:0", {"x": torch.zeros(2)}, name="mine"))
    done = CliRunner().invoke(app, ["library", "list", "--library", str(library.root)], env={"COLUMNS": "120"})
    row = next(line for line in done.stdout.splitlines() if line.startswith("mine@1"))
    assert re.fullmatch(r"mine@1 +lora +- +- +\d+ bytes +- +- +\d{4}-\d\d-\d\d", row)


def test_a_push_of_an_adapter_without_a_task_names_its_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Library(tmp_path).put(Adapter("bitfit", "sha256:" + "a" * 64, {"layers.0.attn.out.bias": torch.zeros(2)}), "plain")
    messages = []

    def push(files: Any, repo: str, *, message: str, **_: Any) -> hub.Place:
        messages.append(message)
        return hub.Place(repo, "c" * 40, "https://hub")

    monkeypatch.setattr(hub, "push", push)
    done = CliRunner().invoke(app, ["library", "push", "plain", "ana/plain", "--library", str(tmp_path)])
    assert (done.exit_code, messages) == (0, ["plain@1: bitfit"]), done.output


def test_the_list_ends_with_what_everything_costs(place: Place):
    entries = Library(place.library).list()
    size = inlay.Host(place.base).base.sites.size
    assert {entry.card["base_parameters"] for entry in entries} == {size}
    times = 1 + sum(entry.bytes for entry in entries) / (4 * size)
    last = place.says("list").splitlines()[-2]
    assert re.fullmatch(rf"3 tasks: .+ beside one base of .+ = {times:.2f}x; 3 full models: 3x \(.+\)", last)


def test_a_narrow_list_has_fewer_columns_and_no_broken_lines(place: Place):
    for width in (120, 100, 80, 60):
        lines = place.says("list", width=width).splitlines()
        assert max(map(len, lines[:-2])) <= width
        assert len([line for line in lines if "@" in line]) == 3
        assert all(column in lines[0] for column in ("adapter", "method", "size", "metric"))


def test_list_as_json_is_a_list_of_cards(place: Place):
    place.says("alias", "tone", "prod")
    cards = place.json("list")
    assert [(card["name"], card["version"], card["aliases"]) for card in cards] == [
        ("low", 1, []),
        ("small", 1, []),
        ("tone", 2, ["prod"]),
    ]
    assert {"sha256", "method", "labels", "metrics", "config", "digest"} <= set(cards[0])
    assert len(place.json("list", "--all-versions")) == 4


def test_an_empty_library(tmp_path: Path):
    done = CliRunner().invoke(app, ["library", "list", "--library", str(tmp_path), "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])
    assert "no adapters in" in done.stderr
    done = CliRunner().invoke(app, ["library", "list", "--library", str(tmp_path / "none")])
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"--library {tmp_path / 'none'}: there is no such folder" in done.stderr


def test_a_file_is_no_library(tmp_path: Path):
    (tmp_path / "file").write_text("something")
    done = CliRunner().invoke(app, ["library", "list", "--library", str(tmp_path / "file")])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "file is a file; a library is a folder, or a URL" in done.stderr


def test_a_damaged_card_does_not_hide_the_others(place: Place):
    (place.library / "adapters" / "small" / "1.json").write_text("{}")
    done = place.call("list")
    assert done.exit_code == 1
    assert "tone@2" in done.stdout
    assert "small@1: " in done.stdout
    assert "Traceback" not in done.output


def test_show(place: Place):
    place.says("alias", "tone", "prod", 1)
    page = place.says("show", "tone@2")
    entry = Library(place.library).find("tone@2")
    for said in (
        "tone@2\nGives a text one of 2 labels.",
        f"{entry.card['parameters']['adapter']:,} trained parameters",
        entry.sha256,
        entry.card["data"],
        "max_steps 3, choose_by last",
        "kept      after 3 steps",
        "the last state was kept; no checkpoint was picked on the validation rows",
        "versions  1 @prod, [2]",
        '$ inlay predict tone "a text"',
    ):
        assert said in page.replace(" \n", "\n"), said
    assert "validation" in page
    assert max(map(len, place.says("show", "tone", width=200).splitlines())) <= 200
    assert place.json("show", "tone@prod") == {**Library(place.library).find("tone@1").card, "aliases": ["prod"]}
    assert "Did you mean tone?" in place.fails("show", "tony")


@pytest.mark.full
def test_what_a_page_tells_to_do_works(place: Place):
    page = place.says("show", "tone", width=300)
    code = page[page.index("  import inlay") :]
    (place.root / "snippet.py").write_text("\n".join(line[2:] for line in code.splitlines()))
    done = subprocess.run([sys.executable, "snippet.py"], cwd=place.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'label': " in done.stdout
    (again,) = re.findall(r"again +(inlay train .+)", page)
    before = Library(place.library).find("tone")
    done = CliRunner().invoke(app, [*again.split()[1:], "--library", str(place.library)])
    assert done.exit_code == 0, done.output
    assert Library(place.library).find("tone").sha256 == before.sha256  # the same adapter, to the last bit


def test_terminals_are_not_told_what_to_do(place: Place):
    store = Library(place.library)
    evil = replace(
        store.get("tone"), labels=("a\x1b[2J", "b"), about={"config": {"data": "\x1b]0;x\x07"}, "metrics": 3}
    )
    store.put(evil, "evil")
    assert "\x1b" not in place.says("show", "evil") + place.says("list")


def test_verify(place: Place):
    assert "is intact" in place.says("verify")
    assert place.json("verify", "tone@1") == {"ok": True, "problems": []}
    path = place.library / "blobs" / f"{Library(place.library).find('tone@1').sha256}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = place.call("verify", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert {problem["ref"] for problem in found["problems"]} == {"tone@1"}
    assert place.call("verify", "tone@2").exit_code == 0


def test_diff(place: Place):
    page = place.says("diff", "tone@1", "tone@2")
    assert re.search(r"config\.lr +- +0\.01", page)
    assert re.search(r"layers\.0\.attn\.out +[\d.]+ +[\d.]+ +[\d.]+ % +-?[\d.]+", page)
    found = place.json("diff", "tone@1", "tone@2")
    assert found["fields"]["seed"] == [1, 0]
    assert not found["same_weights"]
    assert found["places"][0]["name"] == "layers.0.attn.norm"
    assert found["places"][-1]["name"] == "head"
    same = place.says("diff", "tone", "tone@2")
    assert "say the same" in same
    assert "are the same" in same
    assert place.json("diff", "tone", "low")["total"]["name"] == "all"


def test_a_narrow_diff_of_different_methods_keeps_its_places_whole(place: Place):
    page = place.says("diff", "tone", "small", width=80)
    assert re.search(r"\n  layers\.0\.ffn\.out +[\d.]+ +[\d.]+ +other", page)
    assert max(map(len, page.splitlines())) <= 80


def test_an_alias_moves_and_moves_back(place: Place):
    assert place.says("alias", "tone", "prod", 1) == "tone@prod is tone@1\n"
    assert place.says("alias", "tone", "prod") == "tone@prod is tone@2, was tone@1\n"
    assert place.says("alias", "tone", "prod", "--back") == "tone@prod is tone@1, was tone@2\n"
    assert place.json("alias", "tone", "next", "prod") == {
        "name": "tone",
        "alias": "next",
        "version": 1,
        "before": None,
    }
    assert place.says("alias", "tone", "prod", "--remove") == "tone@prod is removed, was tone@1\n"
    assert "has no previous version" in place.fails("alias", "tone", "next", "--back")
    assert "tone has no version '9'" in place.fails("alias", "tone", "prod", 9)
    assert "an alias starts with a letter" in place.fails("alias", "tone", "3")
    assert place.call("alias", "tone", "prod", 1, "--back").exit_code == 2


def test_what_is_removed_can_be_restored_until_gc(place: Place):
    said = place.says("rm", "tone@1", "small")
    assert "tone@1 is removed\nsmall@1 is removed\n" in said
    (command,) = re.findall(r"to restore: inlay (library restore .+)", said)
    assert place.json("restore") == {"removed": ["small@1", "tone@1"]}
    assert [card["name"] for card in place.json("list")] == ["low", "tone"]
    done = CliRunner().invoke(app, command.split())
    assert done.stdout == "tone@1 is back\nsmall@1 is back\n"
    assert "tone@1 is intact" in place.says("verify", "tone@1")
    place.says("rm", "tone@1")
    assert place.json("gc", "--dry-run")["removed"] == ["tone@1"]
    assert place.call("gc", input="n\n").exit_code == 1
    assert place.json("restore") == {"removed": ["tone@1"]}  # nothing was deleted yet
    assert "for good tone@1?" in place.says("gc", input="y\n")
    assert "not in the trash" in place.fails("restore", "tone@1")
    assert place.says("gc") == "nothing to delete\n"
    assert place.call("gc", "--json").exit_code == 2


def test_nothing_is_removed_if_one_name_is_wrong_or_in_use(place: Place):
    assert "no adapter 'nothing'" in place.fails("rm", "tone@1", "nothing")
    place.says("alias", "tone", "prod", 1)
    assert "tone@1 is what tone@prod points to" in place.fails("rm", "tone")
    assert "tone@1 is what tone@prod points to" in place.fails("rm", "low", "tone@1")
    assert len(place.json("list", "--all-versions")) == 4


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_an_export_comes_back(place: Place, tmp_path: Path, dtype: str | None):
    folder, more = tmp_path / "out" / "tone", ["--dtype", dtype] if dtype else []
    found = place.json("export", "tone@1", folder, *more)
    assert sorted(found["files"]) == ["README.md", "adapter.safetensors", "card.json"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tone"]
    assert "# tone\n" in (folder / "README.md").read_text()
    entry = place.json("import", folder, "--name", "back")
    store = Library(place.library)
    before, after = store.get("tone@1"), store.get("back")
    assert (entry["version"], after.about["config"]) == (1, before.about["config"])
    assert {key: entry[key] for key in ("base_name", "base_parameters", "metrics")} == {
        key: store.find("tone@1").card[key] for key in ("base_name", "base_parameters", "metrics")
    }
    if dtype is None:
        assert place.scores(after) == place.scores(before)
        assert place.json("import", folder)["version"] == 3  # under its own name: the next version
    else:
        assert place.scores(after) == pytest.approx(place.scores(before), abs=2e-3)
        assert place.scores(after) != place.scores(before)
        assert found["files"]["adapter.safetensors"] < 0.8 * store.find("tone@1").bytes


def test_an_export_overwrites_nothing(place: Place, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    assert "already exists and is not empty" in place.fails("export", "tone", tmp_path / "mine")
    assert (tmp_path / "mine" / "README.md").read_text() == "mine"
    place.says("export", "tone", tmp_path / "mine", "--overwrite")
    assert "# tone" in (tmp_path / "mine" / "README.md").read_text()
    for option, value, said in (("--as", "pest", "Did you mean peft?"), ("--dtype", "int4", "Valid: float16, float32")):
        done = place.call("export", "tone", tmp_path / "new", option, value)
        assert done.exit_code == 2
        assert said in done.stderr
    assert not (tmp_path / "new").exists()


def test_an_export_that_was_changed_is_refused(place: Place, tmp_path: Path):
    folder = tmp_path / "tone"
    place.says("export", "tone", folder)
    other = tmp_path / "small"
    place.says("export", "small", other)
    shutil.copy(other / "adapter.safetensors", folder)
    assert "is not the file that its card was written for" in place.fails("import", folder, "--name", "x")
    card = (other / "card.json").read_text()
    (other / "card.json").write_text(card.replace('"adapterbias"', '"bitfit"'))
    assert "was changed after it was written" in place.fails("import", other, "--name", "x")
    assert "x" not in Library(place.library).names()


def test_a_file_alone_is_imported(place: Place, tmp_path: Path):
    Library(place.library).get("low").save(tmp_path / "some file.safetensors")
    assert place.json("import", tmp_path / "some file.safetensors")["name"] == "low"
    assert place.json("import", tmp_path / "some file.safetensors", "--name", "y")["version"] == 1


def test_a_folder_of_pefts_goes_out_and_in(place: Place, tmp_path: Path):
    folder = tmp_path / "peft"
    found = place.json("export", "low", folder, "--as", "peft")
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= set(found["files"])
    assert "from peft import PeftModel" in (folder / "README.md").read_text()
    card = place.json("import", folder, "--name", "from-peft", "--base", place.base)
    assert card["method"].startswith("lora:")
    assert card["base_parameters"] == Library(place.library).find("low").card["base_parameters"]
    assert card["parameters"]["share_of_base"] > 0
    store = Library(place.library)
    assert place.scores(store.get("from-peft")) == pytest.approx(place.scores(store.get("low")), abs=1e-5)
    assert place.scores(store.get("tone")) != pytest.approx(place.scores(store.get("low")), abs=1e-3)  # the control


def test_what_a_peer_cannot_hold_leaves_nothing_behind(place: Place, tmp_path: Path):
    place.fails("export", "small", tmp_path / "peft", "--as", "peft")
    assert list(tmp_path.glob("*peft*")) == []
    assert list(tmp_path.glob(".export*")) == []


def test_what_is_no_adapter(place: Place, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "holds no adapter: expected card.json" in place.fails("import", tmp_path / "empty")
    assert "there is no" in place.fails("import", tmp_path / "nothing")
    (tmp_path / "x.safetensors").write_bytes(b"\x80\x04pickle")
    assert "is not an adapter" in place.fails("import", tmp_path / "x.safetensors")


def test_half_is_half(place: Place):
    store = Library(place.library)
    adapter = store.get("small")
    assert {tensor.dtype for tensor in adapter.tensors.values()} == {torch.float16}
    assert {tensor.dtype for tensor in store.get("tone").tensors.values()} == {torch.float32}
    exact = adapter.to("float32")
    assert place.scores(adapter) == pytest.approx(place.scores(exact), abs=1e-6)


def used() -> float:
    """Seconds of the processor that child processes have taken so far."""
    found = os.times()
    return found.children_user + found.children_system


@pytest.mark.full
def test_a_thousand_adapters_in_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without torch, which alone takes longer. Seconds of the processor: other tests may run at the same time."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    store = Library(tmp_path)
    about = {"metrics": {"validation": {"accuracy": 0.9, "f1": 0.8}}, "metric": "accuracy", "config": {"data": "x.csv"}}
    adapter = Adapter(
        "houlsby", "sha256:x", {"head.bias": torch.zeros(2)}, 0, "linear", "mean", ("a", "b"), "x", "", about
    )
    for i in range(1000):
        store.put(adapter, f"task-{i}", base_parameters=10_000)
    script = (
        "import sys, runpy; sys.argv = ['inlay', 'library', 'list', '--library', sys.argv[1]]\n"
        "try: runpy.run_module('inlay.cli.main', run_name='__main__')\n"
        "finally: assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    took = []
    for _ in range(3):
        began = used()
        asked = [sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        took.append(used() - began)
        assert done.returncode == 0, done.stderr
    assert "1,000 tasks: " in done.stdout
    assert min(took) < 1
