"""A library trained again on another base: beside the old one, compared on the same rows, switched only on request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from training import work
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.library.library import Library
from inlay.training.checkpoint import Checkpoint
from inlay.training.loop import Loop
from inlay.training.retrain import Change, candidates_of, finished


def write(path: Path, rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A library with a task of two versions, a task with test rows, one from rows and one that was imported."""
    folder = tmp_path_factory.mktemp("made")
    tiny.save_text_model(folder / "old")
    tiny.save_text_model(folder / "new", seed=1, num_hidden_layers=2)
    host, library = inlay.Host(str(folder / "old")), Library(folder / "library")
    data = {name: write(folder / f"{name}.jsonl", rows) for name, rows in _data().items()}
    how: dict[str, Any] = {"batch_size": 4, "lr": 3e-3, "val_size": 8, "epochs": 1}
    runs = {
        "mood": inlay.Run(data=data["mood"], method="houlsby:size=4", seed=3, text="text", **how),
        "tags": inlay.Run(data=data["tags"], method="lora:rank=2", test=data["test"], **how),
        "deep": inlay.Run(data=data["mood"], method="houlsby:size=4,layers=2", **how),
        "rows": inlay.Run(data=work.texts(), method="bitfit", **how),
    }
    for name, run in runs.items():
        inlay.train(host, run, name=name, library=library)
    host.unload("mood")
    inlay.train(host, runs["mood"].model_copy(update={"lr": 1e-2}), name="mood", library=library)
    library.alias("mood", "prod", 1)
    library.alias("mood", "next", 2)
    host.add("made-elsewhere", "bitfit", labels=["a", "b"])
    library.put(host.adapter("made-elsewhere"), "made-elsewhere")
    return folder


def _data() -> dict[str, Any]:
    return {"mood": work.texts(), "tags": work.entities(), "test": work.entities(9, 9)}


@pytest.fixture
def place(made, tmp_path, monkeypatch) -> Path:
    """The same, to be changed."""
    shutil.copytree(made / "library", tmp_path / "library")
    monkeypatch.setenv("INLAY_LIBRARY", str(tmp_path / "library"))
    return tmp_path


def call(made: Path, *arguments: str, code: int = 0) -> Any:
    """`inlay retrain ... --base NEW --json`."""
    base = () if "--undo" in arguments else ("--base", str(made / "new"))
    ran = CliRunner().invoke(app, ["retrain", *arguments, *base, "--json"])
    assert ran.exit_code == code, ran.output
    return json.loads(ran.stdout) if code == 0 else ran.stderr


def newest(place: Path) -> dict[str, str]:
    return {entry.name: entry.ref for entry in Library(place / "library").list()}


# --- training -----------------------------------------------------------------------------------------------------


def test_all_that_cannot_be_is_told_before_anything_starts(made, place, monkeypatch):
    monkeypatch.setattr(Loop, "run", lambda self: pytest.fail("it has started"))
    said = call(made, "--all", code=1)
    assert "made-elsewhere: cannot be retrained: its card does not say how it was trained" in said
    assert "rows: cannot be retrained: its data was 24 rows given as objects" in said
    assert "deep: cannot be retrained: " in said
    assert "layers" in said
    assert "3 tasks cannot be retrained, see above; pass --skip to leave them out" in said
    assert "mood@2: classification, 16 rows, houlsby:size=4" in said


def test_the_new_ones_are_beside_the_old_and_compared_on_the_same_rows(made, place):
    before = newest(place)
    told = call(made, "--all", "--skip")
    assert newest(place) == before  # nothing is switched
    assert {one["name"] for one in told["left_out"]} == {"rows", "deep", "made-elsewhere"}
    old, candidates = Library(place / "library"), Library(told["candidates"])
    assert told["candidates"] == f"{place / 'library'}-new"
    assert [(t["old"], t["new"], t["switched"]) for t in told["tasks"]] == [
        ("mood@2", "mood@1", None),
        ("tags@1", "tags@1", None),
    ]
    host = inlay.Host(str(made / "new"))
    for one in told["tasks"]:
        was, now = old.find(one["old"]).card, candidates.find(one["new"]).card
        assert was["data"] == now["data"]
        assert was["config"] | {"name": one["name"]} == now["config"]
        assert was["base"] != now["base"] == host.base.identity("+pooler" in now["base"])
        assert now["retrained_from"]["ref"] == one["old"]
        metric = one["metric"]
        for split in was["metrics"]:
            expected = [c["metrics"][split][metric] for c in (was, now)]
            assert [one[split]["old"], one[split]["new"]] == expected
            assert one[split]["difference"] == pytest.approx(expected[1] - expected[0])
        assert one["parameters"] == {"old": was["parameters"]["adapter"], "new": now["parameters"]["adapter"]}
        host.load(candidates.get(one["new"]), one["name"])
        # the oracle: the same run, trained by hand
        again = inlay.train(inlay.Host(str(made / "new")), inlay.Run(**now["config"]))
        assert again.metrics == now["metrics"]
    assert "test" in told["tasks"][1]
    assert "test" not in told["tasks"][0]


