"""Mean |alpha| per layer: planted, and against tokens one by one."""

from __future__ import annotations

import csv

import pytest
import tiny
import torch
from analysis import wished

from inlay.analysis.alpha import alpha
from inlay.engine.alpha import alphas
from inlay.engine.predict import batch_of
from inlay.errors import AdapterError, DataError, RunError, SlotError

SOME = wished.examples("the film was good", "awful soup", "it is late and the parcel never came")


def constant(host, name, spec, b, v=0.5, **more):
    """An adapter whose alpha is b everywhere."""
    host.add(name, spec, labels=2, **more)
    tensors = host.read(name)
    own = {n: torch.zeros_like(t) for n, t in tensors.items() if n.endswith(".w")}
    own |= {n: torch.full_like(t, b) for n, t in tensors.items() if n.endswith(".b")}
    own |= {n: torch.full_like(t, v) for n, t in tensors.items() if n.endswith(".v")}
    host.write(name, own)


def column(found, name, which):
    place = found.columns.index(which)
    return [row[place] for row in found.rows if row[0] == name]


@pytest.mark.parametrize("spec", ["adapterbias", *(f"adapterbias:share={what}" for what in ("v", "alpha", "both"))])
def test_a_constant_alpha_is_the_mean_in_every_layer(spec):
    host = tiny.text_host()
    constant(host, "a", spec, -0.75)
    found = alpha(host, {"a": SOME})
    assert column(found, "a", "layer") == [0, 1, 2]
    assert column(found, "a", "alpha") == pytest.approx([0.75] * 3)
    assert column(found, "a", "shift") == pytest.approx([0.75 * 0.5 * 4] * 3), "v has 16 numbers of 0.5"


def test_several_adapters_on_texts_of_their_own():
    host = tiny.text_host()
    constant(host, "a", "adapterbias", 2.0)
    constant(host, "top", "adapterbias:layers=1", 3.0)
    host.add("shaken", "adapterbias:l0=0.01", labels=2)
    tiny.shake(host, "shaken")
    found = alpha(host, {"a": SOME, "top": SOME[:1], "shaken": SOME[1:]})
    assert column(found, "a", "alpha") == pytest.approx([2.0] * 3)
    assert column(found, "top", "alpha") == pytest.approx([0.0, 3.0, 0.0])
    assert column(found, "top", "shift") == pytest.approx([0.0, 6.0, 0.0])
    one_by_one = [alphas(host, batch_of([row]), ["shaken"])[0] for row in wished.rows(host, "shaken", SOME[1:])]
    wanted = torch.cat(one_by_one, 1).abs().mean(1)
    assert column(found, "shaken", "alpha") == pytest.approx(wanted.tolist(), rel=1e-5)
    assert wanted.std() > 0.01, "or the comparison says nothing"
    assert found.summary["top: layer with the largest |alpha|"] == 1
    assert found.about.count(" texts") == 3
    each = alpha(host, {"a": SOME, "top": SOME}).about
    assert each.endswith(f"of {len(SOME)} texts each")
    assert found.summary["a: mean |alpha| over layers"] == pytest.approx(2.0)


def test_a_layer_that_is_called_often_has_as_many_rows_as_calls():
    host = tiny.text_host("albert")
    constant(host, "a", "adapterbias", 0.5)
    found = alpha(host, {"a": SOME})
    assert column(found, "a", "alpha") == pytest.approx([0.5] * 3)
    assert column(found, "a", "shift") == pytest.approx([0.5 * 0.5 * 4] * 3)


def test_files(tmp_path):
    host = tiny.text_host()
    for i, name in enumerate("abc"):
        constant(host, name, "adapterbias", i + 1.0)
    found = alpha(host, dict.fromkeys("abc", SOME))
    paths = found.write(tmp_path / "new" / "picture")
    assert [path.suffix for path in paths] == [".png", ".svg", ".csv"]
    rows = list(csv.reader(paths[2].read_text().splitlines()))
    assert rows[0] == ["adapter", "layer", "alpha", "shift"]
    assert [float(row[2]) for row in rows[1:]] == [row[2] for row in found.rows]
    figure = found.draw()
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["a", "b", "c"]
    assert list(left.lines[1].get_xdata()) == [row[2] for row in found.rows if row[0] == "b"]
    assert list(right.lines[1].get_xdata()) == [row[3] for row in found.rows if row[0] == "b"]
    assert left.yaxis_inverted(), "the first layer is on top"


@pytest.mark.parametrize("spec", ["bitfit", "adapterbias:alpha=false", "finetune"])
def test_no_alpha_in_that_method(spec):
    host = tiny.text_host()
    host.add("a", spec, labels=2)
    with pytest.raises(AdapterError, match=f"a is {spec}, which has no alpha; only adapterbias"):
        alpha(host, {"a": SOME})


def test_mistakes():
    host = tiny.text_host()
    host.add("a", "adapterbias", labels=2)
    with pytest.raises(RunError, match="needs at least one adapter"):
        alpha(host, {})
    with pytest.raises(DataError, match="no text to show a"):
        alpha(host, {"a": []})
    with pytest.raises(SlotError, match="no adapter named 'b'"):
        alpha(host, {"b": SOME})
