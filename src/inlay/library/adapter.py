"""An adapter as an artefact: tensors, and all that is needed to use them, in one safetensors file.

Head, label names, pooling and method travel with the tensors under one name, and the base is named by its
fingerprint, so none of them can be lost or mismatched on the way.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.errors import AdapterError, LibraryError, SpecError, suggest
from inlay.library import defaults, header
from inlay.library.storage import Folder, read_file
from inlay.registry import methods, tasks

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 2
"""1 has only the options of method and task that differ from the first defaults; 2 also has all of them in full."""
DTYPES = ("float16", "float32")


@dataclass(frozen=True)
class Adapter:
    """One trained (or fresh) adapter with its head."""

    method: str
    """The spec."""
    base: str
    """The fingerprint of the base it belongs to."""
    tensors: dict[str, Tensor] = field(repr=False)
    seed: int = 0
    """Decides its initial values, together with the method and the base's shape."""
    head: str | None = None
    pool: str = "auto"
    labels: tuple[str, ...] = ()
    name: str = ""
    task: str = ""
    """The task's spec: how to encode a text and decode an answer."""
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    """How it was made: metrics, data, the run that trains it again. Free-form JSON."""
    base_name: str = field(default="", compare=False)
    """The base's name where it was trained, for messages; a library's card keeps it, the file does not."""

    def to(self, dtype: str) -> Adapter:
        """The same adapter with its floating numbers in another type: `float16` halves the file, `float32` undoes it.

        Numbers that are too large for the type are an error; very small ones are rounded, to zero at worst.
        """
        import torch

        if dtype not in DTYPES:
            raise AdapterError(f"an adapter cannot be stored as {dtype!r}. {suggest(str(dtype), DTYPES)}")
        kind = getattr(torch, dtype)
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            tensors[name] = tensor.to(kind) if tensor.is_floating_point() else tensor
            if tensor.is_floating_point() and bool((tensors[name].isinf() & ~tensor.isinf()).any()):
                most = float(tensor.abs().max())
                raise AdapterError(
                    f"{self.name or 'the adapter'} does not fit into {dtype}: {name} has numbers up to {most:g}, "
                    f"and {torch.finfo(kind).max:g} is the largest there; keep it as it is"
                )
        return dataclasses.replace(self, tensors=tensors)

    def check(self) -> None:
        """Refuse what no training gives, and what would fail only when it is used."""
        if not isinstance(self.about.get("columns") or {}, Mapping):
            raise AdapterError(f"its columns are {self.about['columns']!r}; expected names by their role")
        twice = next((label for label in self.labels if self.labels.count(label) > 1), None)
        if twice is not None:
            raise AdapterError(f"its label {twice!r} appears twice")
        for name, tensor in self.tensors.items():
            if not tensor.is_floating_point() and not name.endswith("#index"):
                raise AdapterError(f"its tensor {name} holds {tensor.dtype}; expected floating-point numbers")
        task = defaults.known(tasks, self.task) if self.task else None
        if task is not None and self.head is not None and task.per_token != (self.pool == "tokens"):
            wanted = "tokens" if task.per_token else "a pooling of rows"
            raise AdapterError(f"its head has pool={self.pool}; a head for {task.name} has {wanted}")

    @property
    def full(self) -> dict[str, str]:
        """The specs of method and task with all their options, so that a changed default does not change them."""
        specs = {"method": defaults.in_full(methods, self.method)}
        return specs | ({"task": defaults.in_full(tasks, self.task)} if self.task else {})

    def content(self) -> bytes:
        """The bytes of its safetensors file; the same adapter always gives the same."""
        from inlay.library.tensors import written

        card = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name in _KINDS}
        try:
            text = json.dumps({"format": FORMAT, **card, "full": self.full})
            content = written(self.tensors, {"inlay": text})
        except (TypeError, ValueError, RuntimeError) as error:
            raise AdapterError(f"{self.name or 'this adapter'} cannot be written: {error}") from None
        if int.from_bytes(content[:8], "little") > header.LIMIT:
            raise AdapterError(f"{self.name or 'this adapter'} cannot be written: its card is too long")
        return content

    @classmethod
    def of(cls, content: bytes, source: str) -> Adapter:
        """The adapter in the bytes of a file; errors name the source."""
        return read_content(content, source)[0]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file; it appears whole or not at all."""
        path = Path(path)
        content = self.content()
        if not path.parent.is_dir():
            raise AdapterError(f"cannot write {path}: there is no folder {path.parent}")
        try:
            Folder(path.parent).replace(path.name, content)
        except LibraryError as error:
            raise AdapterError(str(error)) from None
        return path

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Adapter:
        """Read what `save` wrote."""
        try:
            content = read_file(Path(path))
        except (OSError, MemoryError) as error:
            raise AdapterError(f"{path} is not an adapter: {error}") from None
        return cls.of(content, str(path))


def read_content(content: bytes, source: str) -> tuple[Adapter, dict[str, Any]]:
    """The adapter in the bytes of a file, and the fields of its card exactly as written."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    written = _checked(source, header.card_of(content, source))
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, MemoryError) as error:
        raise AdapterError(f"{source} is not an adapter: {error}") from None
    fields = {key: written[key] for key in _KINDS} | {"labels": tuple(written["labels"])}
    try:
        specs = {key: defaults.today(written, key) for key in ("method", "task")}
        adapter = Adapter(tensors=tensors, **fields | specs)
        adapter.check()
    except (AdapterError, SpecError) as error:
        raise AdapterError(f"{source} cannot be used: {error}") from None
    return adapter, written


def _checked(path: str, card: dict[str, Any]) -> dict[str, Any]:
    version = card.pop("format", None)
    if isinstance(card.get("members"), list):
        raise AdapterError(f"{path} is an ensemble, which only names the files of its members; it is no adapter")
    if version not in (1, FORMAT):
        raise AdapterError(f"{path} has format {version}, this version of Inlay reads 1 to {FORMAT}")
    kinds = _KINDS | ({"full": dict} if version == FORMAT else {})
    if set(card) != set(kinds):
        raise AdapterError(f"{path} has a damaged card: expected {sorted(kinds)}, found {sorted(card)}")
    wrong = [key for key, kind in kinds.items() if not isinstance(card[key], kind)]
    wrong += ["labels"] if not wrong and not all(isinstance(label, str) for label in card["labels"]) else []
    wrong += ["full"] if not wrong and not all(isinstance(spec, str) for spec in card.get("full", {}).values()) else []
    if wrong:
        raise AdapterError(f"{path} has a damaged card: {wrong[0]} is {repr(card[wrong[0]])[:100]}")
    return card


_KINDS: dict[str, Any] = {
    "method": str,
    "base": str,
    "seed": int,
    "head": str | None,
    "pool": str,
    "labels": list,
    "name": str,
    "task": str,
    "about": dict,
}
