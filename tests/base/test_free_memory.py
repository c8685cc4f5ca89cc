"""Free memory: the machine's, within a container's limits."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from inlay.base import free_memory as limits
from inlay.training.memory import free_memory

MB = 1 << 20


def machine(root: Path, cgroup: str, **files: str) -> Path:
    """A machine of 20 GB; file names have __ for / and _dot_ for a dot."""
    told = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {20 * 1024 * 1024} kB\n", "proc/self/cgroup": cgroup}
    for name, text in {**told, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def cgroup(folder: str, limit: object, used: int, stat: str = "", version: int = 2) -> dict[str, str]:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    found = {f"{folder}/{names[0]}": f"{limit}\n", f"{folder}/{names[1]}": f"{used}\n"}
    return {**found, f"{folder}/memory.stat": stat}


def test_without_limits_it_is_the_machines(tmp_path):
    top = cgroup("sys/fs/cgroup/a", "max", 5 * MB)
    assert limits.free(machine(tmp_path, "0::/a\n", **top)) == 20 * 1024 * MB


def test_a_limit_of_version_2(tmp_path):
    """Files that the kernel keeps in memory do not count as used."""
    own = cgroup("sys/fs/cgroup/pod/box", 1500 * MB, 900 * MB, f"anon 1\ninactive_file {300 * MB}\nactive_file {MB}\n")
    assert limits.free(machine(tmp_path, "0::/pod/box\n", **own)) == (1500 - 900 + 301) * MB


def test_a_limit_of_version_1(tmp_path):
    own = cgroup("sys/fs/cgroup/memory/box", 1500 * MB, 500 * MB, f"total_inactive_file {100 * MB}\n", 1)
    none = cgroup("sys/fs/cgroup/memory", 2**63 - 4096, 900 * MB, "", 1)
    root = machine(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/box\n0::/\n", **own, **none)
    assert limits.free(root) == 1100 * MB


@pytest.mark.parametrize("inner", [800, 3000])
def test_the_tightest_of_nested_limits_counts(tmp_path, inner):
    outer = cgroup("sys/fs/cgroup/pod", 2000 * MB, 1000 * MB)
    own = cgroup("sys/fs/cgroup/pod/box", inner * MB, 100 * MB)
    assert limits.free(machine(tmp_path, "0::/pod/box\n", **outer, **own)) == min(1000, inner - 100) * MB


@pytest.mark.parametrize("path", ["/../../host/path", "/host/path/not/seen"])
def test_a_container_that_sees_its_own_cgroup_alone(tmp_path, path):
    top = cgroup("sys/fs/cgroup", 1000 * MB, 400 * MB)
    assert limits.free(machine(tmp_path, f"0::{path}\n", **top)) == 600 * MB


def test_more_used_than_allowed_is_nothing_free(tmp_path):
    assert limits.free(machine(tmp_path, "0::/\n", **cgroup("sys/fs/cgroup", MB, 5 * MB))) == 0


def test_a_limit_of_the_address_space(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3000 * MB, 3000 * MB))
    pages = 1000 * MB // resource.getpagesize()
    assert limits.free(machine(tmp_path, "", **{"proc/self/statm": f"{pages} 1 1\n"})) == 2000 * MB


def test_here(monkeypatch):
    monkeypatch.setattr(limits, "free", lambda: 7)
    assert free_memory(torch.device("cpu")) == 7
    monkeypatch.undo()
    assert free_memory(torch.device("cpu")) > 1000
