"""LoRA of peft gives here what it gives there, and ours gives there what it gives here: both run, both compared."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers as t
from safetensors.torch import load_file, save_file

import inlay
from inlay.errors import AdapterError
from inlay.interop import peft as ours
from inlay.interop.exchange import without_head

peft = pytest.importorskip("peft")

ROWS = [row.tolist() for row in tiny.rows_of(tiny.batch(4, seed=3))]
CLASSES = {
    None: t.AutoModel,
    "SEQ_CLS": t.AutoModelForSequenceClassification,
    "TOKEN_CLS": t.AutoModelForTokenClassification,
    "QUESTION_ANS": t.AutoModelForQuestionAnswering,
}
PROJECTIONS = {
    "bert": ["query", "value"],
    "roberta": ["query", "key", "output.dense"],
    "xlm-roberta": ["query", "intermediate.dense"],
    "electra": ["key"],
    "distilbert": ["q_lin", "lin1", "out_lin"],
    "mpnet": ["attn.q", "attn.o"],
    "deberta-v2": ["query_proj", "value_proj"],
    "albert": ["query", "ffn", "ffn_output"],
    "modernbert": ["Wqkv", "mlp.Wo"],
    "gpt2": ["c_attn", "c_proj"],
    "llama": ["q_proj", "gate_proj"],
    "qwen2": ["v_proj", "down_proj"],
}
LAYER = "encoder.layer"


def case(arch: str, task: str | None = None, labels: int = 3, **config: Any) -> dict[str, Any]:
    config = {"r": 4, "lora_alpha": 6, "target_modules": PROJECTIONS[arch], **config}
    return {"arch": arch, "task": task, "labels": labels, "config": config}


CASES = {
    **{f"{arch} alone": case(arch) for arch in PROJECTIONS},
    **{f"{arch} rows": case(arch, "SEQ_CLS") for arch in PROJECTIONS if arch not in ("modernbert", "deberta-v2")},
    **{f"{arch} tokens": case(arch, "TOKEN_CLS") for arch in PROJECTIONS if arch != "modernbert"},
    **{f"{arch} spans": case(arch, "QUESTION_ANS", 2) for arch in ("bert", "roberta", "distilbert")},
    "deberta-v2 rows": case("deberta-v2", "SEQ_CLS", modules_to_save=["pooler", "classifier"]),
    "bert with its pooler": case("bert", "SEQ_CLS", modules_to_save=["pooler", "classifier"]),
    "albert with its pooler": case("albert", "SEQ_CLS", modules_to_save=["pooler", "classifier"]),
    "regression": case("bert", "SEQ_CLS", 1),
    "everything linear": case("bert", "SEQ_CLS", target_modules="all-linear"),
    "the pooler alone": case("bert", "SEQ_CLS", target_modules=["pooler.dense"]),
    "an expression": case("bert", target_modules=r".*layer\.[02]\.attention\.(self\.(query|key)|output\.dense)"),
    "some layers": case("bert", "SEQ_CLS", layers_to_transform=[0, 2]),
    "one layer": case("roberta", layers_to_transform=1, layers_pattern="layer"),
    "square root": case("bert", use_rslora=True),
    "negative": case("bert", lora_alpha=-3),
    "no scale": case("bert", lora_alpha=0, alpha_pattern={"value": 5}),
    "ranks": case("bert", "SEQ_CLS", rank_pattern={"value": 9, f"{LAYER}.1.attention.self.query": 2}),
    "scales": case("roberta", alpha_pattern={"query": 1, r"layer\.2\.attention\.output\.dense": 30}),
    "ranks and scales": case("bert", rank_pattern={"^bert.*": 1, "query": 8}, alpha_pattern={"query": 2.5}),
    "ranks, square root": case("bert", use_rslora=True, rank_pattern={"query": 7}, alpha_pattern={"value": 3}),
    "different sites": case("bert", target_modules=[f"{LAYER}.0.attention.self.query", f"{LAYER}.2.output.dense"]),
    "fused, ranks": case("gpt2", rank_pattern={"c_attn": 2}),
}


def load_base(model: Any, base: Any) -> Any:
    """A model with a head around a base's weights."""
    inner = getattr(model, base.base_model_prefix, model)
    inner.load_state_dict({k: v for k, v in base.state_dict().items() if k in inner.state_dict()})
    return model.eval()


