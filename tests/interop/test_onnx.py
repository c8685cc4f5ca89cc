"""One graph of many tasks: ONNX Runtime and the host agree, row by row, in batches the exporter has not seen."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny
import torch

import inlay
from inlay.base import arch
from inlay.data.batch import Batch
from inlay.errors import AdapterError, ArchError, BaseError, InlayError, RunError, SlotError
from inlay.heads.head import ROWS, TOKENS
from inlay.interop import check
from inlay.interop import onnx as exporting
from inlay.interop.check import padded
from inlay.interop.graph import Graph
from inlay.tasks import NOTHING

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sms": ("houlsby:size=8", {"labels": ["ham", "spam"], "pool": "cls"}),
    "tone": ("adapterbias", {"labels": 9, "pool": "mean", "head": "tanh2", "task": "classification:temperature=2.0"}),
    "ner": ("lora:rank=3,sites=attn.q+ffn.out", {"labels": ["O", "B-X", "I-X", "B-Y", "I-Y"], "task": "tagging"}),
    "stars": ("bitfit", {"labels": ["value"], "pool": "last", "task": "regression:mean=3.0,scale=2.0"}),
    "ask": ("norms", {"labels": ["start", "end"], "task": "qa"}),
    "mixed": ("frozen", {"labels": 4, "pool": "pooler"}),
}
"""Every method that stacks, every way of pooling, and heads of many widths."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "topic": ("houlsby:size=5,parallel=true,depth=2,inner_norm=true", {"labels": 9, "pool": "mean", "head": "tanh2"}),
    "gated": ("adapterbias:l0=0.01", {"labels": 2, "pool": "cls", "head": "mlp"}),
    "shared": ("houlsby:size=8,share=2,norms=true", {"labels": 2, "pool": "mean"}),
    "top": ("houlsby:size=8,layers=top1", {"labels": 2, "pool": "cls"}),
    "pooler": ("lora:sites=pooler+attn.v", {"labels": 2, "pool": "pooler"}),
    "normed": ("houlsby:size=6,where=ffn,normed=true", {"labels": 2, "pool": "cls"}),
    "v": ("adapterbias:share=v", {"labels": 2, "pool": "cls"}),
}


def add(host: inlay.Host, tasks: dict[str, tuple[str, dict[str, Any]]]) -> None:
    for seed, (name, (method, options)) in enumerate(tasks.items()):
        host.add(name, method, seed=seed, **options)
        tiny.shake(host, name, seed)


def rows(count: int, longest: int, words: int, seed: int = 0) -> Batch:
    """Rows of random tokens and types; one has the longest length."""
    random = torch.Generator().manual_seed(seed)
    lengths = [longest, *torch.randint(1, longest + 1, (count - 1,), generator=random).tolist()]
    ids, types = (
        [torch.randint(low, high, (n,), generator=random).tolist() for n in lengths]
        for low, high in ((5, words), (0, 2))
    )
    return Batch.of(ids, types)


