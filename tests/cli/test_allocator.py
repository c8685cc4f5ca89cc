"""What the command line asks of the allocator: anywhere, and not against the user."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from inlay.cli import allocator

FAULTS = """
import ctypes, resource
from inlay.cli.allocator import keep_memory
assert not {keep} or keep_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def layer():
    blocks = [libc.malloc(16 << 20) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, 16 << 20)
    for block in blocks:
        libc.free(block)
layer(), layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    layer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone has mallopt like this")


def test_it_can_be_called_anywhere_and_again():
    assert allocator.keep_memory() in (True, False)
    assert allocator.keep_memory() in (True, False)


@glibc
def test_blocks_are_kept(monkeypatch):
    for name in allocator._USER_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    faults = {keep: _faults(keep) for keep in (True, False)}
    assert faults[False] > 100  # without it every layer is given its pages again
    assert faults[True] < faults[False] / 5


def _faults(keep: bool) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, check=True)
    return int(done.stdout)


@glibc
@pytest.mark.parametrize("name", allocator._USER_SETTINGS)
def test_what_the_user_has_set_stays(monkeypatch, name):
    for one in allocator._USER_SETTINGS:
        monkeypatch.delenv(one, raising=False)
    assert allocator.keep_memory()
    monkeypatch.setenv(name, "1")
    assert not allocator.keep_memory()


def test_elsewhere_nothing_happens(monkeypatch):
    for name in allocator._USER_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)  # not even asked
    assert not allocator.keep_memory()
