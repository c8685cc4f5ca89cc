"""What an adapter costs on disk, with the shapes of a real model; and how much a list of a thousand reads."""

from __future__ import annotations

import pytest
from library.samples import adapter

import inlay
from inlay.bank.delta import initial_of, parse
from inlay.base.shapes import sites_of
from inlay.heads.head import head_part
from inlay.library.library import Library
from inlay.library.storage import Folder


def made(spec: str) -> inlay.Adapter:
    """An adapter for all-MiniLM-L6-v2 with a head of two labels, as a host would store it."""
    sites, method = sites_of("minilm-l6"), parse(spec)
    constants = {name for name, param in method.params(sites).items() if param.role == "constant"}
    tensors = {name: tensor for name, tensor in method.initial(sites, 0).items() if name not in constants}
    head = initial_of([head_part("linear", 2, sites.hidden)], 0)
    assert sum(tensor.numel() for tensor in tensors.values()) == method.count(sites)
    fields = (0, "linear", "mean", ("ham", "spam"), "sms", "classification")
    return inlay.Adapter(spec, "sha256:" + "0" * 64, tensors | head, *fields)


@pytest.mark.parametrize(
    ("spec", "dtype", "most"),
    [
        ("adapterbias", "float32", 100_000),
        ("adapterbias", "float16", 50_000),
        ("houlsby:size=64", "float16", 2_000_000),
    ],
)
def test_size_on_disk(tmp_path, spec, dtype, most):
    library = Library(tmp_path)
    entry = library.put(made(spec).to(dtype))
    found = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert found < most, "with its card"
    assert entry.bytes == (tmp_path / "blobs" / f"{entry.sha256}.safetensors").stat().st_size < found


def test_a_list_reads_every_card_once_and_lists_once(tmp_path, monkeypatch):
    """So its time grows with the number of adapters, and not with more."""
    library = Library(tmp_path)
    for name in "abcdefgh":
        for number in (1.0, 2.0):
            library.put(adapter(number), name)
        library.alias(name, "prod", 1)
    calls: list[tuple[str, str]] = []
    for what in ("read", "list"):

        def counted(self: Folder, path: str, *rest: object, what: str = what, real: object = getattr(Folder, what)):
            calls.append((what, path))
            return real(self, path, *rest)

        monkeypatch.setattr(Folder, what, counted)
    assert len(library.list()) == 8
    assert len(calls) == len(set(calls)) == 1 + 8 + 8, "one listing, the newest cards, the aliases"
