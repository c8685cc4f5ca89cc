"""How much memory this process may still take: the machine's, within the limits of its containers and of its user.

A container is a cgroup, of version 1 or 2. Cgroups nest: every one from this process's own up to the root may have a
limit, and the tightest counts. A cgroup's usage includes the kernel's file cache, which is freed when memory runs
short.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage, in version 2 and 1."""
_RECLAIMED = ("inactive_file", "active_file")


def free(root: Path = Path("/")) -> int:
    """How many bytes are free.

    Args:
        root: where /proc and /sys are.
    """
    return max(0, min([_of_machine(root), *_of_cgroups(root), *_of_user(root)]))


def _of_machine(root: Path) -> int:
    available = _numbers(root / "proc/meminfo").get("MemAvailable:")
    return 1024 * available if available else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


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
            # a container may show the host's path, which it cannot see: its own cgroup is then the top
            for folder in [*_upwards(place, top)] if ".." not in path else [top]:
                yield from _left(folder)


def _upwards(place: Path, top: Path) -> Iterator[Path]:
    while place != top:
        yield place
        place = place.parent
    yield top


def _left(folder: Path) -> Iterator[int]:
    for limit_file, usage_file in _FILES:
        limit, usage = (_text(folder / name).strip() for name in (limit_file, usage_file))
        if limit.isdigit() and usage.isdigit():  # "max" is no limit
            stat = _numbers(folder / "memory.stat")
            files = sum(stat.get(f"total_{key}", stat.get(key, 0)) for key in _RECLAIMED)
            yield int(limit) - max(0, int(usage) - files)


def _of_user(root: Path) -> Iterator[int]:
    """What is left of the address space that `ulimit -v` allows."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _text(root / "proc/self/statm").split()[:1]
    if limit != resource.RLIM_INFINITY and pages:
        yield limit - int(pages[0]) * os.sysconf("SC_PAGE_SIZE")


def _numbers(file: Path) -> dict[str, int]:
    """The numbers in lines of a name and a number."""
    lines = (line.split() for line in _text(file).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""
