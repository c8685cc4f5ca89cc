"""A card: what is known of one version without reading its tensors. JSON, one small file per version.

A card ends with a digest of itself, so an edit by hand is noticed. Anyone can compute the digest, so `compare` also
checks a card against the adapter's own file, which its hash protects.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from inlay.errors import AdapterError, DamagedError, LibraryError
from inlay.library import defaults
from inlay.library.adapter import Adapter
from inlay.library.ensemble import METHOD, Ensemble
from inlay.library.header import json_object
from inlay.version import __version__

LIMIT = 4 * 1024 * 1024
"""Bytes of the longest card."""
GONE = b'{"removed": true}\n'
"""The content of the file of a removed card. It stays, so that its number is never used again."""
_HASH = re.compile(r"[0-9a-f]{64}")
_SAME_TOGETHER = ("name", "task", "base", "labels", "weights")
_SAME = ("name", "method", "task", "full", "base", "labels", "head", "pool", "seed")
_KINDS: dict[str, Any] = {
    "name": str,
    "version": int,
    "sha256": str,
    "bytes": int,
    "created": str,
    "method": str,
    "task": str,
    "base": str,
    "labels": list,
    "head": str | None,
    "pool": str,
    "seed": int,
    "parents": list,
}
OWN = frozenset({"inlay", "digest", "full", *_KINDS})
"""Fields that only the card itself may set."""


@dataclass(frozen=True)
class Entry:
    """One version of one adapter in a library."""

    name: str
    version: int
    sha256: str
    bytes: int
    card: Mapping[str, Any]
    """Everything known about it without reading its tensors."""
    aliases: tuple[str, ...] = field(default=(), compare=False)
    """The aliases that pointed to it when it was found."""

    @property
    def ref(self) -> str:
        """`sms@3`."""
        return f"{self.name}@{self.version}"

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of an ensemble; none for an adapter."""
        members = self.card.get("members")
        return tuple(Member(card["name"], 0, card["sha256"], card["bytes"], card) for card in members or ())

    def check_one(self, what: str) -> None:
        """An error if it is an ensemble, which cannot be `what`."""
        if self.members:
            problem = f"{self.ref} is an ensemble of {len(self.members)}; it cannot be {what}"
            raise AdapterError(f"{problem}: {one_instead(self.name)}")

    @property
    def blobs(self) -> tuple[str, ...]:
        """The hashes of all its files."""
        return (self.sha256, *(member.sha256 for member in self.members))

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return self.bytes + sum(member.bytes for member in self.members)

    @property
    def parents(self) -> list[str]:
        """What it was made from: refs or hashes."""
        return list(self.card.get("parents", ()))


@dataclass(frozen=True)
class Member(Entry):
    """A member of an ensemble; it may have no version of its own."""

    @property
    def ref(self) -> str:
        """`sms#3f2a...`: the same wherever the same file is a member."""
        return f"{self.name}#{self.sha256[:16]}"


class Problem(NamedTuple):
    """Something that is wrong in a library."""

    ref: str
    """`sms@3`, or empty if it is not known."""
    path: str
    message: str


def one_instead(name: str) -> str:
    """What to use instead of an ensemble."""
    return f"name a member that is in the library, or train one adapter on its answers (inlay train --teacher {name})"


def blob_path(sha256: str) -> str:
    """Where an adapter's file is."""
    return f"blobs/{sha256}.safetensors"


def hash_of(path: str) -> str | None:
    """The hash of the blob at a path; None if the path is not that of a blob."""
    sha256 = path.rpartition("/")[2].removesuffix(".safetensors")
    return sha256 if path.endswith(f"/{sha256}.safetensors") and _HASH.fullmatch(sha256) else None


def card_path(name: str, version: int) -> str:
    """Where the card of a version is."""
    return f"adapters/{name}/{version}.json"


