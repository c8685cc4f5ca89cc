"""AdapterHub's heads: dropout and one linear layer, or two and an activation, on the first token or on every token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from inlay.base.load import Base
from inlay.engine.class_heads import ROWS, SPANS, TOKENS, HeadParts, head_parts, meaning, names_of, read_head
from inlay.errors import AdapterError
from inlay.interop.files import Keys
from inlay.interop.settings import refuse
from inlay.tasks import parse as parse_task

_TYPES = {
    "classification": ROWS,
    "multilabel_classification": ROWS,
    "tagging": TOKENS,
    "question_answering": SPANS,
}
_TASKS = {"regression": "classification", "multilabel": "multilabel_classification", "qa": "question_answering"}
_INNER = {"tanh": "tanh2", "relu": "relu2", "gelu": "mlp"}
_KNOWN = set("head_type num_labels layers activation_function label2id id2label use_pooler bias dropout_prob".split())


def read_flex_head(keys: Keys, config: Mapping[str, Any], base: Base) -> HeadParts:
    """The head in `head_config.json`; a head of transformers' own classes has no `config` there."""
    path, options = keys.path / "head_config.json", config.get("config")
    if options is None:
        name = str(config.get("model_class"))
        auto = next((kind for kind in _TYPES.values() if name.endswith(f"For{kind}")), None)
        if auto is None:
            raise AdapterError(f"{path}: Inlay has no head of {name}; it has those for {ROWS}, {TOKENS} and {SPANS}")
        return read_head(keys.tensors, auto, base, config, keys.path)
    if not isinstance(options, Mapping):
        raise AdapterError(f"{path}: config is {options!r}, not options by name")
    kind = options.get("head_type")
    if kind not in tuple(_TYPES):
        raise AdapterError(f"{path}: Inlay has no head of the type {kind!r}; it has {', '.join(_TYPES)}")
    refuse(options, {}, _KNOWN, path)
    tensors = _read_tensors(keys, f"heads.{config.get('name')}", options, base)
    keys.finish()
    count = tensors["weight"].shape[1]
    task, labels = meaning(_TYPES[kind], count, names_of(options, count))
    if kind == "multilabel_classification":
        task, labels = "multilabel", labels if count > 1 else ("0",)
    pool = "tokens" if _TYPES[kind] != ROWS else "pooler" if options.get("use_pooler") else "cls"
    inner = "linear" if options.get("layers") == 1 else _INNER[str(options.get("activation_function"))]
    return head_parts(inner, pool, task, labels, tensors)


def write_flex_head(head: HeadParts, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The `config` of `head_config.json`, and the weights; an error says why AdapterHub has no such head."""
    activations = {kind: activation for activation, kind in _INNER.items()}
    if head.kind not in ("linear", *activations):
        raise AdapterError(f"AdapterHub has no head like {head.kind}; it has linear, {', '.join(activations)}")
    if head.pool not in ("tokens", "cls", "pooler"):
        raise AdapterError(f"AdapterHub's heads read the first token (pool=cls) or the pooler, not pool={head.pool}")
    default = "tagging" if head.pool == "tokens" else "classification"
    task = parse_task(head.task or default).kind
    has_two = head.kind != "linear"
    options: dict[str, Any] = {
        "head_type": _TASKS.get(task, task),
        "num_labels": len(head.labels),
        "layers": 2 if has_two else 1,
        "activation_function": activations.get(head.kind, "tanh"),
        "label2id": {label: i for i, label in enumerate(head.labels)},
        "dropout_prob": None,
    }
    if head.pool != "tokens":
        options |= {"use_pooler": head.pool == "pooler", "bias": True}
    out = f"heads.{name}.{4 if has_two else 1}"
    tensors = {f"{out}.weight": head.tensors["weight"].T, f"{out}.bias": head.tensors["bias"]}
    if has_two:
        dense = f"heads.{name}.1"
        tensors |= {f"{dense}.weight": head.tensors["dense"].T, f"{dense}.bias": head.tensors["dense_bias"]}
    return options, tensors


def _read_tensors(keys: Keys, prefix: str, options: Mapping[str, Any], base: Base) -> dict[str, Tensor]:
    path, d, layers = keys.path / "head_config.json", base.sites.hidden, options.get("layers")
    count = options.get("num_labels")
    if layers not in (1, 2):
        raise AdapterError(f"{path}: layers={layers!r} cannot be represented; Inlay's heads have 1 or 2")
    if not isinstance(count, int) or count < 1:
        raise AdapterError(f"{path}: num_labels={count!r} is not a number of labels")
    if layers == 2 and options.get("activation_function") not in tuple(_INNER):
        activation = options.get("activation_function")
        raise AdapterError(f"{path}: activation_function={activation!r} is not one of {', '.join(_INNER)}")
    out = f"{prefix}.{1 if layers == 1 else 4}"
    tensors = {"weight": keys.take(f"{out}.weight", (count, d)).T}
    tensors["bias"] = (
        keys.take(f"{out}.bias", (count,)) if options.get("bias", True) else torch.zeros(count, dtype=torch.float32)
    )
    if layers == 2:
        tensors["dense"] = keys.take(f"{prefix}.1.weight", (d, d)).T
        tensors["dense_bias"] = keys.take(f"{prefix}.1.bias", (d,))
    return tensors
