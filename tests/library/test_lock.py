"""Two trainings into one folder: the second is refused, and a reader never deletes what a writer is writing."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import inlay
from inlay.cli.main import app
from inlay.errors import DiskError, RunError
from inlay.library.lock import Lock
from inlay.training.checkpoint import Checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "format1"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    made = Checkpoint(tmp_path / "runs" / "tone")
    made.save({"jobs": []}, {"x": torch.zeros(3)})
    return made


def test_a_reader_leaves_the_files_of_a_writer(checkpoint):
    (checkpoint.folder / ".state.123").write_bytes(b"half")
    (checkpoint.folder / ".part-abc").write_bytes(b"half")
    checkpoint.read()
    assert sorted(path.name for path in checkpoint.folder.glob(".*")) == [".part-abc", ".state.123"]


def test_who_is_alone_cleans_up_after_those_that_were_killed(checkpoint):
    for name in (".state.123", ".part-abc", ".mine"):
        (checkpoint.folder / name).write_bytes(b"half")
    with checkpoint.alone():
        assert sorted(path.name for path in checkpoint.folder.iterdir()) == [".mine", "state.safetensors"]


def test_the_second_is_refused_and_the_first_goes_on(checkpoint):
    with checkpoint.alone():
        with pytest.raises(RunError, match=r"another process is using .*tone; wait for it, or use another name"):
            Checkpoint(checkpoint.folder).alone().__enter__()
        assert checkpoint.exists
    assert sorted(path.name for path in checkpoint.folder.parent.iterdir()) == ["tone"], "the lock leaves no file"
    with checkpoint.alone():
        pass


def test_a_lock_goes_with_its_process(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from inlay.library.lock import Lock;"
        "Lock(Path(sys.argv[1]), 'no'); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], env=environment)
    assert done.returncode == -9
    assert (tmp_path / "lock").exists()
    Lock(tmp_path / "lock", "no").release(remove=True)
    assert not (tmp_path / "lock").exists()


def test_a_lock_that_was_removed_by_its_holder_is_another(tmp_path, monkeypatch):
    """Between opening the file and locking it, its holder ends and removes it: what is locked then is nobody's."""
    import fcntl

    real, removed = fcntl.flock, []

    def late(file: object, how: int) -> None:
        if not removed:
            removed.append((tmp_path / "lock").unlink())
        real(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", late)
    held = Lock(tmp_path / "lock", "no")
    with pytest.raises(RunError, match="no"):
        Lock(tmp_path / "lock", "no")
    held.release()


def test_without_locks_nobody_is_refused(tmp_path, monkeypatch):
    import fcntl

    def none(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    one, other = Lock(tmp_path / "lock", "no"), Lock(tmp_path / "lock", "no")
    one.release()
    other.release()


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=r"cannot write .*lock: "):
        Lock(tmp_path / "file" / "lock", "no")


def test_two_trainings_of_one_name_on_the_command_line(tmp_path, monkeypatch):
    """The first is at work, in another place of this process."""
    shutil.copy(GOLDEN / "rows.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["train", "rows.csv", "--name", "tone", "--base", str(GOLDEN / "base"), "--library", "library"]
    with Checkpoint(Path("library/runs/tone")).alone():
        for more in ((), ("--resume",), ("--restart",)):
            done = CliRunner().invoke(app, [*command, *more])
            assert done.exit_code == 1
            assert "another process is using library/runs/tone" in done.output
    done = CliRunner().invoke(app, [*command, "--max-steps", "2"])
    assert done.exit_code == 0, done.output
    assert not list(Path("library/runs").iterdir())


def test_two_trainings_in_python(tmp_path):
    host = inlay.Host(str(GOLDEN / "base"), device="cpu")
    run = inlay.Run(data=str(GOLDEN / "rows.csv"), max_steps=2)
    with Checkpoint(tmp_path / "c").alone(), pytest.raises(RunError, match="another process is using"):
        inlay.train(host, run, checkpoint=tmp_path / "c")
    inlay.train(host, run, checkpoint=tmp_path / "c")
    assert not list(tmp_path.iterdir())