def around(arch: str, task: str | None, labels: int, seed: int = 1) -> Any:
    """A model of the class that a task has."""
    base = tiny.model(arch)
    config = copy.deepcopy(base.config)
    config.num_labels = labels
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        return load_base(CLASSES[task].from_config(config), base)


def wrapped(arch: str, task: str | None, labels: int, config: dict[str, Any]) -> Any:
    """A peft model with random numbers in all that trains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = peft.LoraConfig(task_type=task, init_lora_weights=False, **config)
        model = peft.get_peft_model(around(arch, task, labels), settings).eval()
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in (p for p in model.parameters() if p.requires_grad):
            p += torch.randn(p.shape, generator=random) * 0.2
    return model


def run(model: Any) -> list[torch.Tensor]:
    """Every row alone."""
    found = []
    for row in ROWS:
        with torch.no_grad():
            out = model(input_ids=torch.tensor([row]))
        if "start_logits" in out:
            found.append(torch.stack([out.start_logits[0], out.end_logits[0]], -1))
        else:
            found.append(out.logits[0] if "logits" in out else out.last_hidden_state[0])
    return found


def run_here(host: inlay.Host, name: str | None) -> list[torch.Tensor]:
    batch = inlay.Batch.of(ROWS)
    with torch.no_grad():
        if name is not None and host.labels(name):
            return host.logits(batch, [name] * len(ROWS))
        return host.hidden(batch, [name] * len(ROWS)).rows()


def saved(model: Any, folder: Path, **how: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, **how)
    return folder


def loaded(folder: Path, arch: str, task: str | None, labels: int) -> Any:
    """A written folder, in peft; a weight that is missing or left over is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return peft.PeftModel.from_pretrained(around(arch, task, labels, seed=9), folder).eval()


def assert_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.shape == y.shape
        assert (x - y).abs().max() <= 1e-5


@pytest.mark.thin(14)
@pytest.mark.parametrize("name", CASES)
def test_theirs_here_and_back(name, tmp_path):
    one = CASES[name]
    arch, task, labels = one["arch"], one["task"], one["labels"]
    theirs = wrapped(arch, task, labels, one["config"])
    folder = saved(theirs, tmp_path / "theirs")
    assert ours.recognises(folder)
    host = inlay.Host(tiny.model(arch))
    adapter = ours.read(folder, host.base)
    host.load(adapter, "a")
    assert_same(run_here(host, "a"), run(theirs))
    moved = host.hidden(inlay.Batch.of(ROWS), ["a"] * 4).states - host.hidden(inlay.Batch.of(ROWS), [None] * 4).states
    assert moved.abs().max() > 0.01 or "pooler alone" in name, "equality of nothing says nothing"
    ours.write(adapter, host.base, tmp_path / "back")
    assert_same(run(loaded(tmp_path / "back", arch, task, labels)), run(theirs))


def test_what_the_adapter_is_called_and_answers():
    adapter = read_case("regression")
    assert (adapter.task, adapter.labels, adapter.head, adapter.pool) == ("regression", ("value",), "linear", "pooler")
    adapter = read_case("bert spans")
    assert (adapter.task, adapter.labels, adapter.pool) == ("qa", ("start", "end"), "tokens")
    adapter = read_case("bert tokens")
    assert (adapter.task, adapter.labels) == ("tagging", ("0", "1", "2"))
    assert adapter.method == "lora:rank=4,alpha=6"
    assert read_case("square root").method == "lora:rank=4,alpha=12"
    assert read_case("some layers").method == "lora:layers=0+2,rank=4,alpha=6"
    assert read_case("roberta rows").head == "tanh2"
    assert read_case("distilbert rows").head == "relu2"
    assert read_case("bert with its pooler").pool == "cls"
    assert read_case("bert alone").head is None


