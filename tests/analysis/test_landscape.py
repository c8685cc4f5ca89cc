"""The loss along a line: a planted parabola, the ends of a real training, and every kind of method."""

from __future__ import annotations

import pytest
import tiny
import torch
from training import work

import inlay
from inlay.analysis.landscape import landscape
from inlay.analysis.rows import rows_of
from inlay.engine.evaluate import measure, outputs_of
from inlay.errors import DataError, RunError, SlotError
from inlay.runs.prepare import prepare
from inlay.tasks import Example


def rated(n: int = 20) -> list[Example]:
    return [Example(row["text"], target=row["label"], place=f"row {i}") for i, row in enumerate(work.ratings(n))]


def opinions(n: int = 20) -> list[Example]:
    return [Example(row["text"], target=row["label"], place=f"row {i}") for i, row in enumerate(work.texts(n))]


def test_a_quadratic_loss_gives_its_parabola() -> None:
    """With only a linear head that moves, predictions are linear in a and the squared error is quadratic."""
    host = tiny.text_host()
    host.add("a", "houlsby:size=4", labels=["value"], task="regression", seed=3)
    random = torch.Generator().manual_seed(0)
    start = {n: t for n, t in host.read("a").items() if n.startswith("head")}
    end = {n: t + torch.randn(t.shape, generator=random).to(t) for n, t in start.items()}
    some = rated()
    rows = rows_of(host, "a", some, targets=True)
    (before,) = outputs_of(host, [("a", rows)])
    host.write("a", end)
    (after,) = outputs_of(host, [("a", rows)])
    y0, y1 = torch.stack(list(before)).double()[:, 0], torch.stack(list(after)).double()[:, 0]
    gold = torch.tensor([e.target for e in some], dtype=torch.float64)
    found = landscape(host, ["a"], some, points=20)
    places = [a for _, a, _, _, mark in found.rows if not mark]
    assert places == pytest.approx(torch.linspace(-2, 2, 20, dtype=torch.float64).tolist())
    assert [(a, mark) for _, a, _, _, mark in found.rows if mark] == [(0.0, "start"), (1.0, "trained")]
    for _, a, loss, _, _ in found.rows:
        assert loss == pytest.approx(((y0 + a * (y1 - y0) - gold) ** 2).mean().item(), rel=1e-4)
    assert host.names == ["a"]


@pytest.mark.thin(2)
@pytest.mark.parametrize("method", ["houlsby:size=4", "adapterbias:l0=0.001", "lora", "finetune", "diffprune"])
def test_the_ends_are_those_of_the_training(method: str) -> None:
    """a = 0 is a fresh adapter of the run's seed, a = 1 the trained one, for every kind of method."""
    host = work.host()
    run = work.run(method=method, seed=5, max_steps=6)
    result = inlay.train(host, run)
    validation = prepare(run, host).validation.examples
    host.load(result.adapter, "a")
    host.add("fresh", method, labels=host.labels("a"), task=host.task("a"), seed=5)
    found = landscape(host, ["a"], validation, points=3, metric="accuracy")
    assert [row[1] for row in found.rows] == [-2.0, 0.0, 1.0, 2.0]
    for name, at in (("fresh", 1), ("a", 2)):
        rows = rows_of(host, name, validation, targets=True)
        (outputs,) = outputs_of(host, [(name, rows)])
        _, _, loss, accuracy, _ = found.rows[at]
        assert loss == pytest.approx(host.task(name).loss(outputs, rows, host.base).item(), rel=1e-4)
        assert accuracy == pytest.approx(measure(host, name, validation)[0]["accuracy"])
    assert len({round(row[2], 6) for row in found.rows}) > 2, "nothing moved"


def test_chunks_of_slots_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    host = tiny.text_host()
    host.add("a", "houlsby:size=4", labels=["neg", "pos"])
    tiny.shake(host, "a")
    whole = landscape(host, ["a"], opinions()).rows
    monkeypatch.setattr("inlay.analysis.landscape._AT_ONCE", 1)
    for one, other in zip(landscape(host, ["a"], opinions()).rows, whole, strict=True):
        assert one[2:4] == pytest.approx(other[2:4], rel=1e-5)


def test_several_adapters_in_one_picture() -> None:
    host = tiny.text_host()
    for name, method in (("a", "houlsby:size=4"), ("b", "finetune")):
        host.add(name, method, labels=["neg", "pos"])
        tiny.shake(host, name)
    found = landscape(host, ["a", "b"], opinions(), points=3)
    assert [row[0] for row in found.rows] == ["a"] * 4 + ["b"] * 4
    assert {"a: loss when trained", "b: loss when trained"} <= found.summary.keys()


def test_what_is_refused() -> None:
    host = tiny.text_host()
    host.add("a", "houlsby:size=4", labels=["neg", "pos"])
    with pytest.raises(RunError, match="at least 2 points"):
        landscape(host, ["a"], opinions(), points=1)
    with pytest.raises(DataError, match="'sports' is not one that a knows"):
        landscape(host, ["a"], [*opinions(4), Example("the film", target="sports", place="f:5")])
    host.add("bare", "houlsby:size=4")
    with pytest.raises(SlotError, match="no task"):
        landscape(host, ["bare"], opinions())
