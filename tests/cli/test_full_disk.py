"""A full disk ends a command with one line, wherever it is met."""

from __future__ import annotations

import errno
import os

import pytest
import typer
from typer.testing import CliRunner

from inlay.cli.help import Commands
from inlay.errors import LibraryError, RunError
from inlay.library.storage import Folder
from inlay.sweeps.exports import write_text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_table_that_does_not_fit():
    with pytest.raises(RunError, match=r"cannot write /dev/full: .*No space left on device"):
        write_text("/dev/full", "a line\n")


def test_a_library_that_does_not_fit(tmp_path, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (Folder(tmp_path).create, Folder(tmp_path).replace):
        with pytest.raises(LibraryError, match=r"cannot write .*a\.json: .*No space left"):
            write("a.json", b"{}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "is_bug"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EBADF, True)])
def test_anywhere_else(number, is_bug):
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)

    @app.command()
    def one() -> None:
        raise OSError(number, os.strerror(number), "some/file")

    @app.command()
    def other() -> None:
        pass

    done = CliRunner().invoke(app, ["one"])
    assert done.exit_code == 1
    if is_bug:
        assert isinstance(done.exception, OSError)
    else:
        assert done.output == f"error: cannot write: {os.strerror(number)} (some/file)\n"