def read_case(name: str) -> inlay.Adapter:
    import tempfile

    one = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        saved(wrapped(one["arch"], one["task"], one["labels"], one["config"]), Path(folder))
        return ours.read(Path(folder), inlay.Host(tiny.model(one["arch"])).base)


OURS = {
    "defaults": ("bert", "lora", {}, None),
    "every site": ("bert", "lora:rank=3,alpha=5,sites=attn.q+attn.k+attn.v+attn.out+ffn.in+ffn.out+pooler", {}, None),
    "both outputs": ("bert", "lora:sites=attn.out+ffn.out", {"labels": 3, "pool": "pooler"}, "SEQ_CLS"),
    "one output": ("bert", "lora:sites=ffn.out,layers=top2", {"labels": 3, "pool": "pooler"}, "SEQ_CLS"),
    "its own pooler": ("bert", "lora", {"labels": 3, "head": "tanh2", "pool": "cls"}, "SEQ_CLS"),
    "tags": ("roberta", "lora:layers=1", {"labels": 4, "pool": "tokens"}, "TOKEN_CLS"),
    "all of it": ("roberta", "lora:sites=attn.out+ffn.in+ffn.out", {"labels": 3, "head": "tanh2"}, "SEQ_CLS"),
    "questions": ("distilbert", "lora", {"labels": ["start", "end"], "task": "qa"}, "QUESTION_ANS"),
    "fused, a part": ("gpt2", "lora:rank=2,sites=attn.q", {}, None),
    "fused": ("gpt2", "lora:rank=2,alpha=3,sites=attn.q+attn.v+attn.out", {"labels": 3, "pool": "tokens"}, "TOKEN_CLS"),
    "fused, another": ("modernbert", "lora:sites=attn.k+attn.v+ffn.in", {}, None),
    "deberta": ("deberta-v2", "lora", {"labels": 2, "head": "mlp"}, "SEQ_CLS"),
}


@pytest.mark.parametrize("name", OURS)
def test_ours_there(name, tmp_path):
    arch, spec, how, task = OURS[name]
    host = inlay.Host(tiny.model(arch))
    host.add("a", spec, **how)
    tiny.shake(host, "a")
    ours.write(host.adapter("a"), host.base, tmp_path)
    there = loaded(tmp_path, arch, task, len(host.labels("a")) or 2)
    assert_same(run(there), run_here(host, "a"))
    trained = {key.split(".lora_")[0] for key, _ in there.named_parameters() if ".lora_" in key}
    written = {key.split(".lora_")[0] for key in load_file(tmp_path / ours.WEIGHTS) if ".lora_" in key}
    assert trained == written, "target_modules must name what is adapted and nothing else"


def test_calibration_and_the_scale_of_a_regression_are_part_of_the_written_head(tmp_path):
    host = tiny.text_host("bert")
    host.add("a", "lora", labels=3, pool="pooler", task="classification:temperature=2.5")
    host.add("b", "lora", labels=["value"], pool="pooler", task="regression:mean=40,scale=7")
    ids = inlay.Batch.of(ROWS)
    for name in "ab":
        tiny.shake(host, name)
        ours.write(host.adapter(name), host.base, tmp_path / name)
        host.load(ours.read(tmp_path / name, host.base), f"{name} again")
    one, again = host.predict([("a", "a fine film"), ("a again", "a fine film")])
    assert one["score"] == pytest.approx(again["score"], abs=1e-5)
    one, again = host.predict([("b", "a fine film"), ("b again", "a fine film")])
    assert one["value"] == pytest.approx(again["value"], abs=1e-4)
    assert not torch.allclose(host.logits(ids, ["a"] * 4)[0], host.logits(ids, ["a again"] * 4)[0], atol=1e-2)


def test_labels_travel_in_the_models_config(tmp_path):
    host = inlay.Host(tiny.model("bert"))
    for name, task in (("one", "classification"), ("many", "multilabel")):
        host.add(name, "lora", labels=["no", "yes", "perhaps"], pool="pooler", task=task)
        ours.write(host.adapter(name), host.base, tmp_path / name)
        back = ours.read(tmp_path / name, host.base)
        assert (back.labels, back.task) == (("no", "yes", "perhaps"), task)
        config = t.AutoConfig.from_pretrained(tmp_path / name / ours.MODEL_CONFIG)
        assert config.id2label == {0: "no", 1: "yes", 2: "perhaps"}


