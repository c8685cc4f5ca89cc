"""Every file can be read in one sitting."""

from __future__ import annotations

from pathlib import Path

import inlay

MOST = 400
"""Lines."""


def too_long(root: Path) -> list[str]:
    files = {file: file.read_text(encoding="utf-8").count("\n") for file in root.rglob("*.py")}
    return [f"{file.relative_to(root)}: {lines}" for file, lines in files.items() if lines > MOST]


def test_no_file_is_too_long(tmp_path: Path):
    assert too_long(Path(inlay.__file__).parent) == []
    (tmp_path / "a.py").write_text("\n" * (MOST + 1))
    assert too_long(tmp_path) == ["a.py: 401"]
