"""The base that all parties run: a checkpoint, or a shape with random weights that is written out for the peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from inlay.base.load import load
from inlay.base.places import DEFAULT, SHAPES, locate
from inlay.engine.host import Host
from inlay.errors import RunError, suggest

DEFAULT_SHAPE = "minilm"


class _NoTokenizer:
    """For a base of random weights, which has no tokenizer: rows are token ids already."""

    model_max_length = 512


def folder_of(shape: str, base: str | None, scratch: Path) -> str:
    """The folder that all parties load: of `base`, of the default base (`minilm`), or of a new random model."""
    from transformers import AutoConfig, AutoModel

    if base is not None or shape == DEFAULT_SHAPE:
        loaded = load(base, device="cpu", dtype=torch.float32)
        if loaded.folder is None:
            raise RunError(f"{loaded.name} is not in a folder, and the peers read it from one")
        return str(loaded.folder)
    if shape not in SHAPES:
        raise RunError(f"unknown shape {shape!r}. {suggest(shape, (DEFAULT_SHAPE, *SHAPES))}")
    options = dict(SHAPES[shape])
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModel.from_config(config)
    folder = scratch / shape
    model.save_pretrained(folder)
    return str(folder)


def host_on(folder: str, device: str, weights: str | None = None) -> Host:
    """A host on that folder, ready to run on rows of ids, and to train unless it is for serving only."""
    host = Host(folder, device=device, compile=device == "cuda", weights=weights)
    if not _has_tokenizer(folder):
        host.base.tokenizer = _NoTokenizer()
    return host


def tokenizer_for(folder: str) -> Any:
    """The folder's own tokenizer, else the default base's: a random shape has BERT's vocabulary."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder if _has_tokenizer(folder) else locate(DEFAULT)[0])


def _has_tokenizer(folder: str) -> bool:
    return any(file for pattern in ("*token*", "vocab*", "*.model") for file in Path(folder).glob(pattern))