def test_what_is_trained_is_not_trained_again(made, place, monkeypatch):
    first = call(made, "mood")
    monkeypatch.setattr(Loop, "run", lambda self: pytest.fail("it trains again"))
    assert call(made, "mood") == first


def test_another_version_or_alias_can_be_asked_for(made, place):
    (one,) = call(made, "mood@prod")["tasks"]
    assert one["old"] == "mood@1"
    (two,) = call(made, "mood")["tasks"]  # other settings, so the candidate does not count
    assert (two["old"], two["new"]) == ("mood@2", "mood@2")


def test_changed_and_missing_data_is_noticed(made, place, monkeypatch):
    path = made / "mood.jsonl"
    kept = path.read_text(encoding="utf-8")
    try:
        path.write_text(kept.replace("film", "book", 1), encoding="utf-8")
        said = call(made, "mood", "tags", code=1)
        assert "mood: cannot be retrained: its data has changed since it was trained" in said
        path.unlink()
        said = call(made, "mood", "tags", code=1)
        assert "mood: cannot be retrained: " in said
        assert "there is no such file" in said
        told = call(made, "mood", "tags", "--skip")
        assert [one["name"] for one in told["tasks"]] == ["tags"]
    finally:
        path.write_text(kept, encoding="utf-8")


@pytest.mark.parametrize(("where", "name", "times"), [(Checkpoint, "save", 3), (Library, "put", 1)])
def test_killed_it_goes_on(made, place, monkeypatch, where, name, times):
    """Between two steps; and when one of two adapters is put into the candidates, the other not yet."""
    expected = call(made, "mood", "tags", "--to", str(place / "whole"))
    plain, calls = getattr(where, name), []

    def killed(self: Any, *arguments: Any, **more: Any) -> Any:
        found = plain(self, *arguments, **more)
        calls.append(1)
        if len(calls) == times:
            raise MemoryError("as good as killed")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(where, name, killed)
        command = ["retrain", "mood", "tags", "--base", str(made / "new"), "--save-every", "0"]
        assert isinstance(CliRunner().invoke(app, command).exception, MemoryError)
    assert "pass --resume to continue it, or --restart to start over" in call(made, "mood", "tags", code=1)
    found = call(made, "mood", "tags", "--resume")
    assert found["tasks"] == expected["tasks"]
    whole, mine = Library(place / "whole"), Library(found["candidates"])
    assert [e.sha256 for e in mine.list(all_versions=True)] == [e.sha256 for e in whole.list()]


def test_a_run_that_fails_is_told_and_the_others_stay(made, place, monkeypatch):
    from inlay.training.job import Job

    note = Job.note

    def failing(self: Job, loss: float, step: int) -> None:
        note(self, float("nan") if self.name == "mood" else loss, step)

    monkeypatch.setattr(Job, "note", failing)
    ran = CliRunner().invoke(app, ["retrain", "mood", "tags", "--base", str(made / "new"), "--switch", "--json"])
    assert ran.exit_code == 1
    mood, tags = json.loads(ran.stdout)["tasks"]
    assert "the loss is nan" in mood["problem"]
    assert (mood["new"], mood["switched"]) == (None, None)
    assert tags["switched"] == "tags@2"


# --- switching ----------------------------------------------------------------------------------------------------


