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
    """An alias: as a name, but it starts with a letter, so that it is never taken for a version."""
    if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
        raise LibraryError(f"an alias starts with a letter and has ASCII letters, digits, - _ and . only: {alias!r}")
    return alias


def is_name(name: str) -> bool:
    """Whether this can be the name of an adapter."""
    return _NAME.fullmatch(name) is not None


def is_alias(alias: str) -> bool:
    """Whether this can be an alias."""
    return _ALIAS.fullmatch(alias) is not None


def number_of(text: str) -> int | None:
    """The version a text stands for; None if it is not a version."""
    return int(text) if _VERSION.fullmatch(text) else None


def split_ref(ref: str) -> tuple[str, str | None]:
    """`sms@3` is (`sms`, `3`), `sms` is (`sms`, None)."""
    if not isinstance(ref, str):
        raise LibraryError(f"an adapter is named by a text such as sms or sms@3, not by {ref!r}")
    name, at, which = ref.partition("@")
    return check_name(name), which if at else None
