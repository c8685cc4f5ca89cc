"""torch's default dtype is the user's own business: an adapter starts, trains and answers the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import tiny
import torch
from torch import Tensor

import inlay
from inlay.engine.predict import batch_of
from inlay.tasks import Row
from inlay.training.adamw import AdamW, Settings
from inlay.training.step import RunStep, Step

SPECS = [
    "houlsby:size=4,mixout=0.3",
    "adapterbias:l0=0.1",
    "bitfit",
    "norms",
    "lora:rank=2",
    "frozen",
    "finetune:top=1",
    "diffprune",
]
TASKS = {
    "classification": (["x", "y"], 1),
    "multilabel": (["x", "y"], [1.0, 0.0]),
    "regression": (["value"], 0.3),
}


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def trained(spec: str, task: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors, loss and logits after a step."""
    model = tiny.model("bert")
    with default(dtype):
        host = inlay.Host(model)
        labels, target = TASKS[task]
        host.add("a", spec, labels=labels, task=task, seed=3)
        made = host.task("a")
        rows = [Row(list(range(5, 5 + n)), target=target) for n in (3, 5)]
        part = RunStep("a", made, rows, Settings(1, 1e-2, 0.01, 1.0), (1, 2))
        loss = Step(host, AdamW(host.forward))([part], batch_of(rows))
        own = made.loss(host.logits_on_cpu(batch_of(rows), ["a", "a"]), rows, host.base)
        logits = torch.cat([one.flatten() for one in host.logits_on_cpu(batch_of(rows), ["a", "a"])])
        return host.read("a") | {"loss": loss, "own loss": own, "logits": logits}


@pytest.mark.parametrize("spec", SPECS)
def test_a_method_starts_and_steps_the_same(spec):
    assert_same(spec, "classification")


@pytest.mark.parametrize("task", list(TASKS)[1:])
def test_a_task_has_the_same_loss(task):
    assert_same("bitfit", task)


def assert_same(spec: str, task: str) -> None:
    usual, other = trained(spec, task, torch.float32), trained(spec, task, torch.float64)
    assert usual.keys() == other.keys()
    for name in usual:
        assert usual[name].dtype == other[name].dtype, name
        assert torch.equal(usual[name], other[name]), name


def test_a_base_is_read_the_same(tmp_path):
    folder = tiny.save_text_model(tmp_path)
    found = {}
    for dtype in (torch.float32, torch.float64):
        with default(dtype):
            host = inlay.Host(folder, device="cpu")
            host.add("a", "houlsby:size=4", labels=["x", "y"])
            found[dtype] = (host.base.identity(True), host.base.dtype, host.predict([("a", "a good film")]))
    assert found[torch.float64] == found[torch.float32]
