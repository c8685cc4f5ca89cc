"""Runs in an environment of its own, with the adapters package: makes its adapters, or loads ours.

    python peer_adapterhub.py make FOLDER    reads cases.json, writes FOLDER/<case>/ and outputs.safetensors
    python peer_adapterhub.py load FOLDER    reads cases.json, loads FOLDER/<case>/, writes outputs.safetensors

A case: {"base": folder, "config": name or options, "changes": {}, "head": {} or null, "class": null or a class of
transformers, "safe": bool}. Every row of rows.json is run alone, so that padding plays no part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import adapters
import torch
import transformers
from adapters import AdapterConfig, AutoAdapterModel, BnConfig
from adapters.heads import ClassificationHead
from safetensors.torch import save_file

NAME = "case"


def model_of(case):
    if case.get("class"):
        model = getattr(transformers, case["class"]).from_pretrained(case["base"], num_labels=case["labels"])
        adapters.init(model)
        return model
    return AutoAdapterModel.from_pretrained(case["base"])


def add_head(model, head):
    head = dict(head)
    kind = head.pop("type")
    if "id2label" in head:
        head["id2label"] = {int(i): label for i, label in head["id2label"].items()}
    if "bias" in head:  # add_classification_head does not pass it on
        model.add_prediction_head(ClassificationHead(model, NAME, **head))
    else:
        getattr(model, f"add_{kind}_head")(NAME, **head)


def shake(model, seed):
    """Random numbers in everything the adapter and its head consist of."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            mine = f".{NAME}." in name or name.startswith(("classifier", "qa_outputs", "pre_classifier"))
            if mine:
                p.copy_(p + torch.randn(p.shape, generator=random) * 0.3)


def outputs_of(model, rows):
    model.eval()
    found = []
    for row in rows:
        with torch.no_grad():
            out = model(input_ids=torch.tensor([row]))
        if "start_logits" in out:
            value = torch.stack([out["start_logits"][0], out["end_logits"][0]], -1)
        else:
            value = out["logits"][0] if "logits" in out else out[0][0]
        found.append(value.contiguous())
    return found


def make(folder: Path, case: dict, where: Path, seed: int, rows):
    torch.manual_seed(seed)
    model = model_of(case)
    given = case["config"]
    config = AdapterConfig.load(given, **case.get("changes", {})) if isinstance(given, str) else BnConfig(**given)
    model.add_adapter(NAME, config=config)
    if case.get("head"):
        add_head(model, case["head"])
    shake(model, seed)
    model.set_active_adapters(NAME)
    model.save_adapter(str(where), NAME, use_safetensors=case.get("safe", True))
    return outputs_of(model, rows)


def load(folder: Path, case: dict, where: Path, seed: int, rows):
    model = model_of(case)
    info: dict = {}
    safe = case.get("safe", True)
    name = model.load_adapter(str(where), set_active=True, use_safetensors=safe, loading_info=info)
    assert not info["missing_keys"], info
    unexpected = [key for key in info["unexpected_keys"] if ".adapters." in key or ".loras." in key]
    assert not unexpected, unexpected
    model.set_active_adapters(name)
    return outputs_of(model, rows)


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    cases = json.loads((folder / "cases.json").read_text())
    rows = json.loads((folder / "rows.json").read_text())
    found = {}
    for seed, (name, case) in enumerate(cases.items()):
        outputs = {"make": make, "load": load}[what](folder, case, folder / name, seed, rows)
        found |= {f"{name} {i}": value.clone() for i, value in enumerate(outputs)}
    save_file(found, folder / "outputs.safetensors")


if __name__ == "__main__":
    main()
