"""The heads of transformers' own classes, as a table: their modules, their input, and what Inlay calls them.

peft trains and saves the modules of such a class; so does adapters for a model of such a class, and so does `attach`. A
head that is not in the table (ModernBERT's, which normalises; multiple choice) is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inlay.base.load import Base
from inlay.base.sites import config_of
from inlay.errors import AdapterError
from inlay.tasks import parse as parse_task

ROWS, TOKENS, SPANS = "SequenceClassification", "TokenClassification", "QuestionAnswering"


@dataclass(frozen=True)
class HeadParts:
    """A head in Inlay's form."""

    kind: str
    pool: str
    task: str
    labels: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    """weight [d, labels], bias; with an inner layer dense [d, d] and dense_bias."""


@dataclass(frozen=True)
class Layout:
    """A kind of head of a class."""

    auto: str
    """The end of the class's name: the model, `For`, and this."""
    kind: str
    pool: str
    out: str
    """The module that gives the logits."""
    dense: str = ""
    """The module before it, if there is one."""
    bias: bool = True

    def names(self) -> set[str]:
        """Its tensors in a state dict."""
        modules = [self.out, self.dense] if self.dense else [self.out]
        names = {f"{module}.{name}" for module in modules for name in ("weight", "bias")}
        return names if self.bias else names - {f"{self.out}.bias"}


_TANH = Layout(ROWS, "tanh2", "cls", "classifier.out_proj", "classifier.dense")
_LAST = Layout(ROWS, "linear", "last", "score", bias=False)
_ROWS: dict[str, tuple[Layout, ...]] = {
    "bert": (
        Layout(ROWS, "linear", "pooler", "classifier"),
        Layout(ROWS, "tanh2", "cls", "classifier", "bert.pooler.dense"),
    ),
    "albert": (
        Layout(ROWS, "linear", "pooler", "classifier"),
        Layout(ROWS, "tanh2", "cls", "classifier", "albert.pooler"),
    ),
    "roberta": (_TANH,),
    "xlm-roberta": (_TANH,),
    "mpnet": (_TANH,),
    "electra": (Layout(ROWS, "mlp", "cls", "classifier.out_proj", "classifier.dense"),),
    "distilbert": (Layout(ROWS, "relu2", "cls", "classifier", "pre_classifier"),),
    "deberta-v2": (Layout(ROWS, "mlp", "cls", "classifier", "pooler.dense"),),
    "gpt2": (_LAST,),
    "llama": (_LAST,),
    "qwen2": (_LAST,),
}
"""A pooler that was trained too becomes the inner layer of a head."""
_TOKENS = {name: "score" if name in ("llama", "qwen2") else "classifier" for name in _ROWS}


def layouts(base: Base) -> tuple[Layout, ...]:
    """The heads that classes for this kind of base have."""
    name = base.sites.arch.model_type
    if name not in _ROWS:
        return ()
    rows = _ROWS[name]
    if name == "deberta-v2" and getattr(config_of(base.model), "pooler_hidden_act", "gelu") != "gelu":
        rows = ()
    return (*rows, Layout(TOKENS, "linear", "tokens", _TOKENS[name]), Layout(SPANS, "linear", "tokens", "qa_outputs"))


def read_head(
    tensors: Mapping[str, Tensor], auto: str | None, base: Base, config: Mapping[str, Any], where: object
) -> HeadParts:
    """Read a head from the state dict of one of these classes.

    Args:
        auto: the end of the class's name, if that is known.
        config: a model's config that may name the labels.
    """
    fits = [layout for layout in layouts(base) if layout.names() == set(tensors) and auto in (None, layout.auto)]
    if len({layout.auto for layout in fits}) > 1:
        kinds = " or ".join(layout.auto for layout in fits)
        raise AdapterError(
            f"{where}: {_some(tensors)} may be the head for {kinds}; its settings do not say (task_type)"
        )
    if not fits:
        expected = " or ".join(_some(layout.names()) for layout in layouts(base) if auto in (None, layout.auto))
        kind = f"for {auto} " if auto else ""
        raise AdapterError(
            f"{where}: {_some(tensors)} is not a head {kind}that Inlay has on {base.sites.arch.model_type}; "
            f"expected {expected or 'none'}"
        )
    layout = fits[0]
    weight = _turned(tensors[f"{layout.out}.weight"])
    count = weight.shape[-1] if weight.dim() else 0
    parts = {"weight": weight, "bias": tensors.get(f"{layout.out}.bias", torch.zeros(count, dtype=torch.float32))}
    if layout.dense:
        parts |= {"dense": _turned(tensors[f"{layout.dense}.weight"]), "dense_bias": tensors[f"{layout.dense}.bias"]}
    task, labels = meaning(
        layout.auto, count, names_of(config, count) or names_of(config_of(base.model).to_dict(), count)
    )
    if config.get("problem_type") == "multi_label_classification" and task == "classification":
        task = "multilabel"
    return head_parts(layout.kind, layout.pool, task, labels, parts)


