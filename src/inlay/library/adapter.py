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

from inlay.errors import AdapterError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1


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

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file; it appears whole or not at all."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        path = Path(path)
        card = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "tensors"}
        text = json.dumps({"format": FORMAT, **card})
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            tensors = {name: t.detach().cpu().contiguous() for name, t in self.tensors.items()}
            save_file(tensors, part, metadata={"inlay": text})
            part.replace(path)
        except (OSError, SafetensorError) as error:
            raise AdapterError(f"cannot write {path}: {error}") from None
        finally:
            part.unlink(missing_ok=True)
        return path

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Adapter:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                card = _card(path, (file.metadata() or {}).get("inlay"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise AdapterError(f"{path} is not an adapter: {error}") from None
        return cls(tensors=tensors, **card)


def _card(path: object, text: str | None) -> dict[str, Any]:
    if text is None:
        raise AdapterError(f"{path} is a safetensors file, but not one of Inlay's")
    try:
        card = json.loads(text)
    except json.JSONDecodeError as error:
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
        raise AdapterError(f"{path} has a damaged card: {wrong[0]} is {card[wrong[0]]!r}")
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
