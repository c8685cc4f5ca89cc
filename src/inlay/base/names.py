"""What the name of a base says by itself, without torch."""

from __future__ import annotations

import os

from inlay.errors import BaseError


def check_folder(name: str) -> None:
    """Raise an error if it can only be a folder, and is not there; anything else may be a name on the hub."""
    if not os.path.isdir(name) and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise BaseError(f"there is no folder {name!r}")