def test_transformers_own_auto_classes_load_a_written_directory(tmp_path):
    tiny.model("bert").save_pretrained(tmp_path / "base")
    host = inlay.Host(str(tmp_path / "base"))
    host.add("a", "lora", labels=["no", "yes", "perhaps"], pool="pooler")
    tiny.shake(host, "a")
    ours.write(host.adapter("a"), host.base, tmp_path / "a")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = t.AutoModelForSequenceClassification.from_pretrained(tmp_path / "a", num_labels=3).eval()
    assert_same(run(model), run_here(host, "a"))


def test_label_names_of_the_base_are_used_if_they_fit(tmp_path):
    saved(wrapped("bert", "SEQ_CLS", 3, CASES["bert rows"]["config"]), tmp_path)
    base = inlay.Host(tiny.model("bert", id2label={0: "x", 1: "y", 2: "z"}, label2id={"x": 0, "y": 1, "z": 2})).base
    assert ours.read(tmp_path, base).labels == ("x", "y", "z")
    base = inlay.Host(tiny.model("bert", id2label={0: "x", 1: "y"}, label2id={"x": 0, "y": 1})).base
    assert ours.read(tmp_path, base).labels == ("0", "1", "2")


def test_half_precision_stays_half(tmp_path):
    host = inlay.Host(tiny.model("bert"))
    host.add("a", "lora")
    tiny.shake(host, "a")
    half = {key: tensor.half() for key, tensor in host.adapter("a").tensors.items()}
    ours.write(dataclasses.replace(host.adapter("a"), tensors=half), host.base, tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / ours.WEIGHTS).values()} == {torch.float16}
    back = ours.read(tmp_path, host.base)
    assert all(torch.equal(back.tensors[key], tensor.float()) for key, tensor in half.items())


def test_numbers_too_large_for_half_precision_are_an_error(tmp_path):
    host = inlay.Host(tiny.model("bert"))
    host.add("a", "lora", labels=["value"], pool="pooler", task="regression:mean=1e9")
    half = {key: tensor.half() for key, tensor in host.adapter("a").tensors.items()}
    with pytest.raises(AdapterError, match=r"classifier\.bias has numbers too large for torch\.float16"):
        ours.write(dataclasses.replace(host.adapter("a"), tensors=half), host.base, tmp_path)
    assert not list(tmp_path.iterdir())


def test_torchs_own_format_is_read_too(tmp_path):
    config = CASES["bert rows"]["config"]
    saved(wrapped("bert", "SEQ_CLS", 3, config), tmp_path / "safe")
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / ours.CONFIG).write_bytes((tmp_path / "safe" / ours.CONFIG).read_bytes())
    torch.save(load_file(tmp_path / "safe" / ours.WEIGHTS), folder / ours.PICKLED)
    base = inlay.Host(tiny.model("bert")).base
    one, other = ours.read(tmp_path / "safe", base), ours.read(folder, base)
    assert one.method == other.method
    assert all(torch.equal(tensor, other.tensors[key]) for key, tensor in one.tensors.items())


# what cannot be represented


@pytest.fixture
def base() -> Any:
    return inlay.Host(tiny.model("bert")).base


@pytest.fixture
def folder(tmp_path) -> Path:
    """A good directory, to be spoilt."""
    return saved(wrapped("bert", "SEQ_CLS", 3, CASES["bert rows"]["config"]), tmp_path / "theirs")


def change(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / ours.CONFIG).read_text())
    (folder / ours.CONFIG).write_text(json.dumps({**config, **settings}))


def change_weights(folder: Path, **more: Any) -> None:
    weights = load_file(folder / ours.WEIGHTS)
    for key, value in more.items():
        key = next(k for k in [*weights, key] if k.endswith(key))
        if value is None:
            del weights[key]
        else:
            weights[key] = (value(weights[key]) if callable(value) else value).contiguous()
    save_file(weights, folder / ours.WEIGHTS)


