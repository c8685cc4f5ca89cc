"""API keys: a file of `name scopes key` lines, where a key is given plainly or as `sha256:` and its digest.

Only digests are kept, and a caller's key is compared with every one of them in constant time, so that neither the time
of an answer nor the memory of the process reveals anything about a key.

Without keys, anyone who reaches the service may ask, and nobody may change its tasks. A client's address proves
nothing: behind a proxy on this machine, all requests come from 127.0.0.1. Changes without a key need a Unix socket of
their own, or an operator who has allowed them; browsers are refused even then, since any web page could use them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request

from inlay.errors import InlayError
from inlay.serve.limits import Refused

Scope = Literal["predict", "manage"]
SCOPES: tuple[Scope, ...] = ("predict", "manage")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.IGNORECASE)
_NO_MANAGING = (
    "this service has no keys, so its tasks cannot be changed from here; restart it with --key-file F (changes then "
    "take a key with the scope manage), with --management-socket PATH (a Unix socket that only the service's user can "
    "open), or with --open-management (anyone who reaches the service may change its tasks)"
)
_NO_BROWSER = (
    "without a key, a web page cannot change the tasks of this service: leave out the Origin header, or use a key"
)


@dataclass(frozen=True)
class Key:
    """One key, and what it may do."""

    name: str
    scopes: frozenset[str]
    digest: bytes


class Keys:
    """Checks the keys of requests."""

    def __init__(self, keys: Sequence[Key] | None = None, open_management: bool = False, socket: str | None = None):
        """
        Args:
            open_management: without keys, anyone may manage tasks.
            socket: without keys, callers on this Unix socket may manage tasks.
        """
        self.keys = None if keys is None else tuple(keys)
        self.open_management, self.socket = open_management, socket

    @property
    def open(self) -> bool:
        """Whether no key is needed to ask."""
        return self.keys is None

    def check(self, request: Request, *scopes: Scope) -> str | None:
        """The name of the caller's key, which must have one of these scopes; None in an open service.

        Raises:
            Refused: 401 without a valid key, 403 where it does not suffice.
        """
        if self.keys is None:
            if scopes == ("manage",):
                self._check_open_management(request)
            return None
        key = self._find(_key_of(request))
        if key is None:
            raise Refused(
                401, "unauthorized", "a valid key is needed: send Authorization: Bearer KEY or X-API-Key: KEY"
            )
        if not key.scopes.intersection(scopes):
            needed = " or ".join(scopes)
            raise Refused(403, "forbidden", f"the key {key.name!r} does not have the scope that this needs: {needed}")
        return key.name

    def _check_open_management(self, request: Request) -> None:
        if not self.open_management and not self._over_socket(request):
            raise Refused(403, "forbidden", _NO_MANAGING)
        if "origin" in request.headers:  # browsers send it with every PUT and DELETE
            raise Refused(403, "forbidden", _NO_BROWSER)

    def _over_socket(self, request: Request) -> bool:
        """Whether a request came over the Unix socket, for which ASGI gives its path and no port."""
        return self.socket is not None and request.scope.get("server") == (self.socket, None)

    def _find(self, presented: str) -> Key | None:
        digest = hashlib.sha256(presented.encode("latin-1")).digest()
        matches = [key for key in self.keys or () if hmac.compare_digest(key.digest, digest)]  # compares all of them
        return matches[-1] if presented and matches else None


def read_keys(path: str | os.PathLike[str]) -> Keys:
    """The keys of a file; blank lines and lines that begin with # are skipped."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InlayError(f"the key file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    keys: list[Key] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            key = _parse(line, f"{path}:{number}")
            if key.name in {earlier.name for earlier in keys}:
                raise InlayError(f"{path}:{number}: the name {key.name!r} is used twice")
            keys.append(key)
    if not keys:
        raise InlayError(f"{path} has no keys; expected lines such as: web predict sha256:...")
    return Keys(keys)


def _parse(line: str, where: str) -> Key:
    parts = line.split()
    if len(parts) != 3:  # the line may hold a key: do not show it
        raise InlayError(f"{where}: expected a name, scopes and a key: web predict sha256:...")
    name, listed, key = parts
    scopes = listed.split(",")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown:
        raise InlayError(f"{where}: unknown scope {unknown[0]!r}. Valid: {', '.join(SCOPES)}")
    if key.lower().startswith("sha256:") and not _DIGEST.fullmatch(key):
        raise InlayError(f"{where}: after sha256: come 64 hexadecimal digits")
    plain = not _DIGEST.fullmatch(key)
    digest = hashlib.sha256(key.encode()).digest() if plain else bytes.fromhex(key.partition(":")[2])
    return Key(name, frozenset(scopes), digest)


def _key_of(request: Request) -> str:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "").strip()
