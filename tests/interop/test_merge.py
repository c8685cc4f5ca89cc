"""Merged models: transformers alone gives what the host gives, or the command says why it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers

import inlay
from inlay.base import arch
from inlay.errors import AdapterError, BaseError, InlayError, RunError, SlotError
from inlay.interop import merge as merging
from inlay.interop.check import padded, rows_to_check
from inlay.interop.merge import merge, merged_weights

SPECS = (
    "lora:rank=3,alpha=5,sites=attn.q+attn.k+attn.v+attn.out+ffn.in+ffn.out",
    "lora",
    "bitfit",
    "bitfit:layers=top1",
    "norms",
    "finetune",
    "finetune:top=1",
    "diffprune",
    "adapterbias:alpha=false",
)
NO_BIAS = ("llama", "modernbert", "qwen2")
"""At the feed-forward's output; the first two have none at all."""
HEADS = [
    ("bert", "linear", "pooler"),
    ("bert", "tanh2", "cls"),
    ("albert", "linear", "pooler"),
    ("albert", "tanh2", "cls"),
    ("roberta", "tanh2", "cls"),
    ("xlm-roberta", "tanh2", "cls"),
    ("mpnet", "tanh2", "cls"),
    ("electra", "mlp", "cls"),
    ("deberta-v2", "mlp", "cls"),
    ("distilbert", "relu2", "cls"),
]


def add(host: inlay.Host, name: str, spec: str, seed: int = 1, **options: Any) -> None:
    host.add(name, spec, seed=seed, **options)
    tiny.shake(host, name, seed)


def alone(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
    """What transformers gives, with the model in a folder and nothing else."""
    if getattr(model.config, "type_vocab_size", 0) < 2:
        inputs = {name: tensor for name, tensor in inputs.items() if name != "token_type_ids"}
    with torch.no_grad():
        return model.eval()(**inputs)


@pytest.mark.thin(24)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", arch.names())
def test_encoder(name, spec, tmp_path):
    if (name in NO_BIAS and "alpha" in spec and "lora" not in spec) or (name in NO_BIAS[:2] and "bitfit" in spec):
        pytest.skip("no biases there")
    host = tiny.host(name)
    add(host, "a", spec)
    done = merge(host, "a", tmp_path / "out", without_head=True, tokenizer=False)
    assert done.difference <= 1e-5
    batch = rows_to_check(host)
    model = transformers.AutoModel.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        mine, base = (host.hidden(batch, [who] * len(batch.lengths)).rows() for who in ("a", None))
    for row, want in enumerate(mine):
        found = alone(model, padded(batch.take([row]))).last_hidden_state[0]
        assert (found - want).abs().max() <= 1e-5 * max(1, want.abs().max())
    assert max((a - b).abs().max() for a, b in zip(mine, base, strict=True)) > 1e-3  # a control: the adapter matters
    host.base.verify()  # and the base is as it was


@pytest.mark.thin(5)
@pytest.mark.parametrize(("name", "kind", "pool"), HEADS)
def test_head_over_a_text(name, kind, pool, tmp_path):
    host = tiny.host(name)
    add(host, "a", "lora", labels=["no", "maybe", "yes"], head=kind, pool=pool)
    done = merge(host, "a", tmp_path / "out", tokenizer=False)
    assert done.model.endswith("ForSequenceClassification")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    batch = rows_to_check(host)
    with torch.no_grad():
        expected = host.logits(batch, ["a"] * len(batch.lengths))
    for row, want in enumerate(expected):
        assert (alone(model, padded(batch.take([row]))).logits[0] - want).abs().max() <= 1e-5


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", [name for name in arch.names() if name != "modernbert"])
def test_head_over_tokens(name, tmp_path):
    host = tiny.host(name)
    add(host, "a", "lora", labels=["O", "B-X", "I-X"], task="tagging")
    add(host, "q", "finetune", labels=["start", "end"], task="qa")
    assert merge(host, "a", tmp_path / "a", tokenizer=False).model.endswith("ForTokenClassification")
    assert merge(host, "q", tmp_path / "q", tokenizer=False).model.endswith("ForQuestionAnswering")
    batch = rows_to_check(host).take([2])
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "a")
    spans = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "q")
    with torch.no_grad():
        (tags,), (ends,) = host.logits(batch, ["a"]), host.logits(batch, ["q"])
    found = alone(spans, padded(batch))
    assert (alone(model, padded(batch)).logits[0] - tags).abs().max() <= 1e-5 * max(1, tags.abs().max())
    assert (torch.stack([found.start_logits, found.end_logits], -1)[0] - ends).abs().max() <= 1e-5


