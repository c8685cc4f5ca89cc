"""The wheel, in an environment that has nothing but what the wheel declares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import tiny
from packaging.requirements import Requirement

from inlay.version import __version__

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "inlay"


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; PYTHONPATH would show it the checkout."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def closure(requirements: list[str], extra: str = "") -> set[str]:
    """Names of all distributions that these need, directly or not."""
    found: set[str] = set()
    waiting = [(text, extra) for text in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        text, within = waiting.pop()
        needed = Requirement(text)
        if (needed.marker and not needed.marker.evaluate({"extra": within})) or (text, within) in seen:
            continue
        seen.add((text, within))
        found.add(needed.name)
        own = metadata.requires(needed.name) or []
        waiting += [(one, each) for one in own for each in ("", *needed.extras)]
    return found


def link(names: set[str], folder: Path) -> None:
    """A folder to import these distributions from, and nothing else."""
    folder.mkdir()
    for name in names:
        for file in metadata.files(name) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder / "fetched"), "hatchling"]
    if subprocess.run(fetch, capture_output=True, check=False).returncode:
        pytest.skip("no package index is reachable, and building a wheel needs hatchling")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.full
def test_the_wheel_has_every_file_of_the_package(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {path.relative_to(PACKAGE.parent).as_posix() for path in files}
    for needed in ("py.typed", "demo/tickets.csv", "recipes/houlsby-glue.toml", "serve/static/index.html"):
        assert f"inlay/{needed}" in packed


@pytest.mark.full
def test_the_wheel_works_with_what_it_declares(wheel: Path, tmp_path: Path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python, inlay = scripts / "python", scripts / "inlay"
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    installed = Path(run(python, "-c", "import inlay; print(inlay.__file__)", cwd=tmp_path).strip()).parent
    assert installed.is_relative_to(tmp_path / "venv")
    (own,) = metadata.distributions(name="inlay", path=[str(installed.parent)])
    link(closure(own.requires or []), tmp_path / "dependencies")
    (installed.parent / "dependencies.pth").write_text(str(tmp_path / "dependencies"))

    assert __version__ in run(inlay, "--version", cwd=tmp_path)
    if (PACKAGE / "__main__.py").exists():
        assert __version__ in run(python, "-m", "inlay", "--version", cwd=tmp_path)
    counted = json.loads(run(inlay, "params", "--shape", "bert-base", "--method", "houlsby", "--json", cwd=tmp_path))
    assert "2416128" in json.dumps(counted)
    assert "houlsby-glue" in run(inlay, "recipe", "list", cwd=tmp_path)

    base, data = tiny.save_text_model(tmp_path / "base"), installed / "demo" / "tickets.csv"
    kept = ("--library", tmp_path / "library", "--base", base, "--json")
    run(inlay, "train", data, "--name", "tickets", "--max-steps", "2", *kept, cwd=tmp_path)
    (answer,) = json.loads(run(inlay, "predict", "tickets", "where is my parcel", *kept, cwd=tmp_path))
    assert answer["label"] in data.read_text("utf-8")
