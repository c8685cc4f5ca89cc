"""Merge an adapter into the base's weights, where that is exact: the result is a plain Hugging Face model.

Every delta says how, or why not (`Delta.merged`): bottlenecks, token-dependent shifts and mixes of layers are not
weights of the base, and are refused. The head is part of the model if transformers has a class with the same one; a
temperature or a regression's scale is then in its weights, so that a plain softmax, sigmoid or value is Inlay's answer.
The written model is read back by transformers and compared with the host.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inlay.bank.group import is_head
from inlay.base.leaf import Leaf
from inlay.base.load import Base, _quiet
from inlay.base.sites import config_of
from inlay.data.batch import Batch
from inlay.engine.class_heads import HeadParts, model_config, write_head
from inlay.engine.host import Host
from inlay.errors import AdapterError, BaseError, InlayError, RunError
from inlay.interop.check import largest, padded, plain, rows_to_check, save_tokenizer, writing
from inlay.interop.exchange import answered, as_answered

TOLERANCE = 1e-5


@dataclass(frozen=True)
class Merged:
    """What was written."""

    folder: Path
    model: str
    """Its class in transformers."""
    bytes: int
    difference: float
    """The largest between that model, when read back, and the host."""


def merge(
    host: Host,
    name: str,
    folder: str | os.PathLike[str],
    *,
    without_head: bool = False,
    tokenizer: bool = True,
) -> Merged:
    """Write a model of transformers that gives what this adapter gives, or refuse with the reason.

    Args:
        folder: a new or empty one. It appears whole and checked, or not at all.
        without_head: only the encoder.
        tokenizer: put the base's tokenizer into it.
    """
    folder = Path(folder)
    plain(host.base, "a merged model")
    weights = merged_weights(host, name)
    head = None if without_head else _mergeable_head(host, name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} already exists; give a new folder")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _save(host, name, weights, head, part)
            del weights
            if tokenizer:
                save_tokenizer(host.base, part)
            model, difference = _compare(host, name, head, part)
            if not difference <= TOLERANCE:
                raise InlayError(
                    f"the merged model differs from {name!r} by {difference:.1e}, more than {TOLERANCE:.0e}: "
                    "nothing was written"
                )
            size = sum(file.stat().st_size for file in part.iterdir())
            _open_up(part)
            part.replace(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return Merged(folder, model, size, difference)


def merged_weights(host: Host, name: str) -> dict[str, Tensor]:
    """The base's parameters with an adapter merged into them; unchanged ones are the base's own tensors."""
    base, slot = host.base, host.slot(name)
    weights = {key: tensor.detach() for key, tensor in base.model.state_dict().items()}
    record, tensors = host.forward.bank.slot(slot), host.read(name)
    if record.weights is not None:
        return weights | record.weights.effective(base, slot, None)
    leaves, method = host.forward.wiring.leaves, "it" if record.method is None else record.method.spec
    for part in (part for part in record.parts if not is_head(part.site.kind)):
        leaf = leaves[part.site.name]
        stacks = {key: tensors[full].unsqueeze(0) for key, full in part.names().items()}
        changes = part.delta.merged({**stacks, **part.delta.derived(stacks, leaf)}, leaf)
        if isinstance(changes, str):
            raise AdapterError(f"{name!r} cannot be merged: {method} {changes}; serve it with Inlay instead")
        for key, change in changes.items():
            _add_to(weights, f"{part.site.path}.{key}", change, leaf, base)
    return weights


def _add_to(weights: dict[str, Tensor], name: str, change: Tensor, leaf: Leaf, base: Base) -> None:
    """Add to a copy of a parameter, or of the slice of it that is this site."""
    if name not in weights:
        raise AdapterError(f"{base.name} has no {name} that this adapter could be merged into")
    parameter = weights[name].double().clone()
    leaf.part_of(parameter).add_(change)
    weights[name] = parameter.float()


def _mergeable_head(host: Host, name: str) -> HeadParts:
    """The head; an error if none of transformers' classes can have it."""
    hint = "; pass without_head (--without-head) for the encoder alone"
    kind = host.head(name)
    if kind is None:
        raise AdapterError(f"{name!r} has no head{hint}")
    prefix = "head."
    tensors = {key.removeprefix(prefix): t for key, t in host.read(name).items() if key.startswith(prefix)}
    task = host.task(name)
    head = HeadParts(kind, host.pool(name), task.spec, host.labels(name), as_answered(task, tensors))
    try:
        write_head(head, host.base)
    except AdapterError as error:
        raise AdapterError(f"the head of {name!r} cannot be merged: {error}{hint}") from None
    return head


def _save(host: Host, name: str, weights: Mapping[str, Tensor], head: HeadParts | None, folder: Path) -> None:
    """Write the model: the base itself, or a class of transformers around it."""
    base, model = host.base, host.base.model
    if head is None:
        with _quiet():
            save: Any = model.save_pretrained
            save(folder, state_dict={key: tensor.contiguous() for key, tensor in weights.items()})
        return
    layout, of_head = write_head(head, base)
    config = type(config_of(model)).from_dict(model_config(head, layout.auto, base))
    config.inlay = {"name": name, "task": head.task}
    with torch.device("meta"), _quiet():
        whole = _auto_class(layout.auto).from_config(config)
    state = {f"{whole.base_model_prefix}.{key}": tensor.contiguous() for key, tensor in weights.items()} | of_head
    names = whole.state_dict().keys()
    if missing := sorted(names - state.keys()):
        raise BaseError(f"{base.name} lacks {missing[0]}, which {type(whole).__name__} has")
    whole.load_state_dict({key: state[key] for key in names}, assign=True)
    with _quiet():
        whole.save_pretrained(folder)


def _compare(host: Host, name: str, head: HeadParts | None, folder: Path) -> tuple[str, float]:
    """Read the folder as any user would: its class, and the largest difference from the host on texts."""
    batch = rows_to_check(host)
    names = [name] * len(batch.lengths)
    kind = None if head is None else write_head(head, host.base)[0].auto
    with _quiet(), torch.no_grad():
        model, report = _auto_class(kind).from_pretrained(folder, output_loading_info=True)
        missing = {key for key in report["missing_keys"] if not key.startswith("pooler")}
        if missing or report["unexpected_keys"] or report["mismatched_keys"]:
            raise InlayError(f"transformers does not find the merged weights again: {report}")
        factor, shift = (1.0, 0.0) if head is None else answered(host.task(name))
        expected = host.hidden(batch, names).rows() if head is None else host.logits(batch, names)
        actual = [_run(model.eval(), batch.take(np.array([row]))) for row in range(len(names))]
    differences = [largest(a, e * factor + shift) for a, e in zip(actual, expected, strict=True)]
    return type(model).__name__, max(differences)


def _run(model: nn.Module, row: Batch) -> Tensor:
    """The outputs for a single row, which models without padding can take, too."""
    inputs = padded(row)
    if int(getattr(config_of(model), "type_vocab_size", 0)) < 2:
        del inputs["token_type_ids"]
    out: Any = model(**inputs)
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], -1)[0]
    outputs: Tensor = out.logits if "logits" in out else out.last_hidden_state
    return outputs[0]


def _auto_class(kind: str | None) -> Any:
    """The class that loads a model of any architecture, with a head of this kind or with none."""
    import transformers

    return getattr(transformers, "AutoModel" if kind is None else f"AutoModelFor{kind}")


def _open_up(folder: Path) -> None:
    """Give a temporary folder and its files the permissions of any new ones."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.iterdir():
        file.chmod(0o666 & ~mask)
    folder.chmod(0o777 & ~mask)
