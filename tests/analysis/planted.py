"""Rows of a sweep as somebody wishes them."""

from __future__ import annotations

from typing import Any

from inlay.sweeps.store import Row


def row(
    method: str = "houlsby",
    value: float | None = 0.5,
    *,
    data: str = "a.csv",
    lr: float | None = None,
    seed: int = 0,
    state: str = "done",
    metric: str = "accuracy",
    test: float | None = None,
    history: list[dict[str, Any]] | None = None,
    parameters: int = 100,
    **config: Any,
) -> Row:
    given = {"data": data, "method": method, **({} if lr is None else {"lr": lr}), **config}
    metrics = {} if value is None else {"validation": {metric: value}}
    metrics |= {} if test is None else {"test": {metric: test}}
    setting = {"method": method, **({} if lr is None else {"lr": lr})}
    label = f"{method} {lr} {seed}"
    fixed = (f"{data} {label} {config}", 0, label, setting, seed, given, state, metric, value, metrics)
    return Row(*fixed, history or [], {"adapter": parameters, "head": 2})


def evaluation(step: int, value: float, loss: float | None = None, metric: str = "accuracy") -> dict[str, Any]:
    held_out = {} if loss is None else {"validation_loss": loss}
    return {"stage": "task", "step": step, "epoch": 1.0, "metrics": {metric: value}, "loss": 9.0, **held_out}
