"""API keys: a file of `name scopes key` lines, where a key is given plainly or as `sha256:` and its digest.

Only digests are kept, and whoever asks is compared with every key in constant time, so that neither the time an answer
takes nor the memory of the process says anything about a key. Without keys the service is open to whoever can reach it,
but tasks are managed from this machine alone: not through a proxy, and not by a web page that a browser here shows.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request

from inlay.errors import InlayError
from inlay.serve.limits import Refused

Scope = Literal["predict", "manage"]
SCOPES: tuple[Scope, ...] = ("predict", "manage")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.IGNORECASE)
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


@dataclass(frozen=True)
class Key:
    """Who may do what."""

    name: str
    scopes: frozenset[str]
    digest: bytes


class Keys:
    """Decides who may do what."""

    def __init__(self, keys: Sequence[Key] | None = None):
        self.keys = None if keys is None else tuple(keys)

    @property
    def open(self) -> bool:
        """Whether anyone may ask."""
        return self.keys is None

    def check(self, request: Request, *scopes: Scope) -> str | None:
        """The name of the caller's key, which must have one of these scopes; None in an open service.

        Raises:
            Refused: 401 without a valid key, 403 where it does not suffice.
        """
        if self.keys is None:
            if scopes == ("manage",) and not from_here(request):
                raise Refused(403, "forbidden", "without a key file, tasks are managed from the same machine alone")
            return None
        key = self._of(_presented(request))
        if key is None:
            raise Refused(401, "unauthorized", "a valid key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")
        if not key.scopes.intersection(scopes):
            raise Refused(403, "forbidden", f"the key of {key.name} is not for this: it needs {' or '.join(scopes)}")
        return key.name

    def _of(self, presented: str) -> Key | None:
        digest = hashlib.sha256(presented.encode("latin-1")).digest()
        found = None
        for key in self.keys or ():  # all of them, whichever fits
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found if presented else None


def read_keys(path: str | os.PathLike[str]) -> Keys:
    """The keys of a file; blank lines and those that begin with # do not count."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InlayError(f"the key file {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    keys: list[Key] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            key = _key(line, f"{path}:{number}")
            if key.name in {one.name for one in keys}:
                raise InlayError(f"{path}:{number}: the name {key.name!r} is there twice")
            keys.append(key)
    if not keys:
        raise InlayError(f"{path} has no keys; expected lines such as: web predict sha256:...")
    return Keys(keys)


def from_here(request: Request) -> bool:
    """Whether a request comes from this machine itself, asking for it by a name of its own."""
    if request.client is None or not _loopback(request.client.host):
        return False
    if any(name in request.headers for name in _FORWARDED):
        return False
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return False
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    return name == "localhost" or _loopback(name.strip("[]"))


def _key(line: str, where: str) -> Key:
    parts = line.split()
    if len(parts) != 3:  # a key is never shown
        raise InlayError(f"{where}: expected a name, scopes and a key: web predict sha256:...")
    name, scopes, key = parts
    given = scopes.split(",")
    unknown = [scope for scope in given if scope not in SCOPES]
    if unknown:
        raise InlayError(f"{where}: there is no scope {unknown[0]!r}; valid: {', '.join(SCOPES)}")
    if key.lower().startswith("sha256:") and not _DIGEST.fullmatch(key):
        raise InlayError(f"{where}: after sha256: come 64 hexadecimal digits")
    plain = not _DIGEST.fullmatch(key)
    digest = hashlib.sha256(key.encode()).digest() if plain else bytes.fromhex(key.partition(":")[2])
    return Key(name, frozenset(given), digest)


def _presented(request: Request) -> str:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "").strip()


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
