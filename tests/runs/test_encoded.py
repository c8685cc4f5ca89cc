"""Rows are made once and shared, within a process and through the disk, and nothing else changes."""

from __future__ import annotations

import gc
import os
import threading
from array import array
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tiny
from training import work

import inlay
from inlay.base import caches
from inlay.runs import encoded, packed, store
from inlay.runs.encoded import Encoder
from inlay.runs.prepare import Prepared, prepare
from inlay.tasks import Example, Row, parse
from inlay.tasks.classification import Classification

TEXTS = [Example(row["text"], None, (), row["label"]) for row in work.texts(40)]
LONG = [Example("the soup was very good . " * 9, None, (), "pos"), Example("bad " * 30, None, (), "neg")]
PAIRS = [Example(row["a"], row["b"], (), row["label"]) for row in work.pairs(40)]
TAGS = [Example("", None, tuple(row["tokens"]), tuple(row["tags"])) for row in work.entities(40)]
CONTEXT = "ana meets bob in oslo for soup , and it was very good . the parcel came in june ."
QUESTIONS = [Example("where is bob " * (i % 7), CONTEXT * (1 + i % 3), (), [("oslo", 17)]) for i in range(40)]
CASES: dict[str, tuple[str, list[Example]]] = {
    "classification": ("classification", TEXTS + LONG),
    "windows": ("classification:long=windows", TEXTS + LONG),
    "pairs": ("classification", PAIRS),
    "multilabel": ("multilabel", [replace(e, target=(e.target,) if i % 3 else ()) for i, e in enumerate(TEXTS)]),
    "regression": ("regression", [replace(e, target=i / 3) for i, e in enumerate(TEXTS)]),
    "tagging": ("tagging", [*TAGS, Example("", None, TAGS[0].words * 5, TAGS[0].target * 5)]),
    "qa": ("qa:stride=4", QUESTIONS),
    "mlm": ("mlm", [replace(e, target="") for e in TEXTS + LONG]),
    "unlabelled": ("classification", [replace(e, target=None) for e in TEXTS]),
}
every_case = pytest.mark.parametrize(("spec", "examples"), CASES.values(), ids=CASES)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A cache of one's own, which keeps small data too."""
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(encoded, "LARGE", 10)
    forget()
    return tmp_path / "cache" / "inlay" / "rows"


def forget() -> None:
    """What a new process begins with."""
    encoded._shared.clear()


def encoder(spec: str, examples: list[Example], limit: int = 24, **changes: Any) -> Encoder:
    task = parse(spec)
    labels = ("neg", "pos") if examples[0].target is None else task.labels(examples)
    return replace(Encoder(task, tiny.tokenizer(), labels, limit), **changes)


def plain(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(list(r.ids), r.types and list(r.types), r.target, r.example, r.aux) for r in rows]


