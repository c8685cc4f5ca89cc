"""`attach`: an adapter in a Hugging Face model, trained by HF's Trainer, and taken out without a trace."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from torch import Tensor, nn

import inlay
from inlay.base.fingerprint import fingerprints
from inlay.errors import AdapterError, ArchError, BaseError, InlayError, SlotError, SpecError

SLOTS = ["houlsby:size=4", "houlsby:size=4,parallel=true", "adapterbias", "bitfit", "norms", "lora:rank=2", "frozen"]
WEIGHTS = ["finetune", "finetune:top=1", "diffprune:target=0.1"]
NOISY = ["houlsby:size=4,mixout=0.5", "adapterbias:l0=0.01,gate=0.3", "finetune:mixout=0.5", "diffprune:gate=0.3"]


def classifier(seed: int = 0, **changes: Any) -> Any:
    """A tiny BERT with a head of its own."""
    encoder = tiny.model("bert", seed, **changes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.BertForSequenceClassification(encoder.config)
    model.bert.load_state_dict(encoder.state_dict())
    return model.eval()


def shake(attached: Any, scale: float = 0.1) -> None:
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, t in attached.tensors.items():
            if isinstance(t, nn.Parameter) and not name.endswith(".gate"):
                t += torch.randn(t.shape, generator=random) * scale


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def ids(rows: int = 4, length: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(5, tiny.VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def seeded(model: nn.Module, tokens: Tensor) -> Tensor:
    torch.manual_seed(3)
    with torch.no_grad():
        out = model(input_ids=tokens)
    return out.logits if "logits" in out else out.last_hidden_state


# --- what trains --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SLOTS + WEIGHTS + NOISY)
def test_only_the_adapter_and_the_models_own_head_train(spec):
    model = classifier()
    attached = inlay.attach(model, spec)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    adapter = {name for name in trained if name.startswith("inlay_adapter.")}
    assert trained - adapter == {"classifier.weight", "classifier.bias"}
    sizes = sum(model.get_parameter(name).numel() for name in adapter)
    params = attached.method.params(attached.base.sites).values()
    assert sizes == sum(p.numel for p in params if p.role != "constant")
    assert sizes > 0
    model.train()(input_ids=ids(), labels=torch.tensor([0, 1, 1, 0])).loss.backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert {"classifier.weight", "classifier.bias"} <= with_gradient <= trained
    assert with_gradient & adapter


@pytest.mark.parametrize("spec", ["lora:rank=2", "adapterbias", "finetune", "frozen"])
def test_a_fresh_identity_changes_nothing_even_in_training(spec):
    """The same draws of dropout in the same order."""
    model, tokens = classifier().train(), ids()
    before = seeded(model, tokens)
    attached = inlay.attach(model, spec)
    assert torch.equal(seeded(model, tokens), before)
    shake(attached)
    assert not torch.allclose(seeded(model, tokens), before, atol=1e-4)


# --- HF's Trainer -------------------------------------------------------------------------------------------


def examples(count: int = 32) -> list[dict[str, Any]]:
    """The label is whether the first token is a high one."""
    return [{"input_ids": row.tolist(), "labels": int(row[0] > 32)} for row in ids(count, seed=1)]


def train(model: nn.Module, folder: Path, steps: int = 60, lr: float = 0.02, **options: Any) -> None:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        max_steps=steps,
        learning_rate=lr,
        per_device_train_batch_size=16,
        seed=0,
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's and accelerate's, about pinned memory and the like
        transformers.Trainer(model=model, args=arguments, train_dataset=examples()).train()


def loss(model: nn.Module) -> float:
    rows = examples()
    tokens = torch.tensor([row["input_ids"] for row in rows])
    with torch.no_grad():
        return model.eval()(input_ids=tokens, labels=torch.tensor([row["labels"] for row in rows])).loss.item()


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "spec", ["houlsby:size=8", "adapterbias", "lora", "finetune", "diffprune", "houlsby:size=8,mixout=0.5"]
)
def test_the_trainer_trains_the_adapter_and_leaves_the_base_alone(spec, tmp_path):
    model = classifier()
    base = copies(model.bert)
    attached = inlay.attach(model, spec)
    start, before = {name: t.detach().clone() for name, t in attached.tensors.items()}, loss(model)
    train(model, tmp_path)
    assert loss(model) < before - 0.1
    for name, weight in model.bert.named_parameters():
        assert torch.equal(weight, base[name]), name
    moved = {name for name, t in attached.tensors.items() if not torch.equal(t, start[name])}
    params = attached.method.params(attached.base.sites)
    assert {name for name, p in params.items() if p.role == "trained"} <= moved
    assert not moved & {name for name, p in params.items() if p.role == "constant"}
    assert_the_host_agrees(model, attached.adapter())


def assert_the_host_agrees(model: Any, adapter: inlay.Adapter) -> None:
    """The same hidden states, from the same base in a host."""
    host, tokens = tiny.host(), ids(3)
    assert adapter.base.startswith(host.base.fingerprint)
    host.load(adapter, "a")
    batch = inlay.Batch.of(tokens.tolist())
    with torch.no_grad():
        expected = model.eval().bert(input_ids=tokens).last_hidden_state
        for row, states in zip(expected, host.hidden(batch, ["a"] * 3).rows(), strict=True):
            tiny.assert_close(states, row)
        assert not torch.allclose(host.hidden(batch, [None] * 3).rows()[0], expected[0], atol=1e-3)


@pytest.mark.thin(10)
@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize("spec", SLOTS + WEIGHTS + NOISY)
def test_a_snapshot_gives_the_same_hidden_states_in_a_host(spec, finish):
    if finish and spec.startswith("diffprune"):
        spec = spec.partition(":")[0] + ":target=1"  # pruning to less changes what is computed
    model = classifier()
    attached = inlay.attach(model, spec, seed=4)
    shake(attached)
    adapter = attached.adapter(finish)
    kept = (adapter.method, adapter.seed, adapter.head, adapter.labels)
    assert kept == (attached.method.spec, 4, "linear", ("0", "1"))
    assert_the_host_agrees(model, adapter)


def test_a_snapshot_does_not_follow_the_training():
    attached = inlay.attach(classifier(), "lora")
    first = attached.adapter()
    shake(attached)
    second = attached.adapter()
    assert any(not torch.equal(first.tensors[name], t) for name, t in second.tensors.items())


# --- gradient checkpointing ---------------------------------------------------------------------------------


def gradients(spec: str, checkpointing: bool, passes: int) -> dict[str, Tensor]:
    model = classifier().train()
    attached = inlay.attach(model, spec, seed=2)
    shake(attached)
    if checkpointing:
        model.gradient_checkpointing_enable()
        assert model.is_gradient_checkpointing
    torch.manual_seed(7)
    labels = torch.tensor([0, 1, 1, 0])
    losses = [model(input_ids=ids(seed=i), labels=labels).loss for i in range(passes)]
    losses[0].backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.thin(8)
@pytest.mark.parametrize("passes", [1, 2], ids=["one pass", "another pass in between"])
@pytest.mark.parametrize("spec", SLOTS + WEIGHTS + NOISY)
def test_gradient_checkpointing_gives_the_same_gradients(spec, passes):
    plain, recomputed = (gradients(spec, checkpointing, passes) for checkpointing in (False, True))
    assert plain.keys() == recomputed.keys()
    assert any(name.startswith("inlay_adapter.") for name in plain)
    for name, expected in plain.items():
        tiny.assert_close(recomputed[name], expected, name, gradient=True)


def test_checkpointing_is_really_on():
    """A layer runs twice: once forward, once more for its gradient."""
    calls = []
    for checkpointing, expected in ((False, 1), (True, 2)):
        calls.clear()
        model = classifier().train()
        inlay.attach(model, "houlsby:size=4")
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.bert.encoder.layer[1].intermediate.register_forward_hook(lambda *_: calls.append(1))
        model(input_ids=ids(), labels=torch.tensor([0, 1, 1, 0])).loss.backward()
        assert len(calls) == expected


# --- taking it out ------------------------------------------------------------------------------------------


def state_of(model: nn.Module) -> tuple[Any, ...]:
    return (
        list(model.state_dict()),
        [name for name, _ in model.named_modules()],
        {name: p.requires_grad for name, p in model.named_parameters()},
        {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)},
        [name for name, module in model.named_modules() if "forward" in vars(module)],
    )


@pytest.mark.parametrize("spec", SLOTS + WEIGHTS + NOISY)
def test_detaching_leaves_no_trace(spec):
    model, tokens = classifier(), ids()
    model.bert.embeddings.requires_grad_(False)
    model.classifier.bias.requires_grad_(False)
    before, weights = state_of(model), fingerprints(model)
    evaluated, trained = seeded(model, tokens), seeded(model.train(), tokens)
    attached = inlay.attach(model, spec)
    shake(attached)
    assert state_of(model) != before
    assert not torch.allclose(seeded(model, tokens), trained, atol=1e-4)
    attached.detach()
    assert state_of(model) == before
    assert fingerprints(model) == weights
    assert torch.equal(seeded(model, tokens), trained)
    assert torch.equal(seeded(model.eval(), tokens), evaluated)


def test_after_detaching_another_can_be_attached():
    model, tokens = classifier(), ids()
    first = inlay.attach(model, "houlsby:size=4,init=0.3")
    adapted = seeded(model, tokens)
    first.detach()
    inlay.attach(model, "houlsby:size=4,init=0.3")
    assert torch.equal(seeded(model, tokens), adapted)


def test_detaching_twice_is_harmless_or_refused():
    model = classifier()
    attached = inlay.attach(model, "lora")
    attached.detach()
    model.requires_grad_(False)
    before = state_of(model)
    with contextlib.suppress(InlayError):
        attached.detach()
    assert state_of(model) == before


# --- refusals -----------------------------------------------------------------------------------------------


def test_attaching_twice_is_refused_and_the_first_stays():
    model, tokens = classifier(), ids()
    first = inlay.attach(model, "houlsby:size=4,init=0.3")
    before, adapted = state_of(model), seeded(model, tokens)
    with pytest.raises(SlotError, match=r"attached.*detach"):
        inlay.attach(model, "lora")
    assert state_of(model) == before
    assert torch.equal(seeded(model, tokens), adapted)
    first.detach()


@pytest.mark.parametrize("outer_first", [True, False])
def test_attaching_to_a_model_and_to_its_encoder_is_attaching_twice(outer_first):
    model = classifier()
    first, second = (model, model.bert) if outer_first else (model.bert, model)
    inlay.attach(first, "houlsby:size=4")
    with pytest.raises(SlotError, match="attached"):
        inlay.attach(second, "lora")


def test_the_base_of_a_host_is_not_for_attaching():
    """Every row of the host, the base's too, would run with the attached adapter."""
    model, batch = tiny.model("bert"), tiny.batch(2)
    host = inlay.Host(model)
    bare = host.hidden(batch, [None, None]).states
    with pytest.raises(InlayError, match=r"(?i)host"):
        inlay.attach(model, "houlsby:size=4,init=0.5")
    assert torch.equal(host.hidden(batch, [None, None]).states, bare)


