"""How much memory this process may still take: the machine's, within the limits of its containers and of its user.

A container is a cgroup, of version 1 or 2, and cgroups nest: each on the way from this process's own up to the root may
have a limit, and the tightest counts. What the kernel caches of files for a cgroup counts as used there, but goes when
memory is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage, in version 2 and 1."""
_RECLAIMED = ("inactive_file", "active_file")


def free(root: Path = Path("/")) -> int:
    """Bytes.

    Args:
        root: where /proc and /sys are.
    """
    return max(0, min([_of_machine(root), *_of_cgroups(root), *_of_user(root)]))


def _of_machine(root: Path) -> int:
    found = _numbers(root / "proc/meminfo").get("MemAvailable:")
    return 1024 * found if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _of_cgroups(root: Path) -> Iterator[int]:
    """What is left under every limit above this process."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "memory" not in controllers.split(","):
            continue
        for mount in ("sys/fs/cgroup/memory", "sys/fs/cgroup/unified", "sys/fs/cgroup"):
            top = root / mount
            place = top / path.strip("/")
            # in a container the path may be that of the host, which cannot be seen: its own cgroup is the top then
            for folder in [*_upwards(place, top)] if ".." not in path else [top]:
                yield from _left(folder)


def _upwards(place: Path, top: Path) -> Iterator[Path]:
    while place != top:
        yield place
        place = place.parent
    yield top


def _left(folder: Path) -> Iterator[int]:
    for limit, usage in _FILES:
        most, used = (_text(folder / name).strip() for name in (limit, usage))
        if most.isdigit() and used.isdigit():  # "max" is no limit
            kept = _numbers(folder / "memory.stat")
            files = sum(kept.get(f"total_{key}", kept.get(key, 0)) for key in _RECLAIMED)
            yield int(most) - max(0, int(used) - files)


def _of_user(root: Path) -> Iterator[int]:
    """What is left of the address space that `ulimit -v` allows."""
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _text(root / "proc/self/statm").split()[:1]
    if most != resource.RLIM_INFINITY and pages:
        yield most - int(pages[0]) * os.sysconf("SC_PAGE_SIZE")


def _numbers(file: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    lines = (line.split() for line in _text(file).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""
