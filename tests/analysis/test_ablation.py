"""Removing spans of layers: equal to a loop that zeroes tensors, exact on planted adapters, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch
from training import work

import inlay
from inlay.analysis.ablation import ablation
from inlay.analysis.layer_removal import Span, outputs_without, spans
from inlay.analysis.rows import rows_of
from inlay.data.columns import Columns
from inlay.data.record import Record
from inlay.engine.evaluate import measure, outputs_of
from inlay.errors import DataError, RunError
from inlay.library.adapter import Adapter
from inlay.tasks import Example

LAYERS = 3


def examples(host: inlay.Host, name: str, n: int = 16) -> list[Example]:
    task = host.task(name)
    return [
        task.read(Record(row, f"row {i}"), Columns(text="text", label="label")) for i, row in enumerate(work.texts(n))
    ]


def adapted(method: str, name: str = "bert", **changes: int) -> inlay.Host:
    """A host with a shaken adapter `a` in a model of three layers."""
    host = tiny.text_host(name, **changes)
    host.add("a", method, labels=["neg", "pos"])
    tiny.shake(host, "a")
    return host


def zeroed(host: inlay.Host, span: Span, norms: bool) -> Adapter:
    """The adapter with the tensors of some layers at zero: the independent way of removing them."""
    adapter = host.adapter("a")
    paths = host.base.sites.layer_paths

    def goes(tensor: str) -> bool:
        is_norm = tensor.endswith((".gamma", ".beta")) or "LayerNorm" in tensor
        inside = [i for i in span_of(span) if tensor.startswith((f"layers.{i}.", f"{paths[i]}."))]
        return bool(inside) and (norms or not is_norm)

    return replace(adapter, tensors={n: torch.zeros_like(t) if goes(n) else t for n, t in adapter.tensors.items()})


def span_of(span: Span) -> range:
    return range(span.first, span.last + 1)


@pytest.mark.thin(4)
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("method", ["houlsby:size=4", "houlsby:size=4,share=sublayers", "bitfit", "lora", "finetune"])
def test_side_by_side_equals_one_by_one(method: str, norms: bool) -> None:
    host = adapted(method)
    rows = rows_of(host, "a", examples(host, "a"))
    found = outputs_without(host, "a", rows, spans(LAYERS), norms)
    assert len(found) == 6
    assert host.names == ["a"]
    (whole,) = outputs_of(host, [("a", rows)])
    for span, outputs in found.items():
        host.load(zeroed(host, span, norms), "less")
        (expected,) = outputs_of(host, [("less", rows)])
        host.unload("less")
        tiny.assert_close(torch.stack(list(outputs)), torch.stack(list(expected)), f"{method} {span}")
        assert (torch.stack(list(outputs)) - torch.stack(list(whole))).abs().max() > 1e-3, "nothing was removed"


def test_little_room_for_states_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = adapted("houlsby:size=4")
    rows = rows_of(host, "a", examples(host, "a"))
    whole = outputs_without(host, "a", rows, spans(LAYERS))
    monkeypatch.setattr("inlay.analysis.layer_removal._BYTES", 1)
    for span, outputs in outputs_without(host, "a", rows, spans(LAYERS)).items():
        tiny.assert_close(torch.stack(list(outputs)), torch.stack(list(whole[span])), str(span))


def test_an_adapter_shared_by_layers_stays_in_those_that_are_left() -> None:
    """Tensors cannot be zeroed for one layer alone, so compare with the same adapter restricted by `layers=`."""
    host = adapted("adapterbias:share=both")
    rows = rows_of(host, "a", examples(host, "a"))
    found = outputs_without(host, "a", rows, [Span(0, 1)], True)[Span(0, 1)]
    host.load(replace(host.adapter("a"), method="adapterbias:share=both,layers=2", tensors=kept(host)), "less")
    (expected,) = outputs_of(host, [("less", rows)])
    tiny.assert_close(torch.stack(list(found)), torch.stack(list(expected)))


def kept(host: inlay.Host) -> dict[str, torch.Tensor]:
    tensors = host.adapter("a").tensors
    return {n: t for n, t in tensors.items() if not n.startswith(("layers.0.", "layers.1."))}


@pytest.mark.parametrize("name", ["albert", "deberta-v2", "modernbert", "gpt2", "mpnet"])
def test_other_architectures(name: str) -> None:
    """Padded attention, pre-norms, a final norm: the same numbers, wherever rows begin."""
    host = adapted("houlsby:size=4", name)
    layers = host.base.sites.layers
    if layers == 1:
        with pytest.raises(RunError, match="one layer"):
            ablation(host, "a", examples(host, "a"))
        return
    rows = rows_of(host, "a", examples(host, "a"))
    for span, outputs in outputs_without(host, "a", rows, spans(layers), False).items():
        host.load(zeroed(host, span, False), "less")
        (expected,) = outputs_of(host, [("less", rows)])
        host.unload("less")
        tiny.assert_close(torch.stack(list(outputs)), torch.stack(list(expected)), f"{name} {span}")


def test_layers_without_adapter_lose_nothing() -> None:
    """Zeroed in layers 0 to 4 of 6: removing any of these changes exactly nothing; the last layer counts."""
    host = adapted("houlsby:size=4", num_hidden_layers=6)
    tensors = host.read("a")
    low = {n: torch.zeros_like(t) for n, t in tensors.items() if n.startswith(tuple(f"layers.{i}." for i in range(5)))}
    host.write("a", low)
    some = examples(host, "a", 40)
    rows = rows_of(host, "a", some)
    (whole,) = outputs_of(host, [("a", rows)])
    for span, outputs in outputs_without(host, "a", rows, spans(6)).items():
        same = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(outputs, whole, strict=True))
        assert same == (span.last < 5), span
    found = ablation(host, "a", some, metric="accuracy")
    assert all(change == 0 for _, last, _, change in found.rows if last < 5)


def test_the_table() -> None:
    host = adapted("houlsby:size=4")
    some = examples(host, "a", 41)
    found = ablation(host, "a", some, metric="accuracy", where="planted")
    whole = measure(host, "a", some)[0]["accuracy"]
    assert found.summary["whole adapter"] == pytest.approx(whole)
    assert found.summary["majority class"] == pytest.approx(21 / 41)
    assert [row[:2] for row in found.rows] == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    for first, last, value, change in found.rows:
        host.load(zeroed(host, Span(first, last), False), "less")
        assert value == pytest.approx(measure(host, "less", some)[0]["accuracy"])
        host.unload("less")
        assert change == pytest.approx((value - whole) / whole)
    assert "41 rows (planted)" in found.about


def test_what_cannot_be_removed() -> None:
    host = adapted("norms")
    with pytest.raises(RunError, match="--with-norms"):
        ablation(host, "a", examples(host, "a"))
    assert ablation(host, "a", examples(host, "a"), with_norms=True, metric="accuracy").rows
    other = adapted("frozen")
    with pytest.raises(RunError, match="nothing to remove in the layers"):
        ablation(other, "a", examples(other, "a"))
    some = adapted("houlsby:size=4", num_hidden_layers=1)
    with pytest.raises(RunError, match="one layer"):
        ablation(some, "a", examples(some, "a"))
    with pytest.raises(DataError, match="not one that a knows"):
        ablation(host, "a", [Example("the film", target="sports", place="f:1")])
    with pytest.raises(DataError, match=r"f:1 has no label"):
        ablation(host, "a", [Example("the film", place="f:1")])
