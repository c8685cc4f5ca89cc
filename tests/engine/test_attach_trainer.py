"""From HF's Trainer into a library and a host: the head that was trained comes along, and checkpoints are small."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file

import inlay
from inlay.errors import AdapterError
from inlay.library.library import Library

TEXTS = ["a good film", "a bad film", "the soup was good", "my parcel never came", "i love it", "i hate it"] * 4


@pytest.fixture
def base(tmp_path) -> str:
    return tiny.save_text_model(tmp_path / "base")


def model_of(base: str, kind: str = "SequenceClassification", **config: Any) -> Any:
    auto = getattr(transformers, f"AutoModelFor{kind}")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return auto.from_pretrained(base, **config)


def rows(base: str) -> list[dict[str, Any]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    encoded = tokenizer(TEXTS, padding=True)
    return [{**{key: values[i] for key, values in encoded.items()}, "labels": i % 2} for i in range(len(TEXTS))]


def trainer(model: Any, base: str, folder: Path, steps: int = 4) -> transformers.Trainer:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        max_steps=steps,
        save_steps=2,
        learning_rate=1e-2,
        per_device_train_batch_size=8,
        seed=0,
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows(base))


def logits_of(model: Any, base: str, text: str) -> torch.Tensor:
    inputs = transformers.AutoTokenizer.from_pretrained(base)(text, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**inputs).logits[0]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", ["houlsby:size=4", "lora:rank=2"])
def test_trained_put_loaded_and_served(spec, base, tmp_path):
    model = model_of(base, num_labels=2)
    attached = inlay.attach(model, spec)
    trainer(model, base, tmp_path / "out").train()
    library = Library(tmp_path / "library")
    library.put(attached.adapter(name="tone", labels=["good", "bad"]))
    adapter = library.get("tone")
    assert (adapter.labels, adapter.task, adapter.pool) == (("good", "bad"), "classification", "pooler")
    host = inlay.Host(base, device="cpu")
    host.load(adapter)
    for text in TEXTS[:3]:
        wanted = logits_of(model, base, text)
        tiny.assert_close(host.logits(host.batch([text]), ["tone"])[0], wanted)
        (answer,) = host.predict([("tone", text)])
        assert answer["label"] == ["good", "bad"][int(wanted.argmax())]
        assert answer["score"] == pytest.approx(wanted.softmax(0).max().item(), abs=1e-5)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_hold_what_trains_and_training_goes_on_from_them(base, tmp_path):
    whole = model_of(base, num_labels=2)
    attached = inlay.attach(whole, "houlsby:size=4")
    trainer(whole, base, tmp_path / "one").train()
    saved = load_file(tmp_path / "one" / "checkpoint-2" / "model.safetensors")
    assert {name.partition(".")[0] for name in saved} == {"inlay_adapter", "classifier"}
    again = model_of(base, num_labels=2)
    other = inlay.attach(again, "houlsby:size=4")
    trainer(again, base, tmp_path / "one").train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-2"))
    first, second = attached.adapter().tensors, other.adapter().tensors
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-4)


def test_save_pretrained_leaves_the_base_out_until_detached(base, tmp_path):
    model = model_of(base, num_labels=2)
    before = set(model.state_dict())
    attached = inlay.attach(model, "bitfit")
    model.save_pretrained(tmp_path / "small")
    assert not any(name.startswith("bert.") for name in load_file(tmp_path / "small" / "model.safetensors"))
    attached.detach()
    model.save_pretrained(tmp_path / "whole")
    assert set(load_file(tmp_path / "whole" / "model.safetensors")) == before


@pytest.mark.parametrize(
    ("name", "kind", "how", "task"),
    [
        ("roberta", "SequenceClassification", {"num_labels": 3}, "classification"),
        ("distilbert", "SequenceClassification", {"num_labels": 1}, "regression"),
        ("electra", "TokenClassification", {"num_labels": 5}, "tagging"),
        ("bert", "QuestionAnswering", {}, "qa"),
    ],
)
def test_heads_of_other_classes_come_along(name, kind, how, task, tmp_path):
    base = tiny.save_text_model(tmp_path / "base", name)
    model = model_of(base, kind, **how)
    adapter = inlay.attach(model, "bitfit").adapter(name="a")
    assert adapter.task == task
    host = inlay.Host(base, device="cpu")
    host.load(adapter)
    batch = host.batch(["a good film"])
    with torch.no_grad():
        out = model.eval()(input_ids=tiny.ids_of(batch).unsqueeze(0))
    wanted = torch.stack([out.start_logits[0], out.end_logits[0]], -1) if task == "qa" else out.logits[0]
    tiny.assert_close(host.logits(batch, ["a"])[0], wanted)


def test_what_does_not_fit_is_said(base):
    attached = inlay.attach(model_of(base, num_labels=2), "bitfit")
    with pytest.raises(AdapterError, match="3 labels were given, and the head has 2 outputs"):
        attached.adapter(labels=["a", "b", "c"])
    with pytest.raises(AdapterError, match="is for classification, not for tagging"):
        attached.adapter(task="tagging")
    assert attached.adapter(head=False).head is None
    attached.detach()
    bare = inlay.attach(transformers.AutoModel.from_pretrained(base), "bitfit")
    assert bare.adapter().head is None
    with pytest.raises(AdapterError, match="has no head to keep"):
        bare.adapter(labels=["a", "b"])
    bare.detach()
    words = inlay.attach(model_of(base, "MaskedLM"), "bitfit")
    with pytest.warns(UserWarning, match="the head is left out"):
        assert words.adapter().head is None
