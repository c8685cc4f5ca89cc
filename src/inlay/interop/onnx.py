"""ONNX: one graph with the base once and many tasks, which a `task_id` per row chooses between.

    input_ids, attention_mask, token_type_ids   [rows, length] int64; the last where the base has token types
    task_id                                     [rows] int64: 0, 1, 2 ... in the order of `tasks`
    logits                                      [rows, widest]          of tasks that pool a row
    token_logits                                [rows, length, widest]  of tasks that answer for every token

Both hold -1e4 where there is nothing: beyond a task's labels, in a row of a task of the other kind, and at padding.
They are raw, as `Host.logits`: a temperature, or a regression's mean and scale, is in the task's spec. Specs and labels
are in the graph's metadata. Rows are padded at their end.

Before a graph is written, ONNX Runtime runs it, and its outputs are compared with the host's.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inlay.bank.planning import longest_row
from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.engine.predict import limit_of
from inlay.errors import AdapterError, ArchError, BaseError, InlayError, RunError
from inlay.heads.head import ROWS
from inlay.interop.check import largest, padded, plain, rows_to_check, save_tokenizer, writing
from inlay.interop.graph import Graph
from inlay.version import __version__

OPSET = 18
TOLERANCE = 1e-4
_NAMES = {ROWS: "logits"}
"""Names of outputs; the other is token_logits."""
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_ROWS = 32
"""Rows of a batch in the check."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    files: tuple[str, ...]
    """All in the same folder; the graph is the first."""
    bytes: int
    """Of the graph and its weights."""
    base_bytes: int
    adapter_bytes: int
    difference: float
    """The largest between ONNX Runtime and the host."""
    tasks: tuple[Mapping[str, Any], ...]
    """As in the metadata."""


