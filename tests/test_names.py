"""One word for one thing: no public class, or alias of a type, has the name of another in the packages of the core."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import inlay

PACKAGES = ("base", "bank", "engine", "training", "runs")


def names(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and is_type(node.targets[0].id):
            yield node.targets[0].id


def is_type(name: str) -> bool:
    return name[0].isupper() and not name.isupper()


def twice(sources: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for file, source in sources:
        for name in names(source):
            found[name].append(file)
    return {name: files for name, files in found.items() if len(files) > 1 and not name.startswith("_")}


def test_no_name_is_there_twice():
    root = Path(inlay.__file__).parent
    files = [file for package in PACKAGES for file in (root / package).rglob("*.py")]
    assert len(files) > 50
    assert twice((str(file.relative_to(root)), file.read_text(encoding="utf-8")) for file in files) == {}


def test_it_would_be_noticed():
    sources = [("a", "class Part: ...\nclass _Own: ..."), ("b", "Part = dict[str, int]\nLIMIT = 3\nclass _Own: ...")]
    assert twice(sources) == {"Part": ["a", "b"]}
