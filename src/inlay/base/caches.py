"""Where Inlay caches what it can make again: fingerprints, encoded rows, compiled code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_OFF = "off"


def folder(kind: str) -> Path | None:
    """The folder for files of this kind: in INLAY_CACHE, else in the platform's cache folder; None if that is off."""
    setting = os.environ.get("INLAY_CACHE")
    if setting is not None and setting.lower() == _OFF:
        return None
    try:
        return Path(setting or _platform()) / "inlay" / kind
    except RuntimeError:  # there is no home folder
        return None


def _platform() -> str | Path:
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    default = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return os.environ.get("XDG_CACHE_HOME") or default