def silence(monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the tokenizer was asked")

    monkeypatch.setattr(type(tiny.tokenizer()), "__call__", refuse)


def prepared(**settings: Any) -> Prepared:
    return prepare(work.run(work.texts(40), **settings), tiny.text_host())


# --- rows are what the task makes ------------------------------------------------------------------------------


@every_case
def test_rows_and_lengths_are_those_of_the_task_and_come_back_from_disk(monkeypatch, spec, examples):
    one = encoder(spec, examples)
    expected = plain(one.task.encode(one.tokenizer, examples, one.labels, one.limit))
    pairs = [e.pair for e in examples] if examples[0].pair is not None else None
    whole = [len(ids) for ids in one.tokenizer([e.shown() for e in examples], pairs)["input_ids"]]
    assert plain(one.rows(examples)) == expected
    assert one.lengths(examples) == whole
    forget()
    silence(monkeypatch)
    assert plain(encoder(spec, examples).rows(examples)) == expected
    assert encoder(spec, examples).lengths(examples) == whole


@every_case
def test_some_of_a_pool_are_what_they_are_alone(spec, examples):
    chosen = examples[::-3]
    one = encoder(spec, examples)
    assert plain(one.rows(chosen, examples)) == plain(one.task.encode(one.tokenizer, chosen, one.labels, one.limit))
    assert one.lengths(chosen, examples) == one.lengths(chosen)


def test_a_case_has_what_could_go_wrong():
    many = {name: encoder(*case).rows(case[1]) for name, case in CASES.items()}
    assert all(len(many[name]) > len(CASES[name][1]) for name in ("windows", "tagging", "qa", "mlm"))
    assert {type(row.aux) for row in many["tagging"]} == {packed.Tuples}


# --- within a process ------------------------------------------------------------------------------------------


def test_runs_with_the_same_data_have_the_same_rows(monkeypatch):
    calls = []
    encode = Classification.encode
    monkeypatch.setattr(Classification, "encode", lambda self, *a: calls.append(1) or encode(self, *a))
    test = [{**row, "label": "pos"} for row in work.texts(12, 5)]
    monkeypatch.setattr("inlay.runs.inputs.open_source", lambda *_, **__: prepare_rows(test))
    runs = [prepared(method=m, lr=lr, test="t.csv") for m, lr in (("bitfit", 1e-3), ("lora:rank=2", 1e-4))]
    for split in ("train", "validation", "test"):
        assert getattr(runs[0], split).rows is getattr(runs[1], split).rows, split
    assert len(calls) == 2  # of the file, and of the test file


def prepare_rows(rows: list[dict[str, Any]]) -> Any:
    from inlay.runs.inputs import _Rows

    return _Rows("test", rows)


def test_another_seed_splits_the_same_ids(monkeypatch):
    first = prepared(seed=0)
    silence(monkeypatch)
    second = prepared(seed=1)
    ids = [{id(row.ids) for part in (p.train, p.validation) for row in part.rows} for p in (first, second)]
    assert ids[0] == ids[1]
    assert [row.ids for row in first.train.rows] != [row.ids for row in second.train.rows]


def test_rows_that_nobody_has_are_gone():
    one = prepared(pretrain_on_text=True)
    assert encoded._shared
    del one
    gc.collect()
    assert not encoded._shared


def test_nobody_can_write_into_rows_of_others():
    row = prepared().train.rows[0]
    assert isinstance(row.ids, memoryview)
    with pytest.raises(TypeError):
        row.ids[0] = 7  # type: ignore[index]


def test_a_task_from_outside_is_encoded_every_time(folder):
    class Mine(Classification):
        """Its code may change."""

    one = replace(encoder("classification", TEXTS), task=Mine())
    assert one.rows(TEXTS) is not one.rows(TEXTS)
    assert plain(one.rows(TEXTS[:5], TEXTS)) == plain(encoder("classification", TEXTS).rows(TEXTS[:5]))
    assert one.lengths(TEXTS[:5], TEXTS) == encoder("classification", TEXTS).lengths(TEXTS[:5])
    assert not folder.exists()


def test_a_tokenizer_that_cannot_be_told_apart_is_asked_every_time(folder):
    class Slow:
        def __call__(self, *a: Any, **k: Any) -> Any:
            return tiny.tokenizer()(*a, **k)

    one = encoder("classification", TEXTS, tokenizer=Slow())
    assert plain(one.rows(TEXTS)) == plain(encoder("classification", TEXTS[:9] + TEXTS[9:]).rows(TEXTS))
    assert encoded.fingerprint(Slow()) == ""


# --- what makes a difference -----------------------------------------------------------------------------------


def other_tokenizer() -> Any:
    made = tiny.tokenizer()
    made.add_tokens(["parcels"])
    return made


def without_types() -> Any:
    made = tiny.tokenizer()
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


def cut_at_the_left() -> Any:
    made = tiny.tokenizer()
    made.truncation_side = "left"
    return made


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 23},
        {"labels": ("pos", "neg")},
        {"labels": ("neg", "pos", "x")},
        {"task": parse("classification:long=windows")},
        {"task": parse("mlm")},
        {"tokenizer": other_tokenizer()},
        {"tokenizer": without_types()},
        {"tokenizer": cut_at_the_left()},
    ],
    ids=str,
)
def test_another_setting_is_another_key(folder, change):
    one = encoder("classification", TEXTS)
    rows = one.rows(TEXTS)
    assert replace(one, **change, _keys={}).rows(TEXTS) is not rows
    assert len(list(folder.glob("*"))) == 2


@pytest.mark.parametrize(
    "change",
    [{"text": "another"}, {"pair": "another"}, {"target": "neg"}, {"words": ("a",)}],
    ids=str,
)
def test_another_example_is_another_key(folder, change):
    one = encoder("classification", TEXTS)
    assert TEXTS[0].target == "pos"
    one.rows(TEXTS)
    one.rows([replace(TEXTS[0], **change), *TEXTS[1:]])
    one.rows(TEXTS[::-1])
    one.rows(TEXTS[:-1])
    assert len(list(folder.glob("*"))) == 4


