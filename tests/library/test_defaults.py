"""What is not written in an old file means what it meant when it was written, whatever the defaults are today."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from safetensors import safe_open
from safetensors.torch import save

import inlay
from inlay import config
from inlay.bank.delta import parse
from inlay.errors import AdapterError, DamagedError
from inlay.library import card_text, cards, defaults
from inlay.library.library import Library
from inlay.registry import methods, tasks
from inlay.runs.run import Run

SPECS = ("houlsby:size=4", "lora:rank=2", "adapterbias", "adapterbias:l0=0.01", "diffprune", "diffprune:low=-0.5")


def today(registry: Any) -> dict[str, dict[str, Any]]:
    found = {name: dataclasses.fields(registry.find(name)) for name in registry.names()}
    own = {name: fields for name, fields in found.items() if name in registry._modules()}
    return {name: {field.name: field.default for field in fields if field.init} for name, fields in own.items()}


@pytest.mark.parametrize(("registry", "table"), [(methods, defaults.METHODS), (tasks, defaults.TASKS)])
def test_every_option_has_a_first_value(registry, table):
    """A new option needs a line in library/defaults.py: the value that does what was done before there was one.

    A method or task that is new needs none: there are no old files of it.
    """
    for name, options in today(registry).items():
        if name in table:
            assert options.keys() <= table[name].keys(), f"{name}: {sorted(options.keys() - table[name].keys())}"
        if registry is methods and name in table:
            changed = {key for key, value in options.items() if value != table[name][key]}
            assert changed == defaults.CHANGED_OPTIONS.get(name, set()), name


def test_every_setting_has_a_first_value():
    """So has a new setting of a run: a line in LATER; and one whose default changes is in CHANGED."""
    now = {name: field.default for name, field in Run.model_fields.items() if name != "data"}
    first = {**defaults.RUN, **defaults.LATER}
    assert now.keys() <= first.keys(), sorted(now.keys() - first.keys())
    assert not defaults.RUN.keys() & defaults.LATER.keys()
    assert {name for name, value in now.items() if value != first[name]} == defaults.CHANGED


def test_the_first_values_are_those_of_the_first_files():
    """They never change: this is what they were when format 1 was written."""
    folder = Path(__file__).parents[1] / "golden" / "format1" / "adapters"
    expected = json.loads((folder.parent / "expected.json").read_text())["adapters"]
    assert defaults.RUN["epochs"] == 5
    assert defaults.METHODS["diffprune"]["low"] == defaults.METHODS["adapterbias"]["low"] == -1.5
    for file, said in expected.items():
        with safe_open(folder / file, "pt") as opened:
            assert parse(json.loads(opened.metadata()["inlay"])["method"]) == parse(said["method"])


def change(monkeypatch: pytest.MonkeyPatch, cls: type[Any], **values: Any) -> None:
    """Give options of a method or task another default, as another version of Inlay would."""
    fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
    for name, value in values.items():
        monkeypatch.setattr(fields[name], "default", value)
    made = cls.__init__

    def init(self: Any, **given: Any) -> None:
        made(self, **{**values, **given})

    monkeypatch.setattr(cls, "__init__", init)


def in_format_1(adapter: inlay.Adapter) -> bytes:
    """What Inlay wrote before it wrote options in full: what differed from the defaults of that time."""
    keys = ("base", "seed", "head", "pool", "labels", "name", "task", "about")
    method = defaults.against_first(methods, parse(adapter.method))
    card = {"format": 1, "method": method, **{key: getattr(adapter, key) for key in keys}}
    return save(adapter.tensors, metadata={"inlay": json.dumps(card)})


def another(value: Any) -> Any:
    kinds = {bool: lambda v: not v, int: lambda v: v * 2, float: lambda v: v * 0.9 or 0.5}
    return kinds[type(value)](value) if type(value) in kinds else None


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_a_changed_default_changes_no_adapter(spec, old, monkeypatch):
    host = tiny.text_host("bert")
    host.add("x", spec, labels=["p", "q"])
    tiny.shake(host, "x", 5)
    adapter = host.adapter("x")
    want = host.predict([("x", "a good film")])[0]["score"]
    content = in_format_1(adapter) if old else adapter.content()
    before, fresh = parse(adapter.method), tiny.text_host("bert")
    changed = 0
    for field in dataclasses.fields(before):
        if not field.init or another(field.default) is None or field.name in ("mixout", "target", "high"):
            continue
        if field.name in before.moot:
            continue
        with monkeypatch.context() as patch:
            change(patch, type(before), **{field.name: another(field.default)})
            read = inlay.Adapter.of(content, "x")
            assert parse(read.method) == before, field.name
            fresh.load(read, "x")
            assert fresh.predict([("x", "a good film")])[0]["score"] == pytest.approx(want, abs=1e-5), field.name
            fresh.unload("x")
            again = inlay.Adapter.of(read.content(), "x")
            assert parse(again.method) == before
        changed += 1
    assert changed >= 2


def test_the_diffprune_of_the_first_files_keeps_its_gates(monkeypatch):
    """The defaults of gates are going to change."""
    folder = Path(__file__).parents[1] / "golden" / "format1"
    change(monkeypatch, methods.find("diffprune"), low=-0.1, high=1.1, temperature=2 / 3)
    change(monkeypatch, methods.find("adapterbias"), low=-0.1, high=1.1, temperature=2 / 3)
    expected = json.loads((folder / "expected.json").read_text())["adapters"]
    host = inlay.Host(str(folder / "base"), device="cpu")
    checked = 0
    for file, said in expected.items():
        if "diffprune" in said["method"] or "adapterbias" in said["method"]:
            host.load(inlay.Adapter.read(folder / "adapters" / file), "y")
            found = host.predict([("y", answer["text"]) for answer in said["answers"]])
            for one, other in zip(found, said["answers"], strict=True):
                assert one["scores"] == pytest.approx(other["scores"], abs=1e-5), file
            host.unload("y")
            checked += 1
    assert checked == 9


def test_without_l0_there_are_no_gates_whose_defaults_could_change():
    """Plain AdapterBias is what it was: its runs in old sweeps and checkpoints are those of today."""
    assert parse("adapterbias") == parse("adapterbias:low=-1.5,high=1.5,temperature=1,gate=5")
    assert defaults.restated({"data": "x", "method": "adapterbias"})["method"] == "adapterbias"
    assert Run(data="x", method="adapterbias:share=v", epochs=5).written()["method"] == "adapterbias:share=v"
    assert "low=-1.5" in defaults.restated({"data": "x", "method": "adapterbias:l0=0.01"})["method"]


def test_a_tasks_defaults_too(monkeypatch):
    host = tiny.text_host("bert")
    host.add("x", "lora", labels=["p", "q"], task="classification:temperature=2")
    adapter = host.adapter("x")
    contents = [in_format_1(adapter), adapter.content()]
    change(monkeypatch, tasks.find("classification"), long="windows")
    for content in contents:
        assert inlay.Adapter.of(content, "x").task == "classification:long=cut,temperature=2"


def test_cards_too(tmp_path, monkeypatch):
    library = Library(tmp_path)
    host = tiny.text_host("bert")
    host.add("x", "diffprune", labels=["p", "q"])
    library.put(host.adapter("x", finish=True))
    card = library.find("x").card
    assert card["method"] == "diffprune"
    assert "low=-1.5" in card["full"]["method"]
    old = {key: value for key, value in card.items() if key not in ("full", "digest")}
    change(monkeypatch, methods.find("diffprune"), low=-0.1)
    assert cards.method_of(card) == "diffprune:low=-1.5"
    assert cards.method_of(old) == "diffprune:low=-1.5,gate_lr=0"
    assert cards.task_of(card) == cards.task_of(old) == "classification"
    assert library.get("x").method == "diffprune:low=-1.5"
    assert library.verify() == []


def test_of_options_that_differ_from_the_spec_the_spec_decides(tmp_path):
    made = inlay.Adapter("lora:rank=2", "sha256:0", {})
    assert made.full == {"method": "lora:layers=all,mixout=0,mixout_unit=neuron,rank=2,alpha=16,sites=attn.q+attn.v"}
    text = made.content().replace(b"neuron,rank=2", b"neuron,rank=9")
    assert inlay.Adapter.of(text, "x").method == "lora:rank=2"
    other = made.content().replace(b"lora:layers", b"lore:layers")
    with pytest.raises(AdapterError, match="x cannot be used: it is a lora by its spec, and a lore by its options"):
        inlay.Adapter.of(other, "x")


def test_a_card_with_other_options_than_its_file_is_refused(tmp_path):
    library = Library(tmp_path)
    library.put(inlay.Adapter("lora:rank=2", "sha256:0", {}, name="x"))
    path = tmp_path / "adapters" / "x" / "1.json"
    card = json.loads(path.read_text())
    del card["digest"]
    card["full"]["method"] = card["full"]["method"].replace("alpha=16", "alpha=99")
    path.write_bytes(cards.encode(card, "x", 1))
    with pytest.raises(DamagedError, match="full is"):
        library.get("x")


def test_a_method_that_is_not_here_is_kept_as_it_is():
    made = inlay.Adapter("nobody:knows=1", "sha256:0", {}, task="nor:this=2")
    found = inlay.Adapter.of(made.content(), "x")
    assert (found.method, found.task) == ("nobody:knows=1", "nor:this=2")


def test_specs_in_full_say_the_same():
    for registry in (methods, tasks):
        for name in registry.names():
            made = registry.find(name)()
            text = config.full(name, made)
            assert len(text) > len(name)
            assert config.build(type(made), name, config.split_spec(text)[1]) == made
    made = parse("houlsby:size=4,share=2,norms=false,layers=top1+0")
    assert parse(config.full("houlsby", made)) == made


FIRST = {"choose_by": "score", "few_shot": False, "folds": 0}
"""What was done before there were these settings."""

# --- settings of runs -------------------------------------------------------------------------------------------


@pytest.fixture
def more_epochs(monkeypatch):
    """As if `epochs` had another default today, and gates too."""
    field = Run.model_fields["epochs"]
    monkeypatch.setattr(field, "default", 8)
    monkeypatch.setattr(defaults, "CHANGED", frozenset({"epochs"}))
    monkeypatch.setattr(defaults, "CHANGED_OPTIONS", {"diffprune": frozenset({"low", "gate_lr"})})
    change(monkeypatch, methods.find("diffprune"), low=-0.1)


def test_settings_say_what_differs_from_the_first_defaults(more_epochs):
    assert Run(data="x", epochs=8, method="diffprune", **FIRST).written() == {
        "data": "x",
        "epochs": 8,
        "method": "diffprune:low=-0.1,gate_lr=0.1",
    }
    assert Run(data="x", epochs=5, method="diffprune:l0=0", **FIRST).written() == {
        "data": "x",
        "method": "diffprune:l0=0,low=-0.1,gate_lr=0.1",
    }
    explicit = {"data": "x", "method": "diffprune:low=-1.5,gate_lr=0"}
    assert Run(**explicit, epochs=5, **FIRST).written() == explicit
    assert Run(data="x", epochs=5, method="lora:rank=8", **FIRST).written() == {"data": "x", "method": "lora:rank=8"}


def test_old_settings_run_as_they_did(more_epochs):
    restated = defaults.restated({"data": "x", "method": "diffprune"})
    assert restated == {"data": "x", "method": "diffprune:low=-1.5,gate_lr=0", "epochs": 5}
    assert defaults.restated({"data": "x", "epochs": 8}) == {"data": "x", "epochs": 8}
    command = card_text.train_command({"name": "t", "config": {"data": "x.csv", "method": "diffprune"}})
    assert command == "inlay train x.csv --name t --epochs 5 --method diffprune:low=-1.5,gate_lr=0"


FIRST_RATES = {"finetune": 5e-5, "diffprune": 5e-5}
"""Of methods whose first learning rate was not 1e-3."""


def test_every_method_whose_own_learning_rate_has_changed_is_known():
    now = {name: methods.find(name).learning_rate for name in defaults.METHODS}
    first = {name: FIRST_RATES.get(name, 1e-3) for name in now}
    assert {name: first[name] for name, rate in now.items() if rate != first[name]} == defaults.RATES


def test_settings_without_a_learning_rate_have_that_of_their_day():
    old = {"data": "x.csv", "method": "adapterbias:share=v"}
    assert defaults.restated(old)["lr"] == 1e-3
    assert defaults.restated({**old, "few_shot": True})["lr"] == 5e-4
    assert defaults.restated({**old, "lr": 0.5})["lr"] == 0.5
    assert "lr" not in defaults.restated({"data": "x.csv", "method": "lora"})
    assert "lr" not in defaults.restated({"data": "x.csv"})
    assert "--lr 0.001 " in card_text.train_command({"name": "t", "config": old}) + " "


def test_while_defaults_are_the_first_ones_settings_are_as_given():
    run = Run(data="x", method="lora:rank=8", epochs=3, seed=0, **FIRST)
    said = {"data": "x", "method": "lora:rank=8", "epochs": 3}
    assert run.config() == run.model_dump(exclude_defaults=True) == {**said, **FIRST}
    assert run.written() == said
    assert defaults.restated(run.written()) == run.config()