def test_plain_scores_are_the_answers(tmp_path):
    """A temperature, and a regression's mean and scale, are in the weights."""
    host = tiny.text_host()
    add(host, "sure", "bitfit", labels=["no", "yes"], pool="pooler", task="classification:temperature=3.0")
    add(host, "stars", "norms", labels=["value"], pool="pooler", task="regression:mean=3.5,scale=2.0")
    text = "the film was awful"
    inputs = dict(host.base.tokenizer(text, return_tensors="pt"))
    for name in ("sure", "stars"):
        merge(host, name, tmp_path / name)
    models = [transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / n) for n in ("sure", "stars")]
    sure, stars = host.predict([("sure", text), ("stars", text)])
    assert alone(models[0], inputs).logits.softmax(-1)[0, 1].item() == pytest.approx(sure["scores"]["yes"], abs=1e-5)
    assert alone(models[1], inputs).logits.item() == pytest.approx(stars["value"], abs=1e-4)
    assert models[1].config.problem_type == "regression"


def test_weights_are_the_formulas():
    """Against the formulas, on a fused projection stored as [in, out] and on one as [out, in]."""
    for name, path in (("gpt2", "h.0.attn.c_attn"), ("bert", "encoder.layer.0.attention.self.value")):
        host = tiny.host(name)
        add(host, "a", "lora:rank=2,alpha=6,sites=attn.v")
        own, before = host.read("a"), host.base.model.state_dict()
        change = 3.0 * own["layers.0.attn.v.down"] @ own["layers.0.attn.v.up"]
        found = merged_weights(host, "a")
        difference = found[f"{path}.weight"] - before[f"{path}.weight"]
        if name == "gpt2":
            assert (difference[:, :32] == 0).all()
            difference = difference[:, 32:].T
        assert torch.allclose(difference.T, change, atol=1e-6)
        changed = [key for key in found if not torch.equal(found[key], before[key])]
        assert len(changed) == 3
        assert all("attn" in key or "value" in key for key in changed)


def test_agrees_with_peft(tmp_path):
    """The same LoRA merged by peft."""
    from peft import LoraConfig, get_peft_model

    host = tiny.host()
    add(host, "a", "lora:rank=4,alpha=8,sites=attn.q+ffn.out")
    own = host.read("a")
    model = get_peft_model(
        tiny.model("bert"),
        LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules=["query", r"output.dense"],
            exclude_modules=r".*attention\.output.*|.*pooler.*",
        ),
    )
    kinds = {"attn.q": "attention.self.query", "ffn.out": "output.dense"}
    with torch.no_grad():
        for layer in range(3):
            for kind, path in kinds.items():
                leaf = model.get_submodule(f"base_model.model.encoder.layer.{layer}.{path}")
                leaf.lora_A["default"].weight.copy_(own[f"layers.{layer}.{kind}.down"].T)
                leaf.lora_B["default"].weight.copy_(own[f"layers.{layer}.{kind}.up"].T)
    expected = model.merge_and_unload().state_dict()
    for key, tensor in merged_weights(host, "a").items():
        assert torch.allclose(tensor, expected[key], atol=1e-6), key


# --- files ------------------------------------------------------------------------------------------------------------


