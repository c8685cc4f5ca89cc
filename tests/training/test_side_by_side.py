"""Sixteen runs side by side follow sixteen runs alone, whatever their methods, tasks, sizes and seeds.

In fp32, on a tiny model, with dropout on. The control shares one stream of noise among all runs, as a plain loop would,
and must be noticed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from training import work

import inlay
from inlay.bank.noise import Keys

RUNS = [
    work.run(work.texts(seed=1), "houlsby:size=4", lr=0.005, seed=1),
    work.run(work.texts(22, 2, 3), "houlsby:size=9", lr=0.015, seed=2, batch_size=5, head="tanh2"),
    work.run(work.pairs(seed=3), "houlsby:size=4,norms=false", lr=0.01, seed=3, batch_size=3),
    work.run(work.ratings(seed=4), "adapterbias", lr=0.025, seed=4, task="regression"),
    work.run(work.texts(seed=5), "adapterbias:l0=0.001", lr=0.025, seed=5, weight_decay=0.1),
    work.run(work.topics(seed=6), "bitfit", lr=0.015, seed=6, task="multilabel", batch_size=7),
    work.run(work.texts(seed=7), "norms", lr=0.015, seed=7, clip=0.1),
    work.run(work.entities(seed=8), "lora:rank=2", lr=0.02, seed=8, batch_size=2, epochs=1),
    work.run(work.texts(seed=9), "finetune", lr=0.0015, seed=9, weight_decay=0.05, decay="weights"),
    work.run(work.pairs(20, seed=10), "diffprune:target=0.05", lr=0.005, seed=10, pool="mean"),
    work.run(work.texts(seed=11), "frozen", lr=0.05, seed=11, head="mlp"),
    work.run(work.texts(seed=12), "houlsby:size=6,mixout=0.3", lr=0.01, seed=12),
    work.run(work.entities(seed=13), "houlsby:size=4", lr=0.01, seed=13, clip=None),
    work.run(work.ratings(seed=14), "lora:rank=4", lr=0.005, seed=1, task="regression", warmup=0.0),
    work.run(work.texts(seed=15), "finetune:top=1,mixout=0.5", lr=0.0025, seed=15, epochs=3),
    work.run(work.texts(seed=1), "houlsby:size=4", lr=0.005, seed=16, pretrain_on_text=True, pretrain_epochs=1),
]
PAIR = ("the soup is good", "it was awful")


@pytest.fixture(scope="module")
def alone() -> list[inlay.Result]:
    host = work.host()
    return [inlay.train(host, run) for run in RUNS]


@pytest.fixture(scope="module")
def together() -> list[inlay.Result]:
    return inlay.train(work.host(), RUNS)


def answers(result: inlay.Result) -> list[dict[str, Any]]:
    """What an adapter says, served alone."""
    host = work.host()
    host.load(replace(result.adapter, about={}), "it")  # any text will do, a pair for those without one too
    is_tagging = host.task("it").kind == "tagging"
    asked = [
        row["tokens"] if is_tagging else row["text"] for row in (work.entities if is_tagging else work.texts)(9, 99)
    ]
    return host.predict([("it", one) for one in [*asked, *([] if is_tagging else [PAIR])]])


def assert_follows(found: inlay.Result, expected: inlay.Result) -> None:
    assert found.ok
    assert expected.ok
    assert len(found.losses) == len(expected.losses)
    worst = max(abs(a - b) for a, b in zip(found.losses, expected.losses, strict=True))
    assert worst < 1e-4, f"{expected.method}: losses differ by {worst}"
    for split, scores in expected.metrics.items():
        assert found.metrics[split] == pytest.approx(scores, abs=1e-4), expected.method
    for ours, theirs in zip(answers(found), answers(expected), strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            if key in ("label", "tags"):
                assert ours[key] == theirs[key], expected.method
            elif key in ("score", "scores", "value"):
                assert ours[key] == pytest.approx(theirs[key], abs=2e-3), expected.method
    for name, value in expected.adapter.tensors.items():
        # softmax does not see the keys' bias: its gradient is rounding, which Adam makes large
        if not name.endswith("#index") and "attn.k" not in name:
            torch.testing.assert_close(found.adapter.tensors[name], value, atol=1e-3, rtol=1e-3)


def test_the_runs_are_of_every_kind_and_every_step_differs(alone):
    assert len(RUNS) == 16
    assert {r.adapter.task.split(":")[0] for r in alone} == {"classification", "multilabel", "regression", "tagging"}
    assert len({r.method for r in alone}) >= 12
    for result in alone:
        assert len(result.losses) >= 4
        assert len(set(result.losses)) == len(result.losses)
        assert all(value != 0 for value in result.losses)


@pytest.mark.parametrize("index", range(len(RUNS)))
def test_a_run_among_others_follows_the_run_alone(alone, together, index):
    assert_follows(together[index], alone[index])


@pytest.mark.full
def test_with_a_queue_for_three_slots(alone):
    events: list[dict[str, Any]] = []
    queued = inlay.train(work.host(), RUNS, slots=3, callbacks=[events.append])
    active, most = set(), 0
    for event in events:
        if event["event"] == "begin":
            active.add(event["index"])
        elif event["event"] == "done":
            active.discard(event["index"])
        most = max(most, len(active))
    assert most == 3
    for found, expected in zip(queued, alone, strict=True):
        assert_follows(found, expected)


def test_a_shared_stream_of_noise_is_noticed(alone, monkeypatch):
    """The control: the same comparison fails when noise depends on who else is in the batch."""
    stream = torch.Generator().manual_seed(0)

    def number(self: Keys, slot: int) -> int:
        return int(torch.randint(2**31, (), generator=stream))

    monkeypatch.setattr(Keys, "number", number)
    few = [0, 6, 7]
    single = [inlay.train(work.host(), RUNS[i]) for i in few]
    stream.manual_seed(0)
    mixed = inlay.train(work.host(), [RUNS[i] for i in few])
    noticed = 0
    for found, expected in zip(mixed, single, strict=True):
        try:
            assert_follows(found, expected)
        except AssertionError as error:
            noticed += "losses differ" in str(error)
    assert noticed == len(few)