def test_a_model_that_is_not_hugging_faces_is_refused():
    with pytest.raises(BaseError, match="Linear is not a Hugging Face model"):
        inlay.attach(nn.Linear(2, 2), "lora")


def test_an_unknown_architecture_is_refused_with_how_to_add_its_row():
    config = transformers.CamembertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=60
    )
    model = transformers.CamembertForSequenceClassification(config)
    before = state_of(model)
    with pytest.raises(ArchError, match=r"'camembert'.*To add it: inlay\.base\.arch\.register\(Arch\("):
        inlay.attach(model, "lora")
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("lroa", "Did you mean lora"),
        ("lora:sites=atn.q", "Did you mean attn"),
        ("houlsby:layers=3", "layers 0 to 2"),
        ("houlsby:size=0", "expected 1 or more"),
    ],
)
def test_a_refused_spec_leaves_the_model_as_it_was(spec, problem):
    model = classifier()
    before = state_of(model)
    with pytest.raises(SpecError, match=problem):
        inlay.attach(model, spec)
    assert state_of(model) == before
    inlay.attach(model, "lora")


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [*SLOTS, *WEIGHTS, *NOISY])
def test_the_adapter_goes_where_the_model_goes(spec):
    """Trainer moves a model to the device after `attach`."""
    model, tokens = classifier(), ids()
    attached = inlay.attach(model, spec)
    shake(attached)
    expected = seeded(model, tokens)
    found = seeded(model.cuda(), tokens.cuda())
    torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)
    model.train()(input_ids=tokens.cuda(), labels=torch.tensor([0, 1, 1, 0]).cuda()).loss.backward()
    assert any(p.grad is not None for name, p in model.named_parameters() if name.startswith("inlay_adapter."))


