"""Where Inlay keeps what can be made again: fingerprints, encoded rows, compiled code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_OFF = "off"


def folder(kind: str) -> Path | None:
    """Where files of this kind are: in INLAY_CACHE, else the platform's folder for caches; None if it is off."""
    asked = os.environ.get("INLAY_CACHE")
    if asked is not None and asked.lower() == _OFF:
        return None
    try:
        return Path(asked or _platform()) / "inlay" / kind
    except RuntimeError:  # nobody's home is known
        return None


def _platform() -> str | Path:
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return os.environ.get("XDG_CACHE_HOME") or usual