def test_what_encoding_does_not_read_makes_no_difference():
    one = encoder("classification", TEXTS)
    rows = one.rows(TEXTS)
    one.tokenizer("a call", truncation=True, max_length=7, padding="max_length")  # which the tokenizer remembers
    warmer = replace(one, task=parse("classification:temperature=2"), _keys={})
    assert warmer.rows([replace(e, id="x", place="elsewhere:7") for e in TEXTS]) is rows


OTHER = {
    "max_length": 9, "long": "windows", "temperature": 2.0, "cutoff": 0.3, "mean": 1.0, "scale": 2.0, "stride": 9,
    "longest": 5, "no_answer": True, "share": 0.5,
}  # fmt: skip


@every_case
def test_options_that_are_not_in_the_key_change_no_row(spec, examples):
    one = encoder(spec, examples)
    rows = plain(one.task.encode(one.tokenizer, examples, one.labels, one.limit))
    assert one.task.encode_options is not None
    for name in {f.name for f in fields(one.task)} - set(one.task.encode_options):
        task = replace(one.task, **{name: OTHER[name]})
        assert plain(task.encode(one.tokenizer, examples, one.labels, one.limit)) == rows, name
        assert task.encode_key == one.task.encode_key


# --- on disk ---------------------------------------------------------------------------------------------------


def test_a_file_is_safetensors(folder):
    rows = encoder(*CASES["tagging"]).rows(TAGS)
    (file,) = folder.glob("*.safetensors")
    tensors = safetensors.torch.load_file(file)
    assert tensors["ids"].tolist() == [i for row in rows for i in row.ids]
    assert tensors["aux:list:2"].view(-1, 2).tolist() == [list(at) for row in rows for at in row.aux]
    assert (folder.stat().st_mode & 0o077) == 0


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _flip(at: float) -> Any:
    def flip(data: bytes) -> bytes:
        i = int(at * len(data)) if at < 1 else int(at)
        return data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]

    return flip


@pytest.mark.parametrize(
    "damage",
    [_cut, _flip(0.9), _flip(0.5), _flip(0), _flip(7), *(_flip(i) for i in range(10, 400, 13)), lambda d: b"",
     lambda d: d[:4], lambda d: b"x" * 50, lambda d: d + b"\0"],
)  # fmt: skip
def test_a_damaged_file_is_made_anew(folder, damage):
    one = encoder("classification", TEXTS)
    expected = plain(one.rows(TEXTS))
    (file,) = folder.glob("*.safetensors")
    good = file.read_bytes()
    file.write_bytes(damage(good))
    forget()
    assert plain(one.rows(TEXTS)) == expected
    assert file.read_bytes() == good