def test_folder(tmp_path):
    host = tiny.text_host()
    add(host, "a", "lora", labels=["no", "yes"], pool="pooler", task="classification:temperature=2.0")
    (tmp_path / "new").mkdir()  # an empty one will do
    done = merge(host, "a", tmp_path / "new")
    files = {file.name for file in (tmp_path / "new").iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert done.bytes == sum(file.stat().st_size for file in (tmp_path / "new").iterdir())
    assert [file.name for file in tmp_path.iterdir()] == ["new"]
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["problem_type"] == "single_label_classification"
    assert config["inlay"] == {"name": "a", "task": "classification:temperature=2"}
    assert "inlay" not in {key for key in config if "attn" in key} | {config.get("_attn_implementation")}
    mode = (tmp_path / "new" / "model.safetensors").stat().st_mode & 0o777
    assert mode == (tmp_path / "new" / "config.json").stat().st_mode & 0o777


def test_merged_encoder_is_a_base_again(tmp_path):
    host = tiny.text_host()
    add(host, "a", "bitfit")
    merge(host, "a", tmp_path / "out", without_head=True)
    again = inlay.Host(tmp_path / "out")
    batch = host.batch(["it never came", "no"])
    with torch.no_grad():
        for found, want in zip(
            again.hidden(batch, [None] * 2).rows(), host.hidden(batch, ["a"] * 2).rows(), strict=True
        ):
            tiny.assert_close(found, want)


# --- what is refused ------------------------------------------------------------------------------------------------


def refused(host: inlay.Host, name: str, folder: Path, error: type[InlayError], match: str, **how: Any) -> None:
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(error, match=match):
        merge(host, name, folder, **how)
    assert before == sorted(folder.parent.rglob("*"))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("houlsby", "has an activation between two matrices"),
        ("houlsby:where=ffn,normed=true", "has an activation between two matrices"),
        ("adapterbias", "weighs its shift by the token"),
        ("adapterbias:l0=0.01", "weighs its shift by the token"),
        ("frozen", "mixes the states of all layers"),
    ],
)
def test_methods_that_are_no_weights(spec, reason, tmp_path):
    host = tiny.host()
    host.add("a", spec, labels=2, pool="pooler")
    for how in ({}, {"without_head": True}):
        refused(host, "a", tmp_path / "out", AdapterError, f"'a' cannot be merged: {spec} {reason}", **how)


def test_unknown_methods_are_refused(tmp_path):
    from inlay.bank.delta import Part
    from inlay.methods.bitfit import BiasShift, BitFit

    class Twice(BiasShift):
        """Derived from one that could be merged; what it does is its own."""

        def difference(self, route, p, at):
            return 2 * super().difference(route, p, at)

    class Other(BitFit):
        def parts(self, sites):
            return [Part(part.site, Twice(), part.rows) for part in super().parts(sites)]

    host = tiny.host()
    host.add("a", Other(), labels=2, pool="pooler")
    refused(host, "a", tmp_path / "out", AdapterError, r"has a part that merging does not know \(Twice\)")


def test_heads_that_transformers_has_not(tmp_path):
    host = tiny.host()
    host.add("mean", "lora", labels=2, pool="mean")
    host.add("bare", "lora")
    hint = "pass without_head"
    refused(host, "mean", tmp_path / "out", AdapterError, f"head of 'mean'.*linear on pool=mean.*pooler.*{hint}")
    refused(host, "bare", tmp_path / "out", AdapterError, f"'bare' has no head; {hint}")
    modern = tiny.host("modernbert")
    modern.add("a", "lora", labels=2)
    refused(modern, "a", tmp_path / "out", AdapterError, f"head of 'a' cannot be merged.*{hint}")


def test_places_that_cannot_be_written(tmp_path):
    host = tiny.host()
    host.add("a", "lora", labels=2, pool="pooler")
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    refused(host, "a", full, RunError, "already exists")
    refused(host, "a", full / "mine", RunError, "already exists")
    refused(host, "a", full / "mine" / "out", RunError, "cannot write", tokenizer=False)
    refused(host, "a", tmp_path / "out", BaseError, "no tokenizer")
    refused(host, "nobody", tmp_path / "out", SlotError, "no adapter named")


def test_needs_plain_weights(tmp_path):
    half = inlay.Host(tiny.model("bert").to(torch.bfloat16))
    half.add("a", "lora", labels=2)
    refused(half, "a", tmp_path / "out", BaseError, "bfloat16 on cpu")


def test_a_wrong_merge_is_noticed_and_not_kept(tmp_path, monkeypatch):
    """A control of the check: weights that are slightly off."""
    host = tiny.host()
    add(host, "a", "lora", labels=2, pool="pooler")
    right = merged_weights(host, "a")
    key = "encoder.layer.1.output.dense.weight"
    monkeypatch.setattr(merging, "merged_weights", lambda *_: right | {key: right[key] * 1.001})
    refused(host, "a", tmp_path / "out", InlayError, "differs from 'a' by .*nothing was written", tokenizer=False)
