"""What would fail only when somebody asks is refused when it is read: from a file, from a library, by a host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch

import inlay
from inlay.errors import InlayError
from inlay.library.library import Library

_HOST: list[inlay.Host] = []


def made(**changes: Any) -> inlay.Adapter:
    """An adapter of a tiny host, changed."""
    host = _host()
    if "x" not in host:
        host.add("x", "lora:rank=2", labels=["p", "q"])
        host.add("tags", "lora:rank=2", labels=["O", "B-X"], task="tagging")
    return replace(host.adapter("tags" if changes.pop("tags", False) else "x"), **changes)


def _host() -> inlay.Host:
    if not _HOST:
        _HOST.append(tiny.text_host("bert"))
    return _HOST[0]


def integers() -> dict[str, torch.Tensor]:
    tensors = made().tensors
    first = next(iter(tensors))
    return {**tensors, first: tensors[first].to(torch.int32)}


BAD = {
    "columns that are a number": (lambda: {"about": {"columns": 5}}, "its columns are 5"),
    "columns that are a list": (lambda: {"about": {"columns": ["pair"]}}, "its columns are"),
    "a label that is there twice": (lambda: {"labels": ("p", "p")}, "its label 'p' appears twice"),
    "integers": (lambda: {"tensors": integers()}, r"holds torch\.int32; expected floating"),
    "a temperature of 0": (lambda: {"task": "classification:temperature=0"}, "temperature=0.* expected more than 0"),
    "a temperature below 0": (lambda: {"task": "multilabel:temperature=-2"}, "expected more than 0"),
    "a scale of 0": (lambda: {"task": "regression:scale=0"}, "scale=0.* expected more than 0"),
    "tags from a pooled row": (lambda: {"tags": True, "pool": "cls"}, "pool=cls; a head for tagging has tokens"),
    "one answer from all tokens": (lambda: {"pool": "tokens"}, "pool=tokens; a head for classification has a pooling"),
    "an option that there is not": (lambda: {"method": "lora:rang=2"}, "lora has no option 'rang'"),
}


@pytest.mark.parametrize("what", BAD)
def test_refused_by_a_host_a_file_and_a_library(what, tmp_path):
    change, message = BAD[what]
    bad = made(**change())
    with pytest.raises(InlayError, match=message):
        _host().load(bad, "y")
    assert "y" not in _host()
    with pytest.raises(InlayError, match=f"bad.safetensors cannot be used: .*{message}"):
        inlay.Adapter.read(bad.save(tmp_path / "bad.safetensors"))
    library = Library(tmp_path / "library")
    library.put(bad, "x")
    with pytest.raises(InlayError, match=f"x@1 is damaged: .*{message}"):
        library.get("x")
    assert [problem.ref for problem in library.verify()] == ["x@1"]


@pytest.mark.parametrize("columns", [None, {}, {"text": "review", "pair": None}])
def test_these_columns_are_fine(columns, tmp_path):
    good = made(about={"columns": columns})
    _host().load(inlay.Adapter.read(good.save(tmp_path / "good")), "y")
    assert _host().predict([("y", "a good film")])[0]["label"] in ("p", "q")
    _host().unload("y")
