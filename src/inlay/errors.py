"""Every error a user can cause, in one tree.

InlayError
├── SpecError      a method spec or one of its options is wrong
├── BaseError      the frozen model cannot be loaded, or is not the one expected
├── ArchError      the model's architecture is unknown, or lacks a site
├── SlotError      a slot is unknown, taken, or used in a way it cannot be
├── AdapterError   an adapter's tensors or file do not fit
├── LibraryError   a library, or a name in it, cannot be found, read or written
│   └── DamagedError  what is stored is not what its card says
├── DataError      an input file or one of its rows is wrong; the message starts with file and line
└── RunError       a run's settings are wrong, or it cannot go on
    └── DiskError  the results of a training cannot be written: a full disk, a read-only folder

A message says what was wrong, where, and what would be right. The command line prints it without a
traceback; anything else that escapes is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InlayError(Exception):
    """Base of all errors that a user can cause."""


class SpecError(InlayError):
    """A method spec or one of its options is wrong."""


class BaseError(InlayError):
    """The frozen model cannot be loaded, or is not the one expected."""


class ArchError(InlayError):
    """The model's architecture is unknown, or lacks a site."""


class SlotError(InlayError):
    """A slot is unknown, taken, or used in a way it cannot be."""


class AdapterError(InlayError):
    """An adapter's tensors or file do not fit."""


class LibraryError(InlayError):
    """A library, or a name in it, cannot be found, read or written."""


class DamagedError(LibraryError):
    """What is stored is not what its card says."""


class DataError(InlayError):
    """An input file or one of its rows is wrong; the message starts with file and line."""


class RunError(InlayError):
    """A run's settings are wrong, or it cannot go on."""


class DiskError(RunError):
    """The results of a training cannot be written: a full disk, a read-only folder."""


def suggest(name: str, valid: Iterable[str]) -> str:
    """Say which of the valid names are nearest, then all of them: `Did you mean x? Valid: x, y`."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}Valid: {', '.join(names) or 'none'}"


def first_line(error: BaseException) -> str:
    """The first line of another package's error, without its pages of advice; its type if it says nothing."""
    return str(error).strip().partition("\n")[0].strip() or type(error).__name__