def assert_rows(found: dict[str, torch.Tensor], expected: list[torch.Tensor], allowed: float = 1e-4) -> None:
    """Every number of every row, and nothing where there is nothing."""
    for row, want in enumerate(expected):
        for name, values in found.items():
            mine = name == ("logits" if want.dim() == 1 else "token_logits")
            own = values[row].clone()
            if mine and want.dim() == 1:
                assert (own[: len(want)] - want).abs().max() <= allowed
                own[: len(want)] = NOTHING
            elif mine:
                assert (own[: len(want), : want.shape[1]] - want).abs().max() <= allowed
                own[: len(want), : want.shape[1]] = NOTHING
            assert (own == NOTHING).all()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A graph of all tasks, beside adapters that are not in it."""
    host = tiny.text_host("bert", num_hidden_layers=1)
    add(host, {"before": ("houlsby:size=8", {"labels": 2})} | TASKS | {"after": ("lora", {"labels": 30})})
    path = tmp_path_factory.mktemp("onnx") / "tasks.onnx"
    done = exporting.export(host, list(TASKS), path)
    return SimpleNamespace(host=host, path=path, done=done, session=onnxruntime.InferenceSession(str(path)))


# --- the traced module, on every architecture ----------------------------------------------------------------------


@pytest.mark.parametrize("name", arch.names())
def test_graph_is_the_host(name):
    host = tiny.host(name)
    has_pooler = host.base.sites.at("pooler") is not None
    for key, (method, options) in (TASKS | VARIANTS).items():
        pool = "cls" if options.get("pool") == "pooler" and not has_pooler else options.get("pool", "auto")
        if name in ("llama", "modernbert") and method == "bitfit":
            continue  # they have no biases
        if host.base.sites.single_slot and ("attn.q" in method or method == "bitfit"):
            continue  # refused, see below
        if (not has_pooler and "pooler" in method) or (
            host.base.sites.arch.norm_place == "before" and "normed" in method
        ):
            continue
        add(host, {key: (method, {**options, "pool": pool})})
    graph = Graph(host, host.names).eval()
    batch = rows(3 * len(host.names), 9, tiny.VOCABULARY)
    if not graph.takes_types:
        batch = Batch(batch.ids, batch.lengths)
    ids = [i % len(host.names) for i in range(len(batch.lengths))]
    inputs = {k: v for k, v in padded(batch).items() if k != "token_type_ids" or graph.takes_types}
    with torch.no_grad():
        found = graph(**inputs, task_id=torch.tensor(ids))
        expected = host.logits(batch, [host.names[i] for i in ids])
        wrong = graph(**inputs, task_id=torch.tensor(ids).roll(1))
    outputs = {ROWS: "logits", TOKENS: "token_logits"}
    assert_rows({outputs[place]: t for place, t in zip(graph.outputs, found, strict=True)}, expected, 1e-5)
    assert (found[0] - wrong[0]).abs().max() > 0.01  # a control: it does matter whose row it is


def test_nothing_of_others_is_in_a_graph():
    host = tiny.host()
    add(host, {name: ("houlsby:size=8", {"labels": 2, "pool": "cls"}) for name in "abcdef"})
    add(host, {"g": ("houlsby:size=8,layers=0", {"labels": 2, "pool": "cls"}), "h": ("lora", {"labels": 2})})
    sizes = {}
    for names in ("a", "ab", "abh", "g"):
        graph = Graph(host, list(names))
        sizes[names] = sum(t.numel() for n, t in graph.adapters.named_buffers() if t.is_floating_point())
    padding = 6 * 16 + 6  # of two labels to eight: six columns and six biases
    counts = {name: sum(t.numel() for t in host.read(name).values()) + padding for name in "agh"}
    assert sizes == {"a": counts["a"], "ab": 2 * counts["a"], "abh": 2 * counts["a"] + counts["h"], "g": counts["g"]}


# --- the file -------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(("count", "longest"), [(1, 1), (1, 64), (2, 3), (10, 17), (33, 8), (5, 64)])
def test_runtime_agrees_with_the_host(made, count, longest):
    batch = rows(count, longest, len(made.host.base.tokenizer), seed=count)
    ids = torch.randint(len(TASKS), (count,), generator=torch.Generator().manual_seed(longest)).tolist()
    found = exporting.run(made.session, batch, ids)
    assert {name: values.shape[:-1] for name, values in found.items()} == {
        "logits": (count,),
        "token_logits": (count, longest),
    }
    with torch.no_grad():
        assert_rows(found, made.host.logits(batch, [list(TASKS)[i] for i in ids]))


@pytest.mark.full
def test_every_task_on_one_row(made):
    batch = rows(1, 11, len(made.host.base.tokenizer)).take([0] * len(TASKS))
    found = exporting.run(made.session, batch, list(range(len(TASKS))))
    with torch.no_grad():
        assert_rows(found, made.host.logits(batch, list(TASKS)))
        others = made.host.logits(batch, [list(TASKS)[i - 1] for i in range(len(TASKS))])
    with pytest.raises(AssertionError):
        assert_rows(found, others)


@pytest.mark.full
def test_names_and_shapes(made):
    shapes = {one.name: (one.type, one.shape) for one in (*made.session.get_inputs(), *made.session.get_outputs())}
    assert shapes == {
        "input_ids": ("tensor(int64)", ["rows", "length"]),
        "attention_mask": ("tensor(int64)", ["rows", "length"]),
        "token_type_ids": ("tensor(int64)", ["rows", "length"]),
        "task_id": ("tensor(int64)", ["rows"]),
        "logits": ("tensor(float)", ["rows", 9]),
        "token_logits": ("tensor(float)", ["rows", "length", 5]),
    }


@pytest.mark.full
def test_metadata(made):
    found = made.session.get_modelmeta().custom_metadata_map
    assert found["inlay"] == inlay.__version__
    assert found["fingerprint"] == made.host.base.fingerprint
    assert json.loads(found["max_length"]) == 64
    tasks = json.loads(found["tasks"])
    assert [task["name"] for task in tasks] == list(TASKS)
    assert [task["id"] for task in tasks] == list(range(len(TASKS)))
    assert tasks[0] == {
        "id": 0,
        "name": "sms",
        "task": "classification",
        "labels": ["ham", "spam"],
        "output": "logits",
        "max_length": 64,
    }
    assert tasks[1]["task"] == "classification:temperature=2"
    assert [task["name"] for task in tasks if task["output"] == "token_logits"] == ["ner", "ask"]
    assert list(made.done.tasks) == tasks


@pytest.mark.full
def test_base_is_there_once(made):
    """Weights are those of the base and of the adapters, and no more; a table of words is there once."""
    graph = onnx.load(made.path).graph
    held = sum(len(one.raw_data) for one in graph.initializer)
    assert held <= made.done.base_bytes + made.done.adapter_bytes + 4096
    adapters = sum(t.numel() * 4 for name in TASKS for t in made.host.read(name).values())
    assert made.done.adapter_bytes < 2 * adapters  # sizes are padded to buckets, which is much for tiny ones
    assert held > made.done.base_bytes
    words = len(made.host.base.tokenizer)
    assert [one.dims for one in graph.initializer].count([words, 16]) == 1


@pytest.mark.full
def test_file_says_nothing_of_this_machine(made):
    content = made.path.read_bytes()
    for place in (Path(__file__).parent.parent, Path(torch.__file__).parent.parent, Path(inlay.__file__).parent):
        assert str(place).encode() not in content
    onnx.checker.check_model(str(made.path), full_check=True)


@pytest.mark.full
def test_tokenizer_is_beside_it(made):
    from tokenizers import Tokenizer

    assert set(made.done.files) == {file.name for file in made.path.parent.iterdir()}
    assert made.done.files[0] == "tasks.onnx"
    loaded = Tokenizer.from_file(str(made.path.parent / "tokenizer.json"))
    text = "the film was awful , i love the book " * 20
    assert loaded.encode(text).ids == made.host.base.tokenizer(text, verbose=False)["input_ids"]  # it does not cut
    assert made.done.difference <= 1e-5


@pytest.mark.full
@pytest.mark.parametrize("number", [len(TASKS), -len(TASKS) - 1])
def test_task_id_out_of_range_is_an_error(made, number):
    with pytest.raises(Exception, match=r"out of (data )?bounds|INVALID_ARGUMENT"):
        exporting.run(made.session, rows(1, 4, 20), [number])


@pytest.mark.full
def test_negative_task_id_counts_from_the_end(made):
    batch = rows(1, 4, 20).take([0, 0])
    last, same = exporting.run(made.session, batch, [-1, len(TASKS) - 1])["logits"]
    assert torch.equal(last, same)


@pytest.mark.full
def test_weights_in_a_file_of_their_own(tmp_path):
    host = tiny.host("roberta", num_hidden_layers=1, type_vocab_size=1)
    add(host, {"ner": ("lora", {"labels": 3, "task": "tagging"})})
    done = exporting.export(host, ["ner"], tmp_path / "a.onnx", external_data=True, tokenizer=False, opset=20)
    assert done.files == ("a.onnx", "a.onnx.data")
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in done.files:
        (tmp_path / file).replace(moved / file)
    assert exporting.compare(host, ["ner"], moved / "a.onnx") <= 1e-5
    session = onnxruntime.InferenceSession(str(moved / "a.onnx"))
    assert [one.name for one in session.get_inputs()] == [
        "input_ids",
        "attention_mask",
        "task_id",
    ]  # one type: no input
    assert [one.name for one in session.get_outputs()] == ["token_logits"]
    assert onnx.load(moved / "a.onnx", load_external_data=False).opset_import[0].version == 20


@pytest.mark.slow
@pytest.mark.parametrize("name", arch.names())
def test_every_architecture_exports(name, tmp_path):
    host = tiny.host(name)
    methods = ("houlsby:size=8", "adapterbias", "lora:sites=attn.v+ffn.out", "norms")
    kinds: list[dict[str, Any]] = [{"pool": "cls"}, {"pool": "mean"}, {"pool": "last"}, {"task": "tagging"}]
    add(host, {method: (method, {"labels": 3, **kind}) for method, kind in zip(methods, kinds, strict=True)})
    exporting.export(host, host.names, tmp_path / "a.onnx", tokenizer=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"))
    for count, longest in ((1, 1), (7, 30)):
        batch = rows(count, longest, tiny.VOCABULARY)
        if "token_type_ids" not in [one.name for one in session.get_inputs()]:
            batch = Batch(batch.ids, batch.lengths)
        ids = [i % 4 for i in range(count)]
        with torch.no_grad():
            assert_rows(exporting.run(session, batch, ids), host.logits(batch, [host.names[i] for i in ids]))


# --- what is refused ------------------------------------------------------------------------------------------------


def refused(host: inlay.Host, names: list[str], path: Path, error: type[InlayError], match: str, **how: Any) -> None:
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    with pytest.raises(error, match=match):
        exporting.export(host, names, path, **how)
    assert before == (sorted(path.parent.iterdir()) if path.parent.is_dir() else [])


def test_refusals(tmp_path):
    host = tiny.text_host()
    add(
        host,
        {"a": ("lora", {"labels": 2}), "full": ("finetune", {"labels": 2}), "sparse": ("diffprune", {"labels": 2})},
    )
    host.add("words", "lora", task="mlm", labels=["word"])
    host.add("bare", "lora")
    path = tmp_path / "x.onnx"
    for name in ("full", "sparse"):
        refused(host, ["a", name], path, AdapterError, f"{name}.*own weights.*inlay export merged")
    refused(host, ["words"], path, AdapterError, "mlm gives no answers")
    refused(host, ["bare"], path, SlotError, "has no task")
    refused(host, ["nobody"], path, SlotError, "no adapter named 'nobody'")
    refused(host, ["a", "a"], path, AdapterError, "each adapter once")
    refused(host, [], path, AdapterError, "no adapter to export")
    refused(host, ["a"], tmp_path / "no" / "x.onnx", RunError, "there is no folder")
    refused(host, ["a"], tmp_path, RunError, "this is a folder")
    refused(host, ["a"], path, RunError, "opset 17 is not valid: expected 18 or more", opset=17)
    path.write_text("kept")
    refused(host, ["a"], path, RunError, "already exists")
    assert path.read_text() == "kept"


def test_needs_plain_weights(tmp_path):
    half = inlay.Host(tiny.model("bert").to(torch.bfloat16))
    half.add("a", "lora", labels=2)
    refused(half, ["a"], tmp_path / "x.onnx", BaseError, "bfloat16 on cpu.*dtype=torch.float32")


def test_shared_keys_are_refused(tmp_path):
    host = tiny.host("deberta-v2")
    add(host, {"a": ("lora", {"labels": 2})})
    refused(host, ["a"], tmp_path / "x.onnx", AdapterError, "attn.k, attn.q.*not rows")


def test_a_model_that_cannot_be_traced(tmp_path, monkeypatch):
    def cannot(*_: Any, **__: Any) -> None:
        raise ValueError("step 1 of 3") from TypeError("no such operator\nand much more")

    host = tiny.host()
    add(host, {"a": ("norms", {"labels": 2})})
    monkeypatch.setattr(torch.onnx, "export", cannot)
    refused(host, ["a"], tmp_path / "x.onnx", ArchError, "cannot turn bert into a graph of opset 18: no such operator$")


def test_a_graph_that_the_runtime_cannot_load(tmp_path):
    host = tiny.host()
    add(host, {"a": ("norms", {"labels": 2})})
    (tmp_path / "x.onnx").write_text("nonsense")
    with pytest.raises(InlayError, match="cannot load the graph"):
        exporting.compare(host, ["a"], tmp_path / "x.onnx")


def test_a_graph_that_differs_is_not_kept(tmp_path, monkeypatch):
    host = tiny.host(num_hidden_layers=1)
    add(host, {"a": ("lora", {"labels": 2})})
    monkeypatch.setattr(exporting, "_trace", lambda *_: SimpleNamespace(save=lambda path, **_: path.write_text("x")))
    monkeypatch.setattr(exporting, "_describe", lambda *_: None)
    monkeypatch.setattr(exporting, "compare", lambda *_: 2e-4)
    refused(host, ["a"], tmp_path / "x.onnx", InlayError, "differs from the host by 2.0e-04", tokenizer=False)
    monkeypatch.setattr(exporting, "compare", lambda *_: float("nan"))
    refused(host, ["a"], tmp_path / "x.onnx", InlayError, "nothing was written", tokenizer=False)


def test_another_tokenizer_is_not_overwritten(tmp_path, monkeypatch):
    host = tiny.text_host(num_hidden_layers=1)
    add(host, {"a": ("lora", {"labels": 2})})
    monkeypatch.setattr(exporting, "_trace", lambda *_: SimpleNamespace(save=lambda path, **_: path.write_text("x")))
    monkeypatch.setattr(exporting, "_describe", lambda *_: None)
    monkeypatch.setattr(exporting, "compare", lambda *_: 0.0)
    (tmp_path / "tokenizer.json").write_text("mine")
    refused(host, ["a"], tmp_path / "x.onnx", RunError, "tokenizer.json already exists")
    assert (tmp_path / "tokenizer.json").read_text() == "mine"
    exporting.export(host, ["a"], tmp_path / "x.onnx", tokenizer=False)
    exporting.export(host, ["a"], tmp_path / "x.onnx", overwrite=True)
    assert (tmp_path / "tokenizer.json").read_text() != "mine"
    assert {file.name for file in tmp_path.iterdir()} == {"x.onnx", "tokenizer.json", "tokenizer_config.json"}


def test_missing_packages_are_named(tmp_path, monkeypatch):
    host = tiny.host(num_hidden_layers=1)
    add(host, {"a": ("lora", {"labels": 2})})

    def missing(name: str) -> Any:
        raise ImportError(name, name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    refused(host, ["a"], tmp_path / "x.onnx", RunError, r"ONNX needs onnx; pip install 'inlay\[onnx\]'")


# --- the check itself ------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_check_notices_another_adapter(made):
    """A control: the check fails where the host's adapter is another than the graph's."""
    host = tiny.text_host("bert", num_hidden_layers=1)
    add(host, TASKS)
    assert exporting.compare(host, list(TASKS), made.path) > 1e-2  # other seeds, since one was added before them
    assert exporting.compare(made.host, list(TASKS), made.path) <= 1e-5


def test_largest_difference():
    one = torch.tensor([1.0, -200.0])
    assert check.largest(one, one) == 0
    assert check.largest(one + 0.02, one) == pytest.approx(1e-4, rel=1e-2)  # a share of the largest
    assert check.largest(one / 200 + 0.02, one / 200) == pytest.approx(0.02, rel=1e-2)
    assert check.largest(one[:1], one) == float("inf")
    assert check.largest(one * float("nan"), one) == float("inf")


def test_padded_as_a_tokenizer_does():
    words = tiny.tokenizer()
    texts = ["the film", "a very bad book !", "no"]
    expected = words(texts, ["it was", "you", "we love it"], padding=True, return_tensors="np")
    plain = words(texts, ["it was", "you", "we love it"])
    found = padded(Batch.of(plain["input_ids"], plain["token_type_ids"]))
    for name, tensor in found.items():
        assert np.array_equal(tensor.numpy(), expected[name])