@pytest.mark.thin(10)
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; Inlay reads LORA"),
        ({"peft_type": ["LORA"]}, "Inlay reads LORA"),
        ({"use_dora": True}, "use_dora=True cannot be represented: DoRA"),
        ({"bias": "all"}, "bias=all also trains biases"),
        ({"bias": "lora_only"}, "bias=lora_only"),
        ({"lora_bias": True}, "its matrices have a bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa changes the base"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights=loftq"),
        ({"init_lora_weights": ["x"]}, "init_lora_weights"),
        ({"trainable_token_indices": [1, 2]}, "embeddings of tokens"),
        ({"layer_replication": [[0, 2]]}, "repeats layers"),
        ({"target_parameters": ["x"]}, "no projection"),
        ({"alora_invocation_tokens": [1]}, "some tokens only"),
        ({"task_type": "CAUSAL_LM"}, "task_type=CAUSAL_LM has a head that Inlay does not support"),
        ({"task_type": ["SEQ_CLS"]}, "has a head that Inlay does not support"),
        ({"task_type": "TOKEN_CLS", "use_something_new": 3}, "'use_something_new' is not known"),
        ({"task_type": "QUESTION_ANS"}, "classifier.bias, classifier.weight is not a head for QuestionAnswering"),
        ({"task_type": None, "auto_mapping": None}, "may be the head for"),
        ({"r": 5}, "has rank 4, but adapter_config.json says 5"),
        ({"r": "four"}, "r is 'four', not a number"),
        ({"r": 0}, "r=0 is not valid"),
        ({"lora_alpha": None}, "lora_alpha is None, not a number"),
        ({"lora_alpha": 1e999}, "lora_alpha is inf, not a number"),
        ({"rank_pattern": {"query": 9}}, "has rank 4, but adapter_config.json says 9"),
        ({"rank_pattern": {"(": 9}}, "which is not valid"),
        ({"rank_pattern": [1]}, "not a table of at most"),
        ({"rank_pattern": {str(i): 4 for i in range(5000)}}, "not a table of at most"),
        ({"rank_pattern": {"(.*)*(.*)*(.*)*[0-9]{9}": 4}}, "may take for ever to match"),
        ({"alpha_pattern": {".*.*.*.*.*.*.*.*.*x": 4}}, "may take for ever to match"),
        ({"alpha_pattern": {"query": "x"}}, "not a number"),
    ],
)
def test_settings_that_cannot_be_represented_are_refused(folder, base, settings, reason):
    change(folder, **settings)
    with pytest.raises(AdapterError, match=reason):
        ours.read(folder, base)


@pytest.mark.thin(4)
@pytest.mark.parametrize("odd", [[], [1], {}, {"a": {}}, "", "x", 0, -1, 10**400, 1.5, True, None], ids=repr)
def test_odd_settings_never_end_in_anything_but_a_named_error(folder, base, odd):
    config = json.loads((folder / ours.CONFIG).read_text())
    good = load_file(folder / ours.WEIGHTS)
    for key in config:
        (folder / ours.CONFIG).write_text(json.dumps({**config, key: odd}))
        ours.recognises(folder)
        try:
            tensors = ours.read(folder, base).tensors
        except AdapterError:
            continue
        down = good["base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"]
        assert torch.equal(tensors["layers.0.attn.q.down"], down.T), key


