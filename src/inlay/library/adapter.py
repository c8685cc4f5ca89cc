"""An adapter as an artefact: tensors, and what is needed to use them rightly, in one safetensors file.

Head, label names, pooling and method travel with the tensors under one name, and the base is named by its
fingerprint, so none of them can be lost or mismatched on the way.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.errors import AdapterError, LibraryError, suggest
from inlay.library import header
from inlay.library.storage import Folder, read_file

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
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
    """Its initial values follow from the method, the base's shape and this."""
    head: str | None = None
    pool: str = "auto"
    labels: tuple[str, ...] = ()
    name: str = ""
    task: str = ""
    """The task's spec: how to encode a text and decode an answer."""
    about: dict[str, Any] = field(default_factory=dict, repr=False)
    """How it came to be: metrics, data, the run that trains it again. Free-form, and JSON."""
    base_name: str = field(default="", compare=False)
    """What the base was called where it was trained, for messages; a library's card keeps it, the file does not."""

    def to(self, dtype: str) -> Adapter:
        """The same adapter with its floating numbers in another type: `float16` halves the file, `float32` undoes it.

        Numbers that are too large for the type are an error; very small ones are rounded, to zero at worst.
        """
        import torch

        if dtype not in DTYPES:
            raise AdapterError(f"an adapter cannot be kept in {dtype!r}: {suggest(str(dtype), DTYPES)}")
        kind = getattr(torch, dtype)
        made: dict[str, Tensor] = {}
        for name, tensor in self.tensors.items():
            made[name] = tensor.to(kind) if tensor.is_floating_point() else tensor
            if tensor.is_floating_point() and bool((made[name].isinf() & ~tensor.isinf()).any()):
                most = float(tensor.abs().max())
                raise AdapterError(
                    f"{self.name or 'the adapter'} does not fit into {dtype}: {name} has numbers up to {most:g}, "
                    f"and {torch.finfo(kind).max:g} is the largest there; keep it as it is"
                )
        return dataclasses.replace(self, tensors=made)

    def content(self) -> bytes:
        """The bytes of its safetensors file; the same adapter always gives the same."""
        from safetensors import SafetensorError
        from safetensors.torch import save

        card = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name in _KINDS}
        try:
            text = json.dumps({"format": FORMAT, **card})
            tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()}
            made: bytes = save(tensors, metadata={"inlay": text})
        except (SafetensorError, TypeError, ValueError, RuntimeError) as error:
            raise AdapterError(f"{self.name or 'this adapter'} cannot be written: {error}") from None
        if int.from_bytes(made[:8], "little") > header.LIMIT:
            raise AdapterError(f"{self.name or 'this adapter'} cannot be written: what it says of itself is too long")
        return made

    @classmethod
    def of(cls, content: bytes, source: str) -> Adapter:
        """The adapter in the bytes of a file; errors name the source."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        card = _card(source, header.metadata_of(content, source).get("inlay"))
        try:
            tensors = load(content)
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, MemoryError) as error:
            raise AdapterError(f"{source} is not an adapter: {error}") from None
        return cls(tensors=tensors, **card)

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


def _card(path: object, text: Any) -> dict[str, Any]:
    if not isinstance(text, str):
        raise AdapterError(f"{path} is a safetensors file, but not one of Inlay's")
    try:
        card = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path} has a damaged card: {error}") from None
    if not isinstance(card, dict):
        raise AdapterError(f"{path} has a damaged card: it is not an object")
    version = card.pop("format", None)
    if version != FORMAT:
        raise AdapterError(f"{path} has format {version}, this version of Inlay reads {FORMAT}")
    if set(card) != set(_KINDS):
        raise AdapterError(f"{path} has a damaged card: expected {sorted(_KINDS)}, found {sorted(card)}")
    wrong = [key for key, kind in _KINDS.items() if not isinstance(card[key], kind)]
    wrong += ["labels"] if not wrong and not all(isinstance(label, str) for label in card["labels"]) else []
    if wrong:
        raise AdapterError(f"{path} has a damaged card: {wrong[0]} is {repr(card[wrong[0]])[:100]}")
    return {**card, "labels": tuple(card["labels"])}


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