def head_parts(kind: str, pool: str, task: str, labels: tuple[str, ...], tensors: Mapping[str, Tensor]) -> HeadParts:
    """A head, with tensors that own their memory."""
    return HeadParts(kind, pool, task, labels, {name: tensor.contiguous() for name, tensor in tensors.items()})


def meaning(auto: str, count: int, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The task and the labels of `count` outputs."""
    labels = tuple(names) or tuple(str(i) for i in range(count))
    if auto == SPANS:
        if count != 2:
            raise AdapterError(f"a head for questions has 2 outputs, start and end, not {count}")
        return "qa", ("start", "end")
    if auto == TOKENS:
        return "tagging", labels
    return ("regression", ("value",)) if count == 1 else ("classification", labels)


def names_of(config: Mapping[str, Any], count: int) -> list[str]:
    """Label names in a config, unless they are missing, do not match, or are LABEL_0, LABEL_1 ..."""
    id2label = config.get("id2label")
    if not isinstance(id2label, Mapping) and isinstance(config.get("label2id"), Mapping):
        id2label = {str(number): label for label, number in config["label2id"].items()}
    if not isinstance(id2label, Mapping):
        return []
    names = [id2label.get(i, id2label.get(str(i))) for i in range(count)]
    if len(id2label) != count or not all(isinstance(name, str) and name for name in names) or len(set(names)) < count:
        return []
    return [] if names == [f"LABEL_{i}" for i in range(count)] else [str(name) for name in names]


def write_head(head: HeadParts, base: Base) -> tuple[Layout, dict[str, Tensor]]:
    """A head in the form of one of these classes; an error says why none of them can have it."""
    per_token = head.pool == "tokens"
    spans = per_token and parse_task(head.task or "tagging").kind == "qa"
    auto = SPANS if spans else TOKENS if per_token else ROWS
    of_class = _of_class(base, auto)
    layout = next((known for known in of_class if (known.kind, known.pool) == (head.kind, head.pool)), None)
    class_name = f"{type(base.model).__name__.removesuffix('Model')}For{auto}"
    if layout is None:
        has = " or ".join(f"head={known.kind} on pool={known.pool}" for known in of_class) or "no such head"
        train = f"; train with {_options(of_class[0])} to have it" if of_class and not per_token else ""
        raise AdapterError(f"{class_name} cannot have head={head.kind} on pool={head.pool}: it has {has}{train}")
    if not layout.bias and head.tensors["bias"].abs().max() > 0:
        raise AdapterError(f"{class_name} has a head without a bias, and this adapter's has one")
    stored_names = {"weight": f"{layout.out}.weight", "bias": f"{layout.out}.bias"}
    if layout.dense:
        stored_names |= {"dense": f"{layout.dense}.weight", "dense_bias": f"{layout.dense}.bias"}
    keep = layout.names()
    return layout, {key: _turned(head.tensors[name]) for name, key in stored_names.items() if key in keep}


def cannot_leave(kind: str, pool: str, base: Base) -> str:
    """The options that a head on pooled rows needs to be exported; empty if it needs none, or if none would help."""
    exportable = _of_class(base, ROWS)
    fits = (kind, pool) in [(layout.kind, layout.pool) for layout in exportable]
    return "" if not exportable or fits else _options(exportable[0])


def _of_class(base: Base, auto: str) -> list[Layout]:
    has_pooler = base.sites.at("pooler") is not None
    return [layout for layout in layouts(base) if layout.auto == auto and (layout.pool != "pooler" or has_pooler)]


def _options(layout: Layout) -> str:
    """The options of `inlay train` that give this head."""
    return f"--pool {layout.pool}" + (f" --head {layout.kind}" if layout.kind != "linear" else "")


def model_config(head: HeadParts, auto: str, base: Base) -> dict[str, Any]:
    """The config of a model with this head, and with its labels, which are kept nowhere else."""
    config = copy.deepcopy(config_of(base.model))
    config.id2label = dict(enumerate(head.labels))
    config.label2id = {label: i for i, label in enumerate(head.labels)}
    config.architectures = [f"{type(base.model).__name__.removesuffix('Model')}For{auto}"]
    problems = {"multilabel": "multi_label_classification", "regression": "regression"}
    if auto == ROWS:
        kind = parse_task(head.task or "classification").kind
        config.problem_type = problems.get(kind, "single_label_classification")
    fields: dict[str, Any] = {key: value for key, value in config.to_dict().items() if not key.startswith("_")}
    return fields


def _turned(tensor: Tensor) -> Tensor:
    """A matrix transposed; a vector unchanged."""
    return (tensor.T if tensor.dim() == 2 else tensor).contiguous()


def _some(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys)[:4]) + (" ..." if len(set(keys)) > 4 else "")