@pytest.mark.thin(6)
@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"0.attention.self.query.lora_A.weight": lambda x: x[:, :-1]}, r"matrices are \(4, 15\)"),
        ({"0.attention.self.query.lora_B.weight": lambda x: x[:, :-1].clone()}, r"and \(16, 3\), but"),
        ({"0.attention.self.query.lora_A.weight": lambda x: x[0]}, "matrices are"),
        ({"0.attention.self.query.lora_A.weight": None}, "lacks bert.encoder.layer.0.attention.self.query.lora_A"),
        ({"0.attention.self.query.lora_A.weight": lambda x: x * float("nan")}, "not finite"),
        ({"classifier.weight": lambda x: x + float("inf")}, "not finite"),
        ({"0.attention.self.query.lora_A.weight": lambda x: x.long()}, "not plain floating-point"),
        ({"classifier.weight": lambda x: x[:, :-1].clone()}, r"head.weight is \(15, 3\)"),
        ({"classifier.weight": lambda x: x[0]}, "head"),
        ({"classifier.bias": None}, "is not a head for SequenceClassification"),
        ({"classifier.weight": None, "classifier.bias": None}, "its weights have no head"),
        ({"base_model.model.bert.encoder.layer.9.attention.self.query.lora_A.weight": torch.ones(4, 16)}, "no place"),
        ({"base_model.model.bert.embeddings.word_embeddings.weight": torch.ones(60, 16)}, "no place in an adapter"),
        ({"base_model.model.bert.embeddings.word_embeddings.lora_embedding_A": torch.ones(4, 60)}, "no place"),
        ({"base_model.model.classifier.lora_A.weight": torch.ones(4, 16)}, "no place"),
        ({"base_model.model.../../../../etc/passwd": torch.ones(2)}, "no place"),
        ({"something.else": torch.ones(2)}, "expected names that begin with base_model.model."),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder, base, weights, reason):
    change_weights(folder, **weights)
    with pytest.raises(AdapterError, match=reason):
        ours.read(folder, base)


def test_a_base_of_another_shape_or_kind_is_refused(folder):
    with pytest.raises(AdapterError, match="but"):
        ours.read(folder, inlay.Host(tiny.model("bert", hidden_size=24)).base)
    with pytest.raises(AdapterError, match="no place in an adapter"):
        ours.read(folder, inlay.Host(tiny.model("bert", num_hidden_layers=2)).base)
    with pytest.raises(AdapterError, match="holds no LoRA matrix"):
        ours.read(folder, inlay.Host(tiny.model("distilbert")).base)


def test_a_head_that_needs_a_pooler_needs_one_in_the_base(folder):
    model = tiny.model("bert")
    model.pooler = None
    with pytest.raises(AdapterError, match="has no pooler"):
        ours.read(folder, inlay.Host(model).base)


class Evil:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


class Large:
    """Takes memory when it is unpickled, also by torch's restricted unpickler."""

    def __init__(self, call, *arguments):
        self.call = (call, arguments)

    def __reduce__(self):
        return self.call


