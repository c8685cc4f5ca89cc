"""What is counted and timed outside the model."""

from __future__ import annotations

import time

import pytest
import tiny
import torch

from inlay.bank.forward import Forward
from inlay.bench.outside import python_calls, seconds


def one() -> None:
    """A call."""


def three() -> None:
    one()
    one()


def test_calls_are_counted():
    assert python_calls(lambda: None) == 1
    assert python_calls(lambda: three()) == 4


def test_the_model_is_left_out(monkeypatch: pytest.MonkeyPatch):
    host, batch = tiny.host(), tiny.batch(2)
    host.add("a", "lora:rank=1", labels=2)

    def ask() -> None:
        with torch.no_grad():
            host.logits(batch, ["a", "a"])

    ask()
    plain = python_calls(ask)
    real = Forward.call

    def slow(self: Forward, *given: object) -> object:
        for _ in range(1000):
            one()
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return real(self, *given)

    fast = seconds(ask, 3)
    monkeypatch.setattr(Forward, "call", slow)
    assert python_calls(ask) == plain
    assert seconds(ask, 3) < fast + 0.015
    monkeypatch.setattr(Forward, "call", lambda self, *given: real(self, *given))
    assert python_calls(lambda: (one(), ask())) > plain
