"""Merge an adapter into the base's weights, where that is exact: a plain Hugging Face model comes out of it.

Every delta says how, or why not (`Delta.merged`): bottlenecks, token-dependent shifts and mixes of layers are no
weights of the base, and are refused. A head goes with it where transformers has a model with the same one, with a
temperature or a regression's scale in its weights: a plain softmax, sigmoid or value is then what Inlay answers. What
is written has been read back by transformers and run against the host.
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
    """The class of transformers that it is."""
    bytes: int
    difference: float
    """The largest between that model, read back, and the host."""


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
        folder: it must not be there, or be empty. It appears whole and checked, or not at all.
        without_head: the encoder alone.
        tokenizer: put the base's tokenizer into it.
    """
    folder = Path(folder)
    plain(host.base, "a merged model")
    weights = merged_weights(host, name)
    head = None if without_head else _head(host, name)
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
    """The base's parameters with an adapter merged into them; those it does not change are the base's own."""
    base, slot = host.base, host.slot(name)
    weights = {key: tensor.detach() for key, tensor in base.model.state_dict().items()}
    record, tensors = host.forward.bank.slot(slot), host.read(name)
    if record.weights is not None:
        return weights | record.weights.effective(base, slot, None)
    leaves, method = host.forward.wiring.leaves, "it" if record.method is None else record.method.spec
    for part in (part for part in record.parts if not is_head(part.site.kind)):
        leaf = leaves[part.site.name]
        own = {key: tensors[full].unsqueeze(0) for key, full in part.names().items()}
        changes = part.delta.merged({**own, **part.delta.derived(own, leaf)}, leaf)
        if isinstance(changes, str):
            raise AdapterError(f"{name!r} cannot be merged: {method} {changes}; serve it with Inlay instead")
        for key, change in changes.items():
            _add(weights, f"{part.site.path}.{key}", change, leaf, base)
    return weights


def _add(weights: dict[str, Tensor], name: str, change: Tensor, leaf: Leaf, base: Base) -> None:
    """Add to a parameter, or to the slice of it that is this site; the base's own tensor stays as it is."""
    if name not in weights:
        raise AdapterError(f"{base.name} has no {name} that this adapter could be merged into")
    found = weights[name].double().clone()
    leaf.part_of(found).add_(change)
    weights[name] = found.float()


def _head(host: Host, name: str) -> HeadParts:
    """The head, if one of transformers' classes can have it; an error says why not."""
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
    """Write the model: the base itself, or one of transformers' classes around it."""
    base, model = host.base, host.base.model
    if head is None:
        with _quiet():
            save: Any = model.save_pretrained
            save(folder, state_dict={key: tensor.contiguous() for key, tensor in weights.items()})
        return
    layout, own = write_head(head, base)
    config = type(config_of(model)).from_dict(model_config(head, layout.auto, base))
    config.inlay = {"name": name, "task": head.task}
    with torch.device("meta"), _quiet():
        whole = _class(layout.auto).from_config(config)
    state = {f"{whole.base_model_prefix}.{key}": tensor.contiguous() for key, tensor in weights.items()} | own
    wanted = whole.state_dict().keys()
    if missing := sorted(wanted - state.keys()):
        raise BaseError(f"{base.name} lacks {missing[0]}, which {type(whole).__name__} has")
    whole.load_state_dict({key: state[key] for key in wanted}, assign=True)
    with _quiet():
        whole.save_pretrained(folder)


def _compare(host: Host, name: str, head: HeadParts | None, folder: Path) -> tuple[str, float]:
    """Read the folder as anyone would: the class it is, and its largest difference from the host on texts."""
    batch = rows_to_check(host)
    names = [name] * len(batch.lengths)
    kind = None if head is None else write_head(head, host.base)[0].auto
    with _quiet(), torch.no_grad():
        model, report = _class(kind).from_pretrained(folder, output_loading_info=True)
        missing = {key for key in report["missing_keys"] if not key.startswith("pooler")}
        if missing or report["unexpected_keys"] or report["mismatched_keys"]:
            raise InlayError(f"transformers does not find the merged weights again: {report}")
        factor, shift = (1.0, 0.0) if head is None else answered(host.task(name))
        expected = host.hidden(batch, names).rows() if head is None else host.logits(batch, names)
        found = [_run(model.eval(), batch.take(np.array([row]))) for row in range(len(names))]
    return type(model).__name__, max(
        largest(got, want * factor + shift) for got, want in zip(found, expected, strict=True)
    )


def _run(model: nn.Module, row: Batch) -> Tensor:
    """A row alone, so that models without padding can take it."""
    inputs = padded(row)
    if int(getattr(config_of(model), "type_vocab_size", 0)) < 2:
        del inputs["token_type_ids"]
    out: Any = model(**inputs)
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], -1)[0]
    found: Tensor = out.logits if "logits" in out else out.last_hidden_state
    return found[0]


def _class(kind: str | None) -> Any:
    """What loads a model of any architecture, with a head of this kind or without one."""
    import transformers

    return getattr(transformers, "AutoModel" if kind is None else f"AutoModelFor{kind}")


def _open_up(folder: Path) -> None:
    """Give a temporary folder and its files the rights that any new ones have."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.iterdir():
        file.chmod(0o666 & ~mask)
    folder.chmod(0o777 & ~mask)