# --- from a model with a head to a host ----------------------------------------------------------------------


def test_an_adapter_trained_without_a_pooler_fits_a_base_with_one(tmp_path):
    """Models for tagging come without a pooler; their adapters belong to the same encoder."""
    base = tiny.model("bert")
    base.save_pretrained(tmp_path / "base")
    tagger = transformers.BertForTokenClassification.from_pretrained(tmp_path / "base", num_labels=3)
    assert tagger.bert.pooler is None
    attached = inlay.attach(tagger, "houlsby:init=0.3")
    host, batch = inlay.Host(tmp_path / "base", device="cpu"), tiny.batch(1)
    host.load(attached.adapter(), "a")
    ours = host.hidden(batch, ["a"]).states
    expected = tagger.bert(input_ids=tiny.ids_of(batch)[None]).last_hidden_state[0]
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    # but what uses the pooler is bound to it
    host.add("p", "lora", labels=2, pool="pooler")
    bound = host.adapter("p")
    with torch.no_grad():
        base.pooler.dense.bias += 1
    other = inlay.Host(base)
    other.load(attached.adapter(), "a")
    with pytest.raises(AdapterError, match="belongs to the base"):
        other.load(bound, "p")


def test_weights_tied_to_the_head_are_not_changed_in_one_place_only():
    model = transformers.GPT2LMHeadModel(tiny.CONFIGS["gpt2"])
    with pytest.raises(InlayError, match="ties its head to wte"):
        inlay.attach(model, "finetune")
    inlay.attach(model, "lora").detach()


@pytest.mark.parametrize("name", ["llama", "modernbert", "bert"])
def test_mixout_takes_the_place_of_attention_dropout_too(name):
    rate = {"attention_probs_dropout_prob": 0.5} if name == "bert" else {"attention_dropout": 0.5}
    model, ids = tiny.model(name, **rate).train(), tiny.ids_of(tiny.batch(1))[None].to(tiny.DEVICE)
    attached = inlay.attach(model, "lora:mixout=0.5")
    first, second = (model(input_ids=ids).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)  # lora starts at zero, so mixout itself has nothing to drop
    attached.detach()
    first, second = (model(input_ids=ids).last_hidden_state for _ in range(2))
    assert not torch.equal(first, second)