def export(
    host: Host,
    names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    opset: int = OPSET,
    tokenizer: bool = True,
    external_data: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Write one graph of these adapters, and check it against the host.

    Args:
        names: the adapters; their places in this list are the graph's task ids.
        path: the file. It appears whole and checked, or not at all.
        opset: the version of ONNX's operators.
        tokenizer: put the base's tokenizer beside it.
        external_data: keep the weights in a file beside it, as always if they are over 2 GB.
        overwrite: replace existing files.
    """
    path = Path(path)
    _check(host, names, path, overwrite)
    if opset < OPSET:
        raise RunError(f"opset {opset} is not valid: expected {OPSET} or more")
    _packages()
    graph = Graph(host, names).eval()
    tasks = [_describe_task(host, i, name) for i, name in enumerate(names)]
    with writing(path), tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as made:
        part = Path(made)
        program = _trace(host, graph, opset)
        _describe(program, host, tasks)
        program.save(part / path.name, external_data=external_data or None)
        del program
        difference = compare(host, names, part / path.name)
        if not difference <= TOLERANCE:
            over = f"by {difference:.1e}, more than {TOLERANCE:.0e}"
            raise InlayError(f"ONNX Runtime differs from the host {over}: nothing was written")
        size = sum(file.stat().st_size for file in part.iterdir())
        if tokenizer:
            save_tokenizer(host.base, part)
        files = _move_files(part, path, overwrite)
    adapters, base = (_bytes(module) for module in (graph.adapters, graph.base))
    return Exported(path, files, size, base, adapters, difference, tuple(tasks))


def compare(host: Host, names: Sequence[str], path: str | os.PathLike[str]) -> float:
    """The largest difference between a graph in ONNX Runtime and the host, over mixed batches of all tasks."""
    (runtime,) = _packages("onnxruntime")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no class in common
        raise InlayError(f"ONNX Runtime {runtime.__version__} cannot load the graph: {str(error)[:200]}") from error
    batch = rows_to_check(host)
    texts = len(batch.lengths)
    each = 2 if len(names) > _ROWS else texts  # with many tasks, only a few texts for each
    work = [((task + i) % texts, task) for i in range(each) for task in range(len(names))]
    worst = 0.0
    for at in range(0, len(work), _ROWS):
        rows = batch.take(np.array([row for row, _ in work[at : at + _ROWS]]))
        ids = [task for _, task in work[at : at + _ROWS]]
        outputs = run(session, rows, ids)
        for i, expected in enumerate(host.logits_on_cpu(rows, [names[task] for task in ids])):
            actual = outputs["logits"][i] if expected.dim() == 1 else outputs["token_logits"][i, : len(expected)]
            worst = max(worst, largest(actual[..., : expected.shape[-1]], expected))
    return worst


def run(session: Any, batch: Batch, task_ids: Sequence[int]) -> dict[str, Tensor]:
    """The outputs of an ONNX Runtime session for the rows of a batch."""
    arrays = {name: tensor.numpy() for name, tensor in padded(batch).items()}
    arrays["task_id"] = torch.tensor(task_ids).numpy()
    wanted = {value.name for value in session.get_inputs()}
    results = session.run(None, {name: array for name, array in arrays.items() if name in wanted})
    outputs = [value.name for value in session.get_outputs()]
    return {name: torch.from_numpy(array) for name, array in zip(outputs, results, strict=True)}


def _check(host: Host, names: Sequence[str], path: Path, overwrite: bool) -> None:
    plain(host.base, "a graph")
    if not names:
        raise AdapterError("there is no adapter to export")
    if len(set(names)) < len(names):
        raise AdapterError(f"each adapter once: {', '.join(names)}")
    for name in names:
        task = host.task(name)
        if not task.gives_answers:
            raise AdapterError(f"{name!r} cannot be exported: {task.name} gives no answers")
        slot, special = host.slot(name), host.base.sites.single_slot
        if (weights := host.forward.bank.slot(slot).weights) is not None:
            spec = weights.method.spec
            raise AdapterError(
                f"{name!r} ({spec}) changes the base's own weights, so it cannot share them with other tasks in one "
                "graph; make a model of its own: inlay export merged"
            )
        if any(part.site.kind in special for part in host.forward.bank.slot(slot).parts):
            kinds = ", ".join(sorted(special))
            raise AdapterError(
                f"{name!r} changes {kinds}, which {host.base.name} also calls on things that are not rows"
            )
    if path.is_dir() or not path.parent.is_dir():
        raise RunError(f"{path}: {'this is a folder' if path.is_dir() else f'there is no folder {path.parent}'}")
    if path.exists() and not overwrite:
        raise RunError(f"{path} already exists; pass overwrite (--overwrite) to replace it")


def _trace(host: Host, graph: Graph, opset: int) -> Any:
    """The graph as a program of torch's exporter, with names for the dimensions that may vary."""
    rows, length = torch.export.Dim("rows"), torch.export.Dim("length", max=longest_row(host.base))
    ids = torch.ones(3, 5, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "task_id": torch.zeros(3, dtype=torch.long)}
    inputs |= {"token_type_ids": torch.zeros_like(ids)} if graph.takes_types else {}
    shapes = {name: {0: rows, 1: length} if tensor.dim() == 2 else {0: rows} for name, tensor in inputs.items()}
    outputs = [_NAMES.get(place, "token_logits") for place in graph.outputs]
    options: dict[str, Any] = {
        "input_names": list(inputs),
        "output_names": outputs,
        "dynamic_shapes": shapes,
        "opset_version": opset,
    }
    try:
        with torch.no_grad(), _quiet():
            return torch.onnx.export(graph, (), kwargs=inputs, dynamo=True, verbose=False, **options)
    except Exception as error:  # whatever a tracer says of a model that it cannot follow
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise ArchError(
            f"torch cannot turn {host.base.sites.arch.model_type} into a graph of opset {opset}: {reason[0]}"
        ) from error


def _describe(program: Any, host: Host, tasks: Sequence[Mapping[str, Any]]) -> None:
    """Describe the tasks in the metadata, and remove the tracer's notes, which include paths of this machine."""
    model = program.model
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.initializers.values(), *model.graph.inputs):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()
    model.metadata_props.update(
        {
            "inlay": __version__,
            "base": Path(name).name if Path(name := host.base.name).is_dir() else name,
            "fingerprint": host.base.fingerprint,
            "max_length": json.dumps(longest_row(host.base)),
            "tasks": json.dumps(tasks, ensure_ascii=False),
        }
    )


def _describe_task(host: Host, number: int, name: str) -> dict[str, Any]:
    task = host.task(name)
    return {
        "id": number,
        "name": name,
        "task": task.spec,
        "labels": list(host.labels(name)),
        "output": "token_logits" if host.pool(name) == "tokens" else "logits",
        "max_length": _longest_row(host, name),
    }


def _longest_row(host: Host, name: str) -> int | None:
    """The longest row of a task, in tokens."""
    try:
        return limit_of(host, name)
    except BaseError:  # no tokenizer, which may have a limit of its own
        return host.task(name).max_length or longest_row(host.base)


def _move_files(part: Path, path: Path, overwrite: bool) -> tuple[str, ...]:
    """Give the files their names, the graph last."""
    files = sorted((file.name for file in part.iterdir()), key=lambda name: (name != path.name, name))
    for name in files[1:]:
        there = path.parent / name
        if there.exists() and not overwrite and there.read_bytes() != (part / name).read_bytes():
            raise RunError(f"{there} already exists and differs; write to another folder, or leave the tokenizer out")
    for name in reversed(files):
        (part / name).replace(path.parent / name)
    return tuple(files)


def _bytes(module: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def _packages(*names: str) -> list[Any]:
    """Import packages, which are optional."""
    try:
        return [importlib.import_module(name) for name in names or _PACKAGES]
    except ImportError as error:
        raise RunError(f"ONNX needs {error.name}; pip install 'inlay[onnx]'") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which logs what it lacks (torchvision) and warns about itself; it raises real errors."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
