"""A base's name: a fingerprint of its weights.

It is a SHA-256 over (name, dtype, shape, bytes) of every parameter of the base model, as the checkpoint stores them.
So a folder or a hub name has the same fingerprint whatever dtype it runs in, and so does a model object that was loaded
in the checkpoint's dtype. It is cached by the identity of the weight files. The pooler has a fingerprint of its own,
because many checkpoints (for tagging, say) come without one: only adapters that use the pooler depend on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from inlay.base import caches

ATTACHED = "inlay_adapter"
"""Where an attached adapter's tensors live in a model; they are not part of the base."""
_CHUNK = 1 << 24
_CACHED = re.compile(r"(sha256:[0-9a-f]{64})\n((?:sha256:[0-9a-f]{64})?)\n")


def identity(prints: tuple[str, str], with_pooler: bool) -> str:
    """A base's name in an adapter's card."""
    return "+pooler:".join(prints) if with_pooler else prints[0]


def fingerprints(model: nn.Module) -> tuple[str, str]:
    """Hash the parameters of a base model, and those of its pooler (empty without one), a chunk at a time."""
    base, pooler = hashlib.sha256(), hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name.startswith(ATTACHED):
            continue
        digest = pooler if name.startswith("pooler") else base
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        for chunk in _chunks(tensor):
            digest.update(chunk)
    has_pooler = any(name.startswith("pooler") for name, _ in model.named_parameters())
    return f"sha256:{base.hexdigest()}", f"sha256:{pooler.hexdigest()}" if has_pooler else ""


def cached(model: nn.Module, folder: Path | None) -> tuple[str, str]:
    """The fingerprints of a model that was read from this folder; it is hashed only if its files are new."""
    files = weight_files(folder) if folder else []
    if not files:
        return fingerprints(model)
    facts_of_files = [(str(f.resolve()), (s := f.stat()).st_size, s.st_mtime_ns, s.st_ino) for f in files]
    facts_of_model = [str(next(model.parameters()).dtype), sorted(model.state_dict())]
    key = hashlib.sha256(json.dumps([facts_of_files, facts_of_model]).encode()).hexdigest()
    cache_folder = caches.folder("fingerprints")
    if cache_folder is None:
        return fingerprints(model)
    cache = cache_folder / key
    try:
        text = cache.read_text()
    except (OSError, ValueError):  # missing, another user's, or no text
        text = ""
    if match := _CACHED.fullmatch(text):
        return match[1], match[2]
    prints = fingerprints(model)
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        part = cache.with_suffix(f".{os.getpid()}")
        part.write_text("\n".join(prints) + "\n")
        part.replace(cache)
    except OSError:
        pass  # a cache that cannot be read or written only costs time
    return prints


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold a checkpoint's own weights."""
    return sorted(folder.glob("model*.safetensors"))


def _chunks(tensor: Tensor) -> Iterator[bytes]:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    for part in torch.split(flat, _CHUNK):
        yield part.cpu().numpy().tobytes()
