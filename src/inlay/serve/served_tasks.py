"""Which version is served under which name, and which adapters are no longer needed.

A switch is one assignment. A version that was replaced stays until its last ask is answered; only then may its adapter
leave, unless it is also served under another name.

Not safe in threads: the engine holds its lock around every call except `waits`.
"""

from __future__ import annotations

import bisect
import difflib
from collections import Counter
from collections.abc import Collection

from inlay.errors import SlotError, suggest
from inlay.library.names import number_of
from inlay.serve.version import Version

_FEW = 20
"""Names that an error lists."""
_COMPARED = 32
"""How many names before and after an unknown one, by the alphabet, are compared with it."""


class Unknown(SlotError):  # noqa: N818 - as Busy and Late
    """A task that is not served."""

    def __init__(self, name: str):
        super().__init__(f"no task {name[:100]!r} is served")


class ServedTasks:
    """Versions by name."""

    def __init__(self) -> None:
        self.served: dict[str, Version] = {}
        self.open = 0
        """Asks of all versions that are not answered yet."""
        self._asks: Counter[str | tuple[str, ...]] = Counter()
        """Open asks for every adapter, and for the adapters of every version together."""
        self._users: Counter[str] = Counter()
        self._leaving: list[str] = []

    def find(self, task: str) -> Version:
        """The version served under a name; or under a plain name, if it is at this `@version` or `@alias`."""
        if task in self.served:
            return self.served[task]
        name, at, suffix = task.partition("@")
        version = self._known(name)
        if at and number_of(suffix) != version.entry.version and suffix not in version.entry.aliases:
            raise SlotError(f"{name!r} is served at version {version.entry.version}, not at {suffix[:100]!r}")
        return version

    def serve(self, version: Version) -> Version:
        """Replace the version of its name; returns what is served, which is the version before if both are the same."""
        before = self.served.get(version.name)
        if before is not None and before.entry == version.entry:
            before.entry = version.entry  # its aliases may have moved
            return before
        self.served[version.name] = version
        self._users.update(version.refs)
        if before is not None:
            self._retire(before)
        return version

    def withdraw(self, name: str) -> None:
        """Stop serving a name."""
        self._known(name)
        self._retire(self.served.pop(name))

    def enter(self, version: Version) -> None:
        """Count an ask that begins."""
        self.open += 1
        version.open += 1
        self._asks.update([*version.refs, version.refs])

    def leave(self, version: Version) -> None:
        """Count an ask that is answered, or never will be."""
        self.open -= 1
        version.open -= 1
        needed: list[str | tuple[str, ...]] = [*version.refs, version.refs]
        for key in needed:
            self._asks[key] -= 1
            if not self._asks[key]:
                del self._asks[key]
        if version.retired and not version.open:
            self._release(version)

    def waits(self, needed: str | tuple[str, ...]) -> bool:
        """Whether there are asks for an adapter, or for a version with these adapters."""
        return needed in self._asks

    def leaving(self) -> list[str]:
        """Adapters that are no longer needed, as of the last call."""
        unused, self._leaving = [ref for ref in self._leaving if not self._users[ref]], []
        return unused

    def _known(self, name: str) -> Version:
        if name not in self.served:
            raise Unknown(name)
        return self.served[name]

    def _retire(self, version: Version) -> None:
        version.retired = True
        if not version.open:
            self._release(version)

    def _release(self, version: Version) -> None:
        for ref in version.refs:
            self._users[ref] -= 1
            if not self._users[ref]:
                del self._users[ref]
                self._leaving.append(ref)


def near(name: str, served: Collection[str]) -> str:
    """Suggest served names like this one; quickly, however many are served, since anyone may send any name."""
    if len(served) <= _FEW:
        return suggest(name, served)
    names = sorted(served)
    at = bisect.bisect(names, name)
    matches = difflib.get_close_matches(name, names[max(0, at - _COMPARED) : at + _COMPARED], n=3, cutoff=0.5)
    listed = f"GET /v1/tasks lists all {len(served):,}"
    return f"Did you mean {' or '.join(matches)}? {listed}" if matches else listed
