"""Read and write the files of other libraries: JSON, safetensors, and torch's own format without running any of it.

The files come from strangers. Every file has a limit, a `.bin` is a zip of stored (not compressed) parts that only
torch's restricted unpickler reads, and no tensor may claim more numbers than its file has bytes for. That unpickler
calls more than tensors need (`bytearray(10**12)`), so the names in a pickle are checked before it is run.
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.errors import AdapterError
from inlay.library.header import LIMIT as _HEADER_LIMIT
from inlay.library.tensors import written

CONFIG = "adapter_config.json"
"""The file of an adapter's settings, in peft and in AdapterHub."""
_JSON_LIMIT = 4 << 20
_WEIGHTS_LIMIT = 8 << 30
_CALLS = re.compile(r"collections OrderedDict|torch (\w+Storage)|torch\._utils _rebuild_(tensor_v2|parameter)")
"""What the pickle of a state dict calls."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        if path.stat().st_size > _JSON_LIMIT:
            raise AdapterError(f"{path} has more than {_JSON_LIMIT:,} bytes, which is too many for settings")
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AdapterError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path} is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise AdapterError(f"{path} holds a {type(settings).__name__}, not settings by name")
    return settings


def peek(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one if there is none that can be read."""
    try:
        return read_json(path) if path.is_file() else {}
    except AdapterError:
        return {}


def read_tensors(folder: Path, safe: str, pickled: str) -> dict[str, Tensor]:
    """The weights in a folder, in float32: from the safetensors file if there is one, else from the other."""
    path = folder / safe if (folder / safe).is_file() else folder / pickled
    if not path.is_file():
        raise AdapterError(f"{folder} has neither {safe} nor {pickled}")
    size = path.stat().st_size
    if size > _WEIGHTS_LIMIT:
        raise AdapterError(f"{path} has {size:,} bytes; more than {_WEIGHTS_LIMIT:,} is no adapter")
    values = _safetensors(path, size) if path.name == safe else _torch(path)
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor) and isinstance(name, str)}
    if len(tensors) < len(values):
        raise AdapterError(f"{path} holds something other than tensors by name")
    wrong = next((name for name, t in tensors.items() if t.dtype not in _FLOATS or t.layout != torch.strided), None)
    if wrong is not None:
        raise AdapterError(f"{path}: {wrong} holds {tensors[wrong].dtype}, not plain floating-point numbers")
    if sum(t.numel() * t.element_size() for t in tensors.values()) > size:
        raise AdapterError(f"{path}: its tensors claim more numbers than the file has bytes for")
    return {name: _finite(path, name, value) for name, value in tensors.items()}


def _finite(path: Path, name: str, value: Tensor) -> Tensor:
    number = value.detach().to(torch.float32)
    if not torch.isfinite(number).all():
        raise AdapterError(f"{path}: {name} has numbers that are not finite")
    return number.contiguous()


def _safetensors(path: Path, size: int) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if header > min(size, _HEADER_LIMIT):
        raise AdapterError(f"{path} is not a safetensors file: its header claims {header:,} bytes")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise AdapterError(f"{path} is not a safetensors file: {error}") from None


def _torch(path: Path) -> dict[Any, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise AdapterError(
            f"{path} is not a file of torch's zip format ({error}); save it again as safetensors"
        ) from None
    if any(p.compress_type != zipfile.ZIP_STORED or p.file_size != p.compress_size for p in parts):
        raise AdapterError(f"{path} has compressed parts, which torch does not write; it is refused")
    if sum(p.file_size for p in parts) > path.stat().st_size:
        raise AdapterError(f"{path} claims to hold more than it has bytes for; it is refused")
    try:
        strange = _strange_call(path)
        values = torch.load(path, map_location="cpu", weights_only=True) if strange is None else None
    except Exception as error:  # whatever a stranger's bytes provoke
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise AdapterError(f"{path} cannot be read: {first}") from None
    if strange is not None:
        raise AdapterError(f"{path} cannot be read without running code from it: it calls {strange}; it is refused")
    if not isinstance(values, dict):
        raise AdapterError(f"{path} holds a {type(values).__name__}, not tensors by name")
    return dict(values)


def _strange_call(path: Path) -> str | None:
    """The first thing that a pickle in a zip would call and no tensor needs."""
    with zipfile.ZipFile(path) as archive:
        for part in archive.namelist():
            for code, argument, _ in pickletools.genops(archive.read(part)) if part.endswith(".pkl") else ():
                if code.name == "GLOBAL" and not _CALLS.fullmatch(str(argument)):
                    return str(argument).replace(" ", ".")[:100]
                if code.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):  # torch writes none of them
                    return f"something by {code.name}"
    return None


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, each whole or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            part = folder / f".{name}.{os.getpid()}"
            try:
                part.write_bytes(content)
                part.replace(folder / name)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise AdapterError(f"cannot write {folder}: {error}") from None


def as_json(settings: Mapping[str, Any]) -> bytes:
    """Settings as indented JSON."""
    return (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode()


def as_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Weights as peft and adapters read them."""
    return written(tensors, {"format": "pt"})


def as_torch(tensors: Mapping[str, Tensor]) -> bytes:
    """Weights in torch's own format, which its restricted unpickler reads."""
    buffer = io.BytesIO()
    torch.save(dict(tensors), buffer)
    return buffer.getvalue()


def plain_name(text: object, otherwise: str) -> str:
    """A valid name for a library, from any text."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", str(text or otherwise)).strip("-")[:80]
    return name or "imported"


@dataclass
class Keys:
    """The tensors of a file, taken one by one; those left at the end are unknown."""

    path: Path
    tensors: dict[str, Tensor]
    base: str
    """The base's name, for messages."""
    taken: set[str] = field(default_factory=set)

    def take(self, key: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """A tensor that must exist, in this shape if one is given."""
        if key not in self.tensors:
            raise AdapterError(f"{self.path} lacks {key}")
        tensor = self.tensors[key]
        if shape is not None and tuple(tensor.shape) != shape:
            raise AdapterError(f"{self.path}: {key} is {tuple(tensor.shape)}, but {shape} on {self.base}")
        self.taken.add(key)
        return tensor

    def left(self) -> list[str]:
        """The keys that were not taken."""
        return sorted(set(self.tensors) - self.taken)

    def __contains__(self, key: str) -> bool:
        return key in self.tensors

    def finish(self) -> None:
        """Refuse what was not taken."""
        rest = self.left()
        if rest:
            others = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
            raise AdapterError(f"{self.path} holds {rest[0]}{others}, which has no place in an adapter of {self.base}")
