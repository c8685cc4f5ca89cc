"""A sweep on a Ray cluster of two nodes: the same table as here, whatever becomes of a worker."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from training import work

import inlay
from inlay.errors import RunError
from inlay.sweeps.ray import Cluster

pytest.importorskip("ray")
from inlay import cluster  # noqa: E402

GRID = {"method": "houlsby,adapterbias", "size": [4, 8], "lr": [1e-3, 1e-2]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("base"), hidden_dropout_prob=0.1)


@pytest.fixture(scope="module")
def two_nodes(base: str) -> Iterator[str]:
    """The address of a cluster of two nodes with a CPU each."""
    cluster.ray()
    from ray.cluster_utils import Cluster as Nodes

    how = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    nodes = Nodes(initialize_head=True, head_node_args=how)
    try:
        nodes.add_node(num_cpus=1, object_store_memory=80 << 20)
        yield nodes.address
    finally:
        nodes.shutdown()


def run(**settings: Any) -> inlay.Run:
    return inlay.Run(**{"data": work.texts(30), "batch_size": 4, "epochs": 2, "val_size": 9, **settings})


def assert_same_table(found: inlay.Sweep, expected: inlay.Sweep) -> None:
    assert [row.id for row in found.rows] == [row.id for row in expected.rows]
    for row, other in zip(found.rows, expected.rows, strict=True):
        assert (row.label, row.state, row.tokens) == (other.label, other.state, other.tokens)
        assert row.parameters == other.parameters
        assert row.value == pytest.approx(other.value, abs=1e-4)
        for one, two in zip(row.history, other.history, strict=True):
            assert one["loss"] == pytest.approx(two["loss"], abs=1e-4)
    assert [entry.setting for entry in found.ranking] == [entry.setting for entry in expected.ranking]


class Heard:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def runs(self, kind: str) -> list[str]:
        return [event["run"] for event in self.events if event["event"] == kind]


def test_a_worker_that_is_killed_costs_nothing_that_was_done(two_nodes: str, base: str, tmp_path: Path):
    heard = Heard()
    import time
    t = time.time()
    found = inlay.sweep(
        inlay.Host(base), run(), GRID, seeds=2, slots=2, store=tmp_path / "s.sqlite", callbacks=[heard],
        engine="ray", address=two_nodes,
    )
    print(time.time()-t)
    print(Counter(e["event"] for e in heard.events))
    expected = inlay.sweep(inlay.Host(base), run(), GRID, seeds=2)
    assert_same_table(found, expected)
