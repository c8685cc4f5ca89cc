"""`inlay plan`'s numbers against the things themselves: a bank, a library, a base, a benchmark."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import tiny

import inlay
from inlay.bank.delta import parse
from inlay.base.shapes import sites_of
from inlay.bench import figures
from inlay.bench.figures import H200, Figures, products_of
from inlay.bench.plan import Question, plan
from inlay.bench.sizes import capacity, sizes_of
from inlay.runs.run import Run
from inlay.training.memory import run_bytes, slots_in

METHODS = [
    "houlsby:size=5",
    "houlsby:share=sublayers,size=12",
    "lora:rank=3",
    "adapterbias",
    "adapterbias:share=both,layers=top2",
    "bitfit",
    "norms",
    "frozen",
]
SMALL = {"rows": 4, "lengths": "short", "repeats": 1, "steps": 1, "warmup": 1}


def bank_bytes(host: inlay.Host) -> int:
    groups = host.forward.bank.groups.values()
    stacks = [stack for group in groups for stack in group.stacks.values()]
    weights = [slot.weights for slot in host.forward.bank.slots.values() if slot.weights is not None]
    own = [tensor for one in weights for tensor in one.tensors.values()]
    return sum(t.numel() * t.element_size() for t in (*stacks, *own))


@pytest.mark.thin(8)
@pytest.mark.parametrize("spec", METHODS)
@pytest.mark.parametrize("count", [1, 3, 4, 8])
def test_the_bank_has_the_bytes(spec: str, count: int):
    host = tiny.host()
    labels = 3
    for i in range(count):
        host.add(f"t{i}", spec, labels=labels, seed=i)
    assert sizes_of(parse(spec), host.base.sites, labels, 1).bank(count) == bank_bytes(host)


@pytest.mark.parametrize("spec", ["finetune", "finetune:top=1"])
def test_weight_level_adapters_do_not_stack(spec: str):
    host = tiny.host()
    for i in range(3):
        host.add(f"t{i}", spec, labels=2)
    assert sizes_of(parse(spec), host.base.sites, 2, 1).bank(3) == bank_bytes(host)


def test_a_pruned_adapter_is_resident_as_it_is_stored():
    host = tiny.host()
    host.add("t", "diffprune:target=0.05", labels=2)
    tiny.shake(host, "t")
    made = host.adapter("t", finish=True)
    host.unload("t")
    host.load(made)
    assert sizes_of(parse("diffprune:target=0.05"), host.base.sites, 2, 1).bank(1) == bank_bytes(host)


def test_room_for_adapters():
    sizes = sizes_of(parse("lora"), tiny.host().base.sites, 2, 1)
    assert [capacity(n) for n in (0, 1, 2, 3, 4, 7, 8)] == [2, 2, 4, 4, 8, 8, 16]
    for room in (0, sizes.bank(1) - 1, sizes.bank(1), 100 * sizes.entry, sizes.bank(1000)):
        most = sizes.most(room)
        assert sizes.bank(most) <= room < sizes.bank(most + 1)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def data(tmp_path: Path) -> str:
    file = tmp_path / "data.csv"
    words = ("good film", "bad soup", "fine book", "awful parcel")
    file.write_text("text,label\n" + "".join(f"the {words[i % 4]} {i % 9},label-0{i % 2}\n" for i in range(40)))
    return str(file)


@pytest.mark.full
@pytest.mark.parametrize(
    ("spec", "count"), [("lora", 100), ("houlsby:size=8", 4), ("adapterbias", 4), ("diffprune:target=0.05", 4)]
)
def test_a_library_has_the_bytes(spec: str, count: int, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # most of the time of writing a library
    host, library = tiny.text_host(), inlay.Library(tmp_path / "library")
    sites, epochs = host.base.sites, 2
    runs = [Run(data=data, method=spec, name=f"task-{i:04}", epochs=epochs, seed=i) for i in range(count)]
    inlay.train(host, runs, library=library)
    assert len(library.names()) == count
    sizes = sizes_of(parse(spec), sites, 2, epochs)
    found = plan(Question(count, parse(spec), epochs=epochs), "tiny", sites, H200)
    assert found["disk"]["bytes"] == count * (sizes.file + sizes.card)
    assert found["disk"]["bytes"] == pytest.approx(size_of(tmp_path / "library"), rel=0.05)
    half = inlay.Library(tmp_path / "half")
    for name in library.names():
        half.put(library.get(name).to("float16"))
    assert found["disk"]["bytes_fp16"] == pytest.approx(size_of(tmp_path / "half"), rel=0.05)
    assert found["disk"]["files"] == sum(file.is_file() for file in (tmp_path / "half").rglob("*"))


def test_full_fine_tuning_is_n_bases():
    sites = sites_of("bert-base")
    found = plan(Question(10, parse("houlsby"), rows=1000, tokens=32, epochs=3), "bert-base", sites, H200)
    full = found["finetuning"]
    assert full["parameters"] == 10 * 109_482_240
    assert full["disk_bytes"] == 10 * 4 * 109_482_240
    assert full["bytes_per_run"] == run_bytes(sites, parse("finetune"), 32, 64, 2) > 7 * 4 * 109_482_240
    assert found["base"] == {"name": "bert-base", "parameters": 109_482_240, "bytes": 2 * 109_482_240}
    assert found["adapter"]["parameters"] == 2_416_128
    as_method = plan(Question(10, parse("finetune")), "bert-base", sites, H200)
    assert as_method["training"]["hours"] == as_method["finetuning"]["hours"]
    assert as_method["serving"]["rows_per_second"] is None


def test_hours_are_tokens_by_speed():
    sites = sites_of("bert-base")
    found = plan(Question(1000, parse("houlsby"), rows=2000, tokens=16, epochs=3), "bert-base", sites, H200)
    training = found["training"]
    assert training["side_by_side"] == 64
    assert training["tokens"] == 1000 * 2000 * 16 * 3
    assert training["tokens_per_second"] == pytest.approx(64 * 1024 / 0.0805)  # the published step
    assert training["hours"] == pytest.approx(training["tokens"] / (64 * 1024 / 0.0805) / 3600)
    assert found["serving"]["rows_per_second"] == pytest.approx(1024 * 32 / 0.0161 / 16)
    assert found["finetuning"]["measured"] is False
    assert found["figures"]["notes"] == [
        "the speed of full fine-tuning is an estimate from the bare base's, not a measurement"
    ]


def test_speed_between_and_beyond_what_was_measured():
    assert H200.training(1) == pytest.approx(1024 / 0.0036)
    assert H200.training(16) == pytest.approx(16 * 1024 / 0.0217)
    between = 3.6 + (21.7 - 3.6) * 7 / 15
    assert H200.training(8) == pytest.approx(8 * 1024 / between * 1000)
    assert H200.training(64) < H200.training(80) < 1.05 * H200.training(64)
    alone = replace(H200, step_ms={1: 4.0})
    assert alone.training(10) == pytest.approx(alone.training(1))


def test_another_base_is_scaled_and_says_so():
    large, base = sites_of("bert-large"), sites_of("bert-base")
    assert products_of(base) == H200.products == 12 * 12 * 768**2
    found = plan(Question(100, parse("lora")), "bert-large", large, H200)
    ratio = products_of(base) / products_of(large)
    runs = found["training"]["side_by_side"]
    assert found["training"]["tokens_per_second"] == pytest.approx(H200.training(runs) * ratio)
    assert "measured on bert-base" in found["figures"]["notes"][0]
    assert "measured with houlsby; lora is taken to be as fast" in found["figures"]["notes"][1]


def test_what_does_not_fit_says_what_would():
    sites = sites_of("bert-base")
    question = Question(1000, parse("houlsby"), memory=8 * 10**9)
    found = plan(question, "bert-base", sites, H200)
    resident = found["serving"]["resident"]
    assert not found["fits"]
    assert 0 < resident < 1000
    sizes = sizes_of(parse("houlsby"), sites, 2, 5)
    assert found["serving"]["bytes"] == sizes.bank(resident) < 8 * 10**9 < found["serving"]["bytes_for_all"]
    paging, device, smaller = found["would_fit"]
    assert f"--resident {resident} " in paging
    assert "GB, or several" in device
    spec = smaller.split()[1].rstrip(",")
    assert plan(replace(question, method=parse(spec)), "bert-base", sites, H200)["fits"]
    needed = float(device.split()[3]) * 10**9
    assert plan(replace(question, memory=int(1.01 * needed)), "bert-base", sites, H200)["fits"]
    assert not plan(replace(question, memory=int(0.97 * needed)), "bert-base", sites, H200)["fits"]


def test_a_device_that_cannot_train_one_run():
    found = plan(Question(1, parse("houlsby"), memory=10**9), "bert-base", sites_of("bert-base"), H200)
    assert not found["fits"]
    assert found["training"]["side_by_side"] == 0
    assert "to train even one run" in found["would_fit"][-1]


def test_runs_side_by_side_are_those_of_the_loop():
    assert slots_in(10**12, 10**9, "cuda", 1000) == 64
    assert slots_in(10 * 10**9, 10**9, "cpu", 1000) == 5
    assert slots_in(10**9, 10**9, "cpu", 1000) == 0


@pytest.fixture
def base(tmp_path: Path) -> str:
    return tiny.save_text_model(tmp_path / "base")


def test_a_measurement_is_used_from_then_on(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))
    sites = sites_of(base)
    assert figures.known(base, "lora") == H200
    said: list[str] = []
    measured = figures.measure(base, None, sites, "lora", 4, said.append, **SMALL)
    assert len(said) == 4
    assert set(measured.step_ms) == ({1, 4} if measured.device == "cpu" else {1})
    assert measured.finetune_measured
    assert measured.products == products_of(sites)
    assert min(measured.training(1), measured.finetuning(), measured.serving()) > 0
    file = figures.keep(measured)
    assert file is not None
    assert figures.known(base, "lora") == measured
    assert figures.known("bert-base", "houlsby") == measured  # this machine's, scaled, before another's
    other = replace(measured, method="bitfit", when="2999-01-01")
    figures.keep(other)
    assert figures.known(base, "lora") == measured
    assert figures.known(base, "bitfit") == other
    assert plan(Question(10, parse("lora")), base, sites, measured)["finetuning"]["measured"]
    idle, busy = (plan(Question(1, parse("lora")), base, sites, replace(measured, load=n)) for n in (0.1, 2.0))
    assert idle["figures"]["notes"] == []
    assert busy["figures"]["notes"] == ["the machine was busy (load 2.0 a core): measure again when it is idle"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:40],
        lambda text: "[]",
        lambda text: text.replace('"finetune_ms": 6', '"finetune_ms": -6'),
        lambda text: text.replace('"step_ms"', '"steps"'),
        lambda text: json.dumps({**json.loads(text), "step_ms": {}}),
    ],
)
def test_a_damaged_measurement_is_passed_over(damage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path))
    here = figures.machine(figures.Settings("train").settled())["device"]
    mine: Figures = replace(H200, machine=here, source="this machine")
    file = figures.keep(mine)
    assert file is not None
    assert figures.known("bert-base", "houlsby") == mine
    file.write_text(damage(file.read_text()))
    assert figures.known("bert-base", "houlsby") == H200


def test_without_a_cache_nothing_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INLAY_CACHE", "off")
    assert figures.keep(H200) is None
    assert figures.known("bert-base", "houlsby") == H200