def zipped(parts: dict[str, bytes], how: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def torch_file(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_files_that_are_not_what_they_seem_are_refused(folder, base, tmp_path):
    good = (folder / ours.WEIGHTS).read_bytes()
    witness = tmp_path / "code ran"
    evil = pickle.dumps(Evil(witness))
    header = struct.pack("<Q", 1 << 62)
    spoilt = [
        good[:-10],
        good[: len(good) // 2],
        b"",
        b"1234",
        evil,
        torch_file({"a": torch.ones(2)}),
        header + good[8:],
        struct.pack("<Q", 60_000_000) + good[8:],
        good + b"more",
        bytes([good[0] ^ 1]) + good[1:],
    ]
    for content in spoilt:
        (folder / ours.WEIGHTS).write_bytes(content)
        with pytest.raises(AdapterError, match="is not a safetensors file"):
            ours.read(folder, base)
    (folder / ours.WEIGHTS).unlink()
    with pytest.raises(AdapterError, match=r"neither adapter_model\.safetensors nor"):
        ours.read(folder, base)
    bomb = zipped({"archive/data.pkl": b"\0" * 50_000_000}, zipfile.ZIP_DEFLATED)
    wide = torch.ones(1).expand(1 << 40)
    disguised = {
        evil: "not a file of torch's zip format",
        b"": "not a file of torch's zip format",
        bomb: "has compressed parts",
        zipped({"archive/data.pkl": evil, "archive/version": b"3"}, zipfile.ZIP_STORED): "without running code",
        torch_file({"a": Evil(witness)}): "without running code",
        torch_file([torch.ones(2)]): "holds a list",
        torch_file({"a": 3}): "something other than tensors",
        torch_file({"base_model.model.a": wide}): "claim more numbers than the file has bytes",
        torch_file({"a": torch.ones(2, dtype=torch.long)}): "not plain floating-point",
        torch_file({"a": torch.eye(3).to_sparse()}): "it calls torch._utils._rebuild_sparse_tensor",
        torch_file({"a": Large(bytearray, 1 << 62)}): "it calls .*bytearray",
        torch_file({"a": Large(torch.Tensor, 1 << 30, 1 << 30)}): "it calls torch.*Tensor",
        torch_file({"a": torch.ones(2)})[:-30]: "not a file of torch's|cannot be read",
    }
    for content, reason in disguised.items():
        (folder / ours.PICKLED).write_bytes(content)
        with pytest.raises(AdapterError, match=reason):
            ours.read(folder, base)
    assert not witness.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}' + b" " * (5 << 20)]
)
def test_settings_that_are_not_json_are_refused(folder, base, content):
    (folder / ours.CONFIG).write_bytes(content)
    assert not ours.recognises(folder)
    with pytest.raises(AdapterError, match=r"adapter_config\.json"):
        ours.read(folder, base)


def test_what_is_not_there_is_an_error_too(base, tmp_path):
    assert not ours.recognises(tmp_path)
    assert not ours.recognises(tmp_path / "nowhere")
    with pytest.raises(AdapterError, match="cannot read"):
        ours.read(tmp_path, base)


def test_an_adapter_gets_a_plain_name(folder, base):
    odd = folder.rename(folder.with_name("my adapter; rm -rf ~"))
    assert ours.read(odd, base).name == "my-adapter-rm--rf"


# what cannot be written


@pytest.mark.parametrize(
    ("spec", "how", "reason"),
    [
        ("houlsby", {}, "peft has no houlsby adapters"),
        ("bitfit", {}, "peft has no bitfit adapters"),
        (
            "lora",
            {"labels": 2},
            "BertForSequenceClassification cannot have head=linear on pool=cls: it has head=linear on",
        ),
        ("lora", {"labels": 2, "pool": "mean"}, "on pool=mean"),
        ("lora", {"labels": 2, "pool": "tokens", "head": "tanh2"}, "BertForTokenClassification cannot have head=tanh2"),
    ],
)
def test_what_peft_has_not_is_refused_and_nothing_is_written(spec, how, reason, tmp_path):
    host = inlay.Host(tiny.model("bert"))
    host.add("a", spec, **how)
    with pytest.raises(AdapterError, match=reason):
        ours.write(host.adapter("a"), host.base, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_head_can_be_left_at_home(tmp_path):
    host = inlay.Host(tiny.model("bert"))
    host.add("a", "lora", labels=2, pool="mean")
    tiny.shake(host, "a")
    ours.write(without_head(host.adapter("a")), host.base, tmp_path)
    states = host.hidden(inlay.Batch.of(ROWS), ["a"] * 4).rows()
    assert_same(run(loaded(tmp_path, "bert", None, 2)), states)


def test_a_bias_where_the_class_has_none_is_refused(tmp_path):
    host = inlay.Host(tiny.model("llama"))
    host.add("a", "lora", labels=2)
    ours.write(host.adapter("a"), host.base, tmp_path / "zero")
    tiny.shake(host, "a")
    with pytest.raises(AdapterError, match="without a bias"):
        ours.write(host.adapter("a"), host.base, tmp_path / "shaken")


def test_an_adapter_of_another_base_is_not_written(tmp_path):
    host, other = inlay.Host(tiny.model("bert")), inlay.Host(tiny.model("bert", seed=1))
    host.add("a", "lora")
    with pytest.raises(AdapterError, match="belongs to the base"):
        ours.write(host.adapter("a"), other.base, tmp_path)


def test_a_folder_that_cannot_be_written_is_a_named_error(tmp_path):
    host = inlay.Host(tiny.model("bert"))
    host.add("a", "lora")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AdapterError, match="cannot write"):
        ours.write(host.adapter("a"), host.base, tmp_path / "file" / "out")
