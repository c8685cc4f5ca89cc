"""Small data of every kind, runs on it, and what is compared of their results."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import tiny
import torch

import inlay

_GOOD, _BAD = ("good", "fine", "love"), ("bad", "awful", "hate")
_FILLER = ("the", "film", "book", "soup", "is", "was", "very", "it", "my", "parcel", "late", "never", "came", "refund")


def _sentence(draw: random.Random, *must: str) -> list[str]:
    words = [draw.choice(_FILLER) for _ in range(draw.randint(2, 9))] + list(must)
    draw.shuffle(words)
    return words


def texts(n: int = 24, seed: int = 0, classes: int = 2) -> list[dict[str, Any]]:
    """Opinions: the label follows from one word."""
    draw, out = random.Random(f"texts {seed}"), []
    for i in range(n):
        which = i % classes
        word = draw.choice((_GOOD, _BAD, ("who", "what", "where"))[which])
        out.append({"text": " ".join(_sentence(draw, word)), "label": ("pos", "neg", "ask")[which]})
    return out


def pairs(n: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Two texts that share a word, or do not."""
    draw, out = random.Random(f"pairs {seed}"), []
    for i in range(n):
        a, b = draw.sample(_GOOD + _BAD, 2)
        first, second = " ".join(_sentence(draw, a)), " ".join(_sentence(draw, a if i % 2 else b))
        out.append({"a": first, "b": second, "label": "same" if i % 2 else "other"})
    return out


def ratings(n: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """A number of stars."""
    draw = random.Random(f"ratings {seed}")
    stars = [draw.randint(0, 4) for _ in range(n)]
    return [{"text": " ".join(_sentence(draw, *["good"] * k)), "label": k + draw.random() / 4} for k in stars]


def topics(n: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Any number of labels."""
    draw, out = random.Random(f"topics {seed}"), []
    for _ in range(n):
        words = _sentence(draw)
        out.append({"text": " ".join(words), "label": [w for w in ("film", "soup", "parcel") if w in words]})
    return out


def entities(n: int = 24, seed: int = 0) -> list[dict[str, Any]]:
    """Words with B- and I- tags."""
    draw, out = random.Random(f"entities {seed}"), []
    for _ in range(n):
        words = _sentence(draw, "ana", "lima")
        tags = [{"ana": "B-PER", "lima": "B-LOC"}.get(word, "O") for word in words]
        out.append({"tokens": words, "tags": tags})
    return out


def run(data: Sequence[Mapping[str, Any]] | None = None, method: str = "houlsby:size=4", **settings: Any) -> inlay.Run:
    """A short run; the test's own settings win."""
    rows = [dict(row) for row in (texts() if data is None else data)]
    how = {"batch_size": 4, "epochs": 3, "lr": 3e-3, "val_size": 8, "choose_by": "score", **settings}
    return inlay.Run(data=rows, method=method, **how)


def host(seed: int = 0) -> inlay.Host:
    """A tiny host that reads text, with dropout."""
    return tiny.text_host("bert", seed, hidden_dropout_prob=0.1)


def assert_identical(found: inlay.Result, expected: inlay.Result) -> None:
    """The same run, bit for bit: losses, evaluations, metrics and every tensor."""
    assert found.problem == expected.problem
    assert found.losses == expected.losses, found.name
    assert found.history == expected.history, found.name
    assert found.metrics == expected.metrics, found.name
    assert (found.best_step, found.best_epoch) == (expected.best_step, expected.best_epoch)
    assert found.adapter.task == expected.adapter.task
    assert found.adapter.tensors.keys() == expected.adapter.tensors.keys()
    for name, value in expected.adapter.tensors.items():
        assert torch.equal(found.adapter.tensors[name], value), f"{expected.name}: {name}"