def test_writers_and_readers_at_once_do_each_other_no_harm(folder):
    arrays = {"a": array("i", range(50_000)), "b": array("B", bytes(999)), "empty": array("q")}
    store.write("rows", "k", arrays)
    seen: list[bool] = []

    def write() -> None:
        for _ in range(20):
            store.write("rows", "k", arrays)

    def read() -> None:
        for _ in range(20):
            found = store.read("rows", "k")
            seen.append(found is not None and {n: v.tolist() for n, v in found.items()} == plain_arrays)

    plain_arrays = {name: a.tolist() for name, a in arrays.items()}
    threads = [threading.Thread(target=do) for do in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 40
    assert [file.name for file in folder.iterdir()] == ["k.safetensors"]


def test_small_data_and_a_cache_that_is_off_stay_in_memory(folder, monkeypatch, tmp_path):
    one = encoder("classification", TEXTS)
    one.rows(TEXTS[:9])
    assert not folder.exists()
    monkeypatch.setenv("INLAY_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    assert one.rows(TEXTS) is one.rows(list(TEXTS))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_used_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INLAY_CACHE", str(tmp_path / "file"))
    one = encoder("classification", TEXTS)
    assert len(one.rows(TEXTS)) == len(TEXTS)


def test_the_platform_has_a_folder_for_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("INLAY_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert caches.folder("rows") == tmp_path / "inlay" / "rows"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert caches.folder("rows") == tmp_path / ".cache" / "inlay" / "rows"
    monkeypatch.setattr("sys.platform", "darwin")
    assert caches.folder("rows") == tmp_path / "Library" / "Caches" / "inlay" / "rows"


def test_what_was_not_used_for_longest_goes(folder, monkeypatch):
    data = {"a": array("B", bytes(1000))}
    for i, name in enumerate("abc"):
        store.write("rows", name, data)
        os.utime(folder / f"{name}.safetensors", (100 + i, 100 + i))
    (folder / "dead.part").write_bytes(b"x")
    (folder / "alive.part").write_bytes(b"x")
    os.utime(folder / "dead.part", (100, 100))
    kept = store.read("rows", "a")  # used now
    monkeypatch.setattr(store, "ROOM", 3 * (folder / "a.safetensors").stat().st_size)
    store.write("rows", "d", data)
    assert {file.stem for file in folder.glob("*.safetensors")} == {"a", "c", "d"}
    assert [file.name for file in folder.glob("*.part")] == ["alive.part"]
    monkeypatch.setattr(store, "ROOM", 999)
    store.write("rows", "e", data)
    assert not (folder / "e.safetensors").exists()  # larger than all there is
    store.write("rows", "f", {"a": array("B", b"1")})
    assert kept is not None
    assert kept["a"].tolist() == [0] * 1000  # its file is gone, what was read of it is not


@pytest.mark.parametrize(
    "row",
    [
        Row([1], target="a word"),
        Row([1], target=True),
        Row([1], target=[1, 2.0]),
        Row([1], aux=[(1, 2), (3,)]),
        Row([1], aux=[()]),
        Row([1], aux={"a": 1}),
        Row([1], target=1 << 70),
        Row([1 << 40]),
        Row([1], types=[300]),
    ],
    ids=str,
)
def test_a_row_of_another_form_is_left_as_it_is(row):
    assert packed.pack([row]) is None


def test_forms_of_rows_come_back():
    for rows in (
        [Row([1, 2], None, 3, 0, [1 << 40]), Row([3], None, -1, 1, [])],
        [Row([1], [0], 0.1, 0, []), Row([3, 4], [0, 1], 1e300, 1, [])],
        [Row([1], None, (1, 2), 5, [(1, 2, 3)]), Row([2], None, (3, 4), 5, [])],
        [],
    ):
        arrays = packed.pack(rows)
        assert arrays is not None
        assert plain(packed.unpack(arrays)) == plain(rows)
    mixed = packed.pack([Row([1], None), Row([2, 3], [0, 1])])  # none are zeros
    assert mixed is not None
    assert plain(packed.unpack(mixed)) == plain([Row([1], [0]), Row([2, 3], [0, 1])])


# --- training --------------------------------------------------------------------------------------------------

RUNS = [
    work.run(work.texts(40), "houlsby:size=4", seed=1, epochs=1, pretrain_on_text=True),
    work.run(work.texts(40), "houlsby:size=4,layers=top1", seed=2, epochs=1, dropout=False),
    work.run(work.entities(40), "bitfit", seed=3, epochs=1, task="tagging"),
    work.run(work.topics(40), "lora:rank=2", seed=4, epochs=1, task="multilabel"),
]


@pytest.mark.full
def test_training_is_the_same_to_the_bit_with_any_rows(monkeypatch, folder):
    fresh = inlay.train(work.host(), RUNS)
    assert list(folder.iterdir())
    forget()
    with monkeypatch.context() as patch:
        silence(patch)
        from_disk = inlay.train(work.host(), RUNS)
    forget()
    monkeypatch.setenv("INLAY_CACHE", "off")
    monkeypatch.setattr(packed, "pack", lambda rows: None)
    lists = inlay.train(work.host(), RUNS)
    for a, b, c in zip(fresh, from_disk, lists, strict=True):
        assert a.ok
        work.assert_identical(b, a)
        work.assert_identical(c, a)


def test_a_run_goes_on_with_rows_from_disk(tmp_path):
    steps = []

    def stop(told: dict[str, Any]) -> None:
        if told["event"] == "step":
            steps.append(told["step"])
            if len(steps) == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inlay.train(work.host(), RUNS[0], checkpoint=tmp_path / "at", callbacks=[stop])
    forget()
    resumed = inlay.train(work.host(), RUNS[0], checkpoint=tmp_path / "at", resume=True)
    work.assert_identical(resumed, inlay.train(work.host(), RUNS[0]))
