"""`curves`: mean and best as computed by hand; the loss of validation rows in the evaluations of a training."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from analysis.planted import evaluation, row
from training import work

import inlay
from inlay.analysis.curves import MOST, curves, row_of
from inlay.analysis.runs import lr_of
from inlay.errors import RunError

ONE = [evaluation(10, 0.4, 2.0), evaluation(20, 0.8, 1.0), evaluation(30, 0.6, 1.5)]
TWO = [evaluation(10, 0.2, 3.0), evaluation(20, 0.4, 2.0), evaluation(30, 0.9, 2.5)]


def test_mean_and_best_by_hand():
    found = curves([row(history=ONE, seed=0), row(history=TWO, seed=1)])
    lines = found.document()["rows"]
    assert [line["step"] for line in lines] == [10, 20, 30]
    assert [line["metric"] for line in lines] == pytest.approx([0.3, 0.6, 0.75])
    assert [(line["metric low"], line["metric high"]) for line in lines] == [(0.2, 0.4), (0.4, 0.8), (0.6, 0.9)]
    assert [line["loss"] for line in lines] == pytest.approx([2.5, 1.5, 2.0])
    # over evaluations: (0.6 + 0.5) / 2, and (0.8 + 0.9) / 2
    assert found.summary == {"a.csv: houlsby": "accuracy 55.0 (85.0)"}


def test_the_best_of_what_should_be_small():
    one = [evaluation(s, v, 1.0, "rmse") for s, v in ((1, 0.5), (2, 0.3), (3, 0.4))]
    assert curves([row(history=one, metric="rmse")]).summary == {"a.csv: houlsby": "rmse 40.0 (30.0)"}


def test_perplexity_is_its_own_loss():
    history = [evaluation(s, p, None, "perplexity") for s, p in ((1, math.e**2), (2, math.e))]
    lines = curves([row(history=history, metric="perplexity")]).document()["rows"]
    assert [line["loss"] for line in lines] == pytest.approx([2.0, 1.0])


def test_without_the_loss_of_validation_rows_that_of_training_is_drawn():
    pytest.importorskip("matplotlib")
    found = curves([row(history=[evaluation(1, 0.5), evaluation(2, 0.6)])])
    assert found.document()["rows"][0]["loss"] == 9.0
    assert found.draw().axes[0].get_ylabel().startswith("training loss")


def test_of_many_settings_the_best_of_each_method():
    rows = [row(m, lr * 10, lr=lr, history=ONE) for m in ("houlsby", "norms") for lr in (0.01, 0.02, 0.03, 0.04, 0.05)]
    assert len(rows) > MOST
    assert list(curves(rows).summary) == ["a.csv: houlsby lr=0.05", "a.csv: norms lr=0.05"]
    assert len(curves(rows[:MOST]).summary) == MOST


def test_a_setting_that_is_left_out_is_none():
    rows = [row("norms", 0.5, lr=lr, patience=stop, history=ONE) for lr in (1e-3, 1e-4) for stop in (None, 3)]
    assert "a.csv: norms lr=0.001 patience=none" in curves(rows).summary


def test_an_adapter_keeps_its_curve_and_the_loss_is_that_of_the_validation_rows():
    host = work.host()
    data = work.texts(24)
    run = inlay.Run(data=data, val_size=8, batch_size=4, epochs=3, method="houlsby:size=4", lr=3e-3, dropout=False)
    result = inlay.train(host, run, name="mine")
    from inlay.engine.evaluate import outputs_of
    from inlay.runs.prepare import prepare

    best = next(e for e in result.history if e["step"] == result.best_step)
    part = prepare(run, host).validation
    (outputs,) = outputs_of(host, [("mine", part.rows)])
    targets = torch.tensor([host.labels("mine").index(e.target) for e in part.examples])
    assert best["validation_loss"] == pytest.approx(
        F.cross_entropy(torch.stack(list(outputs)), targets).item(), rel=1e-5
    )
    found = curves([row_of(result.adapter, {})])
    assert [line["metric"] for line in found.document()["rows"]] == [e["metrics"]["accuracy"] for e in result.history]
    assert [line["loss"] for line in found.document()["rows"]] == [e["validation_loss"] for e in result.history]


def test_a_file_that_says_no_learning_rate_has_the_one_of_its_day():
    adapter = inlay.Adapter(
        "bitfit", "x", {}, about={"config": {"data": "x", "method": "bitfit"}, "history": [{"metrics": {}}]}
    )
    assert lr_of(row_of(adapter, {})) == 1e-3


def test_mistakes():
    with pytest.raises(RunError, match="two evaluations or more"):
        curves([row(history=ONE[:1])])
    with pytest.raises(RunError, match="have no evaluations"):
        curves([row()])
    with pytest.raises(RunError, match="does not know how it was trained"):
        row_of(inlay.Adapter("norms", "", {}, name="x"), {})
