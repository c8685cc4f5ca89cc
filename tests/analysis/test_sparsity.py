"""What L0 left is what was not zeroed."""

from __future__ import annotations

import pytest
import tiny
import torch

from inlay.analysis.sparsity import sparsity
from inlay.errors import AdapterError, RunError, SlotError

WIDTH = 24
SHUT, OPEN = -10.0, 10.0


def gated(host, name, left, spec="adapterbias:l0=0.01", row="layers.{}.ffn.out"):
    """An adapter with so many gates open in every layer; half-open ones among them."""
    host.add(name, spec, labels=2)
    tensors = {}
    for layer, open_ in enumerate(left):
        gate = torch.full((WIDTH, 1), SHUT)
        gate[:open_] = OPEN
        gate[: open_ // 2] = 0.2
        order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(layer))
        tensors[f"{row.format(layer)}.gate"] = gate[order]
    host.write(name, tensors)


def test_what_was_shut_is_not_left():
    host = tiny.text_host()
    gated(host, "a", (24, 6, 0))
    found = sparsity(host, ["a"])
    assert [tuple(row[:4]) for row in found.rows] == [("a", 0, 24, 24), ("a", 1, 6, 24), ("a", 2, 0, 24)]
    expected = found.summary.pop("a: percent expected")
    assert found.summary == {"a: left": 30, "a: of": 72, "a: percent left": pytest.approx(100 * 30 / 72)}
    half = torch.sigmoid(torch.tensor(0.2) - 2 / 3 * torch.tensor(0.1 / 1.1).log()).item()
    assert [row[4] for row in found.rows] == pytest.approx([12 + 12 * half, 3 + 3 * half, 0], abs=0.01)
    assert expected == pytest.approx(100 * (15 + 15 * half) / 72, abs=0.05)


def test_a_finished_adapter_says_the_same():
    host = tiny.text_host()
    gated(host, "a", (24, 6, 0))
    host.load(host.adapter("a", finish=True), "done")
    before, after = (sparsity(host, [name]) for name in ("a", "done"))
    assert [row[1:] for row in before.rows] == [row[1:] for row in after.rows]
    old = host.adapter("done")
    old.about.pop("gates")
    host.load(old, "old")
    assert [row[4] for row in sparsity(host, ["old"]).rows] == [None] * 3


def test_fewer_layers_and_several_adapters():
    host = tiny.text_host()
    gated(host, "a", (12, 12, 24))
    gated(host, "top", (3,), "adapterbias:l0=0.01,layers=2", "layers.2.ffn.out")
    found = sparsity(host, ["a", "top"])
    assert [tuple(row[:4]) for row in found.rows][-1] == ("top", 2, 3, 24)
    (panel,) = found.draw().axes
    assert [bar.get_height() for bar in panel.patches] == pytest.approx([50, 50, 100, 12.5])
    assert [text.get_text() for text in panel.get_xticklabels()] == ["0", "1", "2"]
    assert panel.get_legend_handles_labels()[1] == ["a (66.7 % of all)", "top (12.5 % of all)"]


def test_one_for_all_layers():
    host = tiny.text_host()
    gated(host, "a", (9,), "adapterbias:l0=0.01,share=alpha", "shared")
    assert [tuple(row[:4]) for row in sparsity(host, ["a"]).rows] == [("a", "all", 9, 24)]


def test_files(tmp_path):
    host = tiny.text_host()
    gated(host, "a", (24, 6, 0))
    *_, table = sparsity(host, ["a"]).write(tmp_path / "s")
    lines = [line.rpartition(",")[0] for line in table.read_text().splitlines()]
    assert lines == ["adapter,layer,left,of", "a,0,24,24", "a,1,6,24", "a,2,0,24"]


def test_mistakes():
    host = tiny.text_host()
    host.add("plain", "adapterbias", labels=2)
    host.add("bitfit", "bitfit", labels=2)
    with pytest.raises(AdapterError, match="plain was trained without L0"):
        sparsity(host, ["plain"])
    with pytest.raises(AdapterError, match="bitfit is bitfit, which has no L-alpha"):
        sparsity(host, ["bitfit"])
    with pytest.raises(SlotError, match="no adapter named 'x'"):
        sparsity(host, ["x"])
    with pytest.raises(RunError, match="needs at least one adapter"):
        sparsity(host, [])
