"""Names, versions and aliases in a library: `sms`, `sms@3`, `sms@prod`. All of them are safe as file names."""

from __future__ import annotations

import re

from inlay.errors import LibraryError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_VERSION = re.compile(r"[1-9][0-9]{0,14}")


def check_name(name: str) -> str:
    """A name that is a safe file name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise LibraryError(
            f"{name!r} is not a valid name: use ASCII letters, digits, - _ and . only, "
            "and begin with a letter, a digit or _"
        )
    return name


def check_alias(alias: str) -> str:
    """A valid alias: like a name, but it starts with a letter, so that it is never taken for a version."""
    if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
        raise LibraryError(f"an alias starts with a letter and has ASCII letters, digits, - _ and . only: {alias!r}")
    return alias


def number_of(text: str) -> int | None:
    """The number of a version in a text; None if the text is not a version."""
    return int(text) if _VERSION.fullmatch(text) else None


def parse(path: str) -> tuple[str, str | None, int] | None:
    """(name, None, version) for a card's path, (name, alias, move) for an alias's, None for any other."""
    parts = path.split("/")
    number = number_of(parts[-1].removesuffix(".json")) if parts[-1].endswith(".json") else None
    if number is None or len(parts) < 3 or not _NAME.fullmatch(parts[1]):
        return None
    if len(parts) == 3:
        return parts[1], None, number
    if len(parts) == 5 and parts[2] == "aliases" and _ALIAS.fullmatch(parts[3]):
        return parts[1], parts[3], number
    return None


def split_ref(ref: str) -> tuple[str, str | None]:
    """`sms@3` is (`sms`, `3`), `sms` is (`sms`, None)."""
    if not isinstance(ref, str):
        raise LibraryError(f"an adapter is named by a text such as sms or sms@3, not by {ref!r}")
    name, at, which = ref.partition("@")
    return check_name(name), which if at else None