def make(
    adapter: Adapter | Ensemble, sha256: str, size: int, extra: Mapping[str, Any], parents: Sequence[str] | None
) -> dict[str, Any]:
    """The card of an adapter or an ensemble, except its name and version."""
    taken = sorted(OWN & set(extra))
    if taken:
        raise LibraryError(f"{taken[0]!r} is set by the card itself; use another key")
    if isinstance(parents, str):
        parents = [parents]
    # an adapter from elsewhere may say anything: it must not set the fields of the card itself
    about = {key: value for key, value in adapter.about.items() if key != "history" and key not in OWN}
    known = adapter.about.get("parents", []) if parents is None else parents
    return {
        "sha256": sha256,
        "bytes": size,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "inlay": __version__,
        "method": adapter.method,
        "task": adapter.task,
        "full": adapter.full,
        "base": adapter.base,
        "labels": list(adapter.labels),
        "head": adapter.head,
        "pool": adapter.pool,
        "seed": adapter.seed,
        "parents": [str(parent) for parent in known] if isinstance(known, list | tuple) else [],
        **about,
        **extra,
    }


def method_of(card: Mapping[str, Any]) -> str:
    """The method's spec as it is written today."""
    return METHOD if card.get("method") == METHOD else defaults.today(card, "method")


def task_of(card: Mapping[str, Any]) -> str:
    """The task's spec as it is written today."""
    return defaults.today(card, "task")


def encode(card: Mapping[str, Any], name: str, version: int) -> bytes:
    """A card as the bytes of its file."""
    try:
        whole = json.loads(json.dumps({"name": name, "version": version, **card}))
        text = json.dumps({**whole, "digest": digest_of(whole)}, indent=2, ensure_ascii=False)
        content = (text + "\n").encode("utf-8")
    except (TypeError, ValueError) as error:
        raise LibraryError(f"the card of {name} cannot be written: {error}") from None
    if len(content) > LIMIT:
        raise LibraryError(f"the card of {name} has {len(content):,} bytes; at most {LIMIT:,} are possible")
    return content


def decode(content: bytes | LibraryError, name: str, version: int, where: str) -> Entry:
    """The entry of a card's file, which must be the one of this name and version.

    Args:
        content: what is in the file, or the error of reading it, which is raised.
    """
    if isinstance(content, LibraryError):
        raise content
    try:
        card = json_object(content)
    except ValueError as error:
        raise DamagedError(f"{where} is not a card: {error}") from None
    wrong = [key for key, kind in _KINDS.items() if key not in card or not _is(card[key], kind)]
    wrong += [key for key in ("labels", "parents") if not wrong and not all(isinstance(x, str) for x in card[key])]
    if wrong:
        raise DamagedError(f"{where} is not a card: {wrong[0]} is {repr(card.get(wrong[0]))[:100]}")
    if (card["name"], card["version"]) != (name, version):
        raise DamagedError(f"{where} is the card of {card['name'][:100]!r} {card['version']}, not of {name} {version}")
    if not _HASH.fullmatch(card["sha256"]) or card["bytes"] < 0:
        raise DamagedError(f"{where} is not a card: it does not name a file by its SHA-256 and size")
    if card.get("digest") != digest_of(card):
        raise DamagedError(f"{where} is damaged: it was changed after it was written (its digest does not match)")
    if card["method"] == METHOD and not _are_members(card.get("members")):
        raise DamagedError(f"{where} is not a card: it does not name the members of the ensemble")
    return Entry(name, version, card["sha256"], card["bytes"], card)


def _are_members(members: Any) -> bool:
    kinds = {"name": str, "sha256": str, "bytes": int, "method": str, "task": str, "labels": list}
    return isinstance(members, list) and all(
        isinstance(m, Mapping) and all(_is(m.get(key), kind) for key, kind in kinds.items()) for m in members
    )


def compare(entry: Entry, written: Mapping[str, Any], where: str) -> None:
    """Refuse a card that differs from the adapter's own file."""
    for key in _SAME_TOGETHER if entry.members else _SAME:
        if entry.card.get(key) != written.get(key):
            card, file = (repr(fields.get(key))[:100] for fields in (entry.card, written))
            raise DamagedError(f"{entry.ref} is damaged: {key} is {card} in {where}, but {file} in the adapter itself")


def digest_of(card: Mapping[str, Any]) -> str:
    """The digest of all other fields."""
    fields = {key: value for key, value in card.items() if key != "digest"}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)  # True is an int