def test_switching_and_the_way_back(made, place):
    before = newest(place)
    call(made, "mood", "tags")
    told = call(made, "mood", "tags", "--switch", "--alias", "prod")
    assert [one["switched"] for one in told["tasks"]] == ["mood@3", "tags@2"]
    library = Library(place / "library")
    assert newest(place) == {**before, "mood": "mood@3", "tags": "tags@2"}
    assert library.aliases("mood") == {"prod": 3, "next": 2}
    assert library.aliases("tags") == {}  # it had none, so it gets none
    assert library.find("mood").card["switched_from"]["ref"] == "mood@2"
    assert library.verify() == []
    host = inlay.Host(str(made / "new"))
    host.load(library.get("mood@prod"), "mood")
    again = call(made, "mood", "tags", "--switch", "--alias", "next")  # on the new base already
    assert again["tasks"] == []
    assert library.aliases("mood") == {"prod": 3, "next": 3}
    undone = call(made, "--all", "--undo")
    assert {one["name"]: one["newest"] for one in undone["tasks"]} == {"mood": "mood@2", "tags": "tags@1"}
    assert newest(place) == before
    assert library.aliases("mood") == {"prod": 1, "next": 2}
    assert call(made, "--all", "--undo")["tasks"] == []
    told = call(made, "mood", "--switch")  # and forth again, without training
    assert told["tasks"][0]["switched"] == "mood@4"


def test_only_the_better_are_switched(made, place, monkeypatch):
    losses = {"mood": 0.02, "tags": -0.1}
    monkeypatch.setattr(Change, "loss", property(lambda self: losses[self.old.name]))
    told = call(made, "mood", "tags", "--switch-better")
    assert [one["switched"] for one in told["tasks"]] == [None, "tags@2"]
    told = call(made, "mood", "--switch-better", "--tolerance", "0.02")
    assert told["tasks"][0]["switched"] == "mood@3"


@pytest.mark.parametrize(
    ("metric", "old", "new", "worse"),
    [("accuracy", 0.8, 0.75, 0.05), ("perplexity", 9.0, 8.0, -1.0), ("accuracy", float("nan"), 0.1, float("-inf"))],
)
def test_worse_depends_on_the_metric(made, metric, old, new, worse):
    def entry(value: float) -> Any:
        return inlay.library.cards.Entry("x", 1, "", 0, {"metric": metric, "metrics": {"validation": {metric: value}}})

    change = Change(entry(old), entry(new))
    assert change.loss == pytest.approx(worse)
    assert change.is_good(0.05) == (worse <= 0.05)
    assert Change(entry(old), None).loss is None
    assert not Change(entry(old), entry(float("nan"))).is_good(9)


def test_undo_refuses_what_it_cannot_take_back(made, place):
    call(made, "mood", "--switch")
    Library(place / "library").alias("mood", "fresh", 3)
    said = call(made, "mood", "tags", "--undo", code=1)
    assert "mood@fresh never pointed to another version" in said
    assert "tags: tags@1 was not put there by a switch" in said
    assert newest(place)["mood"] == "mood@3"  # nothing was undone


# --- usage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give NAMEs, or --all"),
        (["mood", "--all", "--base", "x"], "not both"),
        (["mood"], "--base is missing"),
        (["mood", "--base", "x", "--switch", "--switch-better"], "cannot be combined"),
        (["mood", "--base", "x", "--tolerance", "1"], "needs --switch-better"),
        (["mood", "--base", "x", "--alias", "prod"], "needs --switch"),
        (["mood", "--base", "x", "--undo"], "can only be combined with NAMEs"),
        (["mood", "--undo", "--to", "x"], "can only be combined with NAMEs"),
        (["mood", "--undo", "--skip"], "can only be combined with NAMEs"),
    ],
)
def test_usage(arguments, says):
    ran = CliRunner().invoke(app, ["retrain", *arguments])
    assert ran.exit_code == 2
    assert says in " ".join(ran.output.replace("│", " ").split())


def test_the_library_itself_is_no_place_for_candidates(made, place):
    said = call(made, "mood", "--to", str(place / "library"), code=1)
    assert "is the library itself" in said
    assert "mood is given twice" in call(made, "mood", "mood@1", code=1)
    assert candidates_of(Library(place / "library"), "owner/some-base-v1.5").endswith("library-some-base-v1.5")


def test_a_candidate_whose_card_says_no_learning_rate_is_done_already():
    """As those of AdapterBias were while that was 1e-3."""

    def entry(config: dict[str, Any]) -> Any:
        return SimpleNamespace(name="it", card={"base": "new", "data": "d", "config": config}, members=())

    config = {"data": "x.csv", "method": "adapterbias"}
    base = SimpleNamespace(identity=lambda pooler: "new")
    library = SimpleNamespace(list=lambda damaged: [entry(config)])
    for lr, done in ((1e-3, True), (3e-3, False)):
        old = SimpleNamespace(entry=entry(config), run=SimpleNamespace(written=lambda lr=lr: {**config, "lr": lr}))
        assert bool(finished(library, [old], base)) is done  # type: ignore[arg-type, list-item]
