"""A sweep on a Ray cluster of two nodes: the same table as here, whatever becomes of a worker.

What is decided when workers die is tried with workers that do as told; the rest with real workers that are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from training import work

import inlay
from inlay import cluster
from inlay.errors import RunError
from inlay.sweeps import ray as engine
from inlay.sweeps.local import fields_of
from inlay.sweeps.ray_workers import LostWorker, RayWorkers, WorkerHandle
from inlay.training.job import Job

pytest.importorskip("ray")

GRID = {"method": "houlsby,adapterbias", "size": [4, 8], "lr": [1e-3, 1e-2]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_text_model(tmp_path_factory.mktemp("base"), hidden_dropout_prob=0.1)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    """The address of a cluster of two nodes with a CPU each."""
    cluster.ray()
    from ray.cluster_utils import Cluster as Nodes

    memory = 80 << 20
    head = {"num_cpus": 1, "object_store_memory": memory, "include_dashboard": False}
    nodes = Nodes(initialize_head=True, head_node_args=head)
    try:
        nodes.add_node(num_cpus=1, object_store_memory=memory)
        yield nodes.address
    finally:
        nodes.shutdown()


def run(**settings: Any) -> inlay.Run:
    return inlay.Run(**{"data": work.texts(30), "batch_size": 4, "epochs": 3, "val_size": 9, **settings})


def on_ray(base: str, address: str, *callbacks: Any, **how: Any) -> inlay.Sweep:
    given, grid = how.pop("run", run()), how.pop("grid", GRID)
    return inlay.sweep(inlay.Host(base), given, grid, callbacks=callbacks, engine="ray", address=address, **how)


def assert_same_table(found: inlay.Sweep, expected: inlay.Sweep) -> None:
    """Equal but for the rounding of products, which depends on who is beside a run."""
    assert [row.id for row in found.rows] == [row.id for row in expected.rows]
    for row, other in zip(found.rows, expected.rows, strict=True):
        assert (row.label, row.state, row.tokens) == (other.label, other.state, other.tokens)
        assert row.parameters == other.parameters
        assert row.value == pytest.approx(other.value, abs=1e-4)
        for one, two in zip(row.history, other.history, strict=True):
            assert (one["step"], one["epoch"]) == (two["step"], two["epoch"])
            assert one["loss"] == pytest.approx(two["loss"], abs=1e-4)
    assert [entry.setting for entry in found.ranking] == [entry.setting for entry in expected.ranking]
    for name, tensor in expected.adapter.tensors.items():
        tiny.assert_close(found.adapter.tensors[name], tensor, name, gradient=True)


class Heard:
    """Keeps events, and does something at one of them."""

    def __init__(self, at: Callable[[Heard, dict[str, Any]], bool] = lambda *_: False, do: Any = None):
        self.at, self.do, self.did = at, do, False
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if not self.did and self.at(self, event):
            self.did = True
            self.do(self)

    def all(self, kind: str, key: str = "run") -> list[Any]:
        return [event.get(key) for event in self.events if event["event"] == kind]


def interrupt(_: Heard) -> None:
    raise KeyboardInterrupt


def kill_first(heard: Heard) -> None:
    os.kill(heard.all("joined", "pid")[0], signal.SIGKILL)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is given anything before both workers are ready, so that neither has made all runs by then."""
    deal = engine.Ray._deal
    ready: set[int] = set()

    def both(self: engine.Ray, workers: RayWorkers) -> None:
        if len(workers.ready) == 2 or id(workers) in ready:
            ready.add(id(workers))
            deal(self, workers)

    monkeypatch.setattr(engine.Ray, "_deal", both)


@pytest.mark.full
@pytest.mark.usefixtures("together")
def test_stopped_and_a_worker_killed_it_ends_with_the_same_table(two_nodes: str, base: str, tmp_path: Path):
    store = tmp_path / "s.sqlite"
    first = Heard(lambda heard, event: event["event"] == "done" and len(heard.all("done")) == 2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        on_ray(base, two_nodes, first, seeds=2, slots=2, store=store)
    assert len(set(first.all("joined", "node"))) == 2, "both nodes have a worker"

    second = Heard(lambda heard, event: event["event"] == "step", kill_first)
    found = on_ray(base, two_nodes, second, seeds=2, slots=2, store=store)
    begun, lost = Counter(second.all("begin")), second.all("lost")
    assert len(lost) == 2
    assert "died" in second.all("lost", "problem")[0]
    assert all(begun[name] == 2 for name in lost), "what was lost ran again"
    assert {name for name, times in begun.items() if times > 1} == set(lost), "nothing else did"
    assert not set(first.all("done")) & set(begun), "nor what was done before the stop"
    assert len(set(first.all("done")) | set(second.all("done"))) == len(found.rows) == 12

    assert_same_table(found, inlay.sweep(inlay.Host(base), run(), GRID, seeds=2))
    assert {event["index"] for event in second.events if "index" in event} == set(range(12 - len(first.all("done"))))
    kept = {file.stem for file in (tmp_path / "s.sqlite.files").iterdir()}
    assert {row.id for row in found.best.runs} <= kept
    assert len(kept) <= 4 < len(found.rows)


@pytest.mark.full
def test_a_search_is_asked_here_and_prunes_there(two_nodes: str, base: str):
    pytest.importorskip("optuna")
    numbers = run(data=work.ratings(50), task="regression", val_size=20, eval_every=4)  # a metric of many values
    heard = Heard()
    how = {"search": "optuna", "trials": 12, "workers": 1, "slots": 3}
    found = on_ray(base, two_nodes, heard, run=numbers, grid={"lr": "1e-4..1e-1", "size": "2..8"}, **how)
    assert [row.number for row in found.rows] == list(range(12))
    states = Counter(row.state for row in found.rows)
    assert states["pruned"] > 0
    assert states["done"] + states["pruned"] == 12
    evaluations = {row.state: len(row.history) for row in found.rows}
    assert 0 < evaluations["pruned"] < evaluations["done"]
    assert set(heard.all("pruned")) == {row.label for row in found.rows if row.state == "pruned"}


# --- with workers that do as told --------------------------------------------------------------------------------


class FakeWorkers(RayWorkers):
    """Makes runs at once; a pack with a deadly one dies."""

    deadly: tuple[str, ...] = ()
    count, slots, in_place = 1, 8, True
    packs: list[list[str]] = []  # noqa: RUF012 - set by the test

    def __init__(self, ray: Any, host: inlay.Host, workers: int | None):
        self.host, self.members = host, [self._new() for _ in range(self.count)]
        self.share = cluster.Share(1, 1, 0, 1)
        self._jobs: dict[int, Job] = {}

    def _new(self) -> WorkerHandle:
        return WorkerHandle(None, None, "node", self.slots)

    @contextlib.contextmanager
    def running(self, jobs: Sequence[Job], slots: int | None, asks: bool) -> Iterator[None]:
        yield

    def give(self, member: WorkerHandle, jobs: Mapping[int, Job]) -> None:
        self._jobs |= jobs
        member.hand += jobs

    def events(self) -> Iterator[Any]:
        for member in list(self.members):
            names = [self._jobs[i].name for i in member.hand]
            self.packs += [names] if names else []
            if any(word in name for name in names for word in self.deadly):
                self.members = [self._new() if one is member else one for one in self.members]
                yield LostWorker(member, "SIGSEGV", self.in_place)
                continue
            for i in list(member.hand):
                yield member, {"event": "failed", "run": self._jobs[i].name, "index": i, **self._ended(self._jobs[i])}

    def _ended(self, job: Job) -> dict[str, Any]:
        job.state, job.problem = "failed", "made up"
        return {"fields": fields_of(self.host, job, None), "adapter": None, "problem": job.problem}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorkers]:
    class Own(FakeWorkers):
        packs: list[list[str]] = []  # noqa: RUF012

    monkeypatch.setattr(engine, "RayWorkers", Own)
    monkeypatch.setattr(cluster, "joined", lambda address: contextlib.nullcontext())
    monkeypatch.setattr(cluster, "problems", lambda address: [])
    return Own


def rates(n: int) -> dict[str, Any]:
    return {"lr": [k / 1000 for k in range(1, n + 1)]}


def test_a_run_that_kills_its_worker_is_found_and_nobody_else_is_blamed(fake: type[FakeWorkers], base: str):
    fake.deadly = ("lr=0.006",)
    found = inlay.sweep(inlay.Host(base), run(), rates(16), engine="ray")
    problems = {row.label: row.error for row in found.rows}
    assert "died 4 times, the last time with no other run on it: SIGSEGV" in problems.pop("lr=0.006")
    assert set(problems.values()) == {"made up"}
    sizes = [len(pack) for pack in fake.packs if "lr=0.006" in pack]
    assert sizes == [8, 4, 2, 1], "in packs of half the size"


def test_two_deaths_are_needed(fake: type[FakeWorkers], base: str):
    fake.deadly, fake.slots = ("lr=0.001",), 1
    found = inlay.sweep(inlay.Host(base), run(), rates(2), engine="ray")
    assert "died twice" in found.rows[0].error
    assert [pack for pack in fake.packs if pack == ["lr=0.001"]] == [["lr=0.001"]] * 2


def test_a_machine_that_goes_is_nobodys_fault(fake: type[FakeWorkers], base: str):
    fake.deadly, fake.in_place, fake.slots = ("lr=0.001",), False, 2

    def recover(event: dict[str, Any]) -> None:
        if event["event"] == "lost" and len(fake.packs) >= 3:
            fake.deadly = ()

    found = inlay.sweep(inlay.Host(base), run(), rates(2), engine="ray", callbacks=[recover])
    assert {len(pack) for pack in fake.packs} == {2}
    assert {row.error for row in found.rows} == {"made up"}


def test_what_a_local_sweep_has_done_is_taken_over(fake: type[FakeWorkers], base: str, tmp_path: Path):
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["run"] == "lr=0.002":
            raise KeyboardInterrupt

    store = tmp_path / "s.sqlite"
    with pytest.raises(KeyboardInterrupt):
        inlay.sweep(inlay.Host(base), run(), rates(3), slots=1, store=store, callbacks=[stop])
    assert (tmp_path / "s.sqlite.files" / "loop").exists()
    found = inlay.sweep(inlay.Host(base), run(), rates(3), engine="ray", store=store)
    assert fake.packs == [["lr=0.002", "lr=0.003"]]
    assert [row.state for row in found.rows] == ["done", "failed", "failed"]
    assert not (tmp_path / "s.sqlite.files" / "loop").exists(), "a local sweep would go on from there"
    inlay.Host(base).load(found.adapter, "best")


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_worker_with_another_base_is_refused(base: str, tmp_path: Path):
    other = inlay.Host(tiny.save_text_model(tmp_path, hidden_dropout_prob=0.1, seed=1))
    workers = RayWorkers.__new__(RayWorkers)
    workers.host = inlay.Host(base)
    its = {"node": "abcdefghij", "slots": 1, "identity": engine_identity(other)}
    with pytest.raises(RunError, match="on node abcdefgh cannot be used: its base is sha256"):
        workers._join(WorkerHandle(None, None), its)
    with pytest.raises(RunError, match="cannot be used: there is no folder"):
        workers._join(WorkerHandle(None, None), {"node": "n", "problem": "there is no folder 'x'"})
    member = WorkerHandle(None, None)
    workers._join(member, {**its, "identity": engine_identity(workers.host)})
    assert member.slots == 1


def engine_identity(host: inlay.Host) -> dict[str, str]:
    from inlay.sweeps.worker import identity

    return identity(host)


def test_all_that_is_wrong_is_said_before_anything_starts(base: str, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError) as error:
            inlay.sweep(work.host(), run(), {"lrr": [1]}, engine="ray", address=address)
    for part in ("'lrr'", f"the Ray cluster at {address} cannot be reached", "given as an object"):
        assert part in str(error.value)
    host = inlay.Host(base)
    with pytest.raises(RunError, match="'nowhere' is not an address of a Ray cluster"):
        inlay.sweep(host, run(), {}, engine="ray", address="nowhere")
    with pytest.raises(RunError, match=r"unknown engine 'rya'\. Did you mean ray"):
        inlay.sweep(host, run(), {}, engine="rya")
    with pytest.raises(RunError, match="address needs the engine ray"):
        inlay.sweep(host, run(), {}, address="auto")
    with pytest.raises(RunError, match="workers=0 is not valid"):
        inlay.sweep(host, run(), {}, engine="ray", workers=0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'inlay\[ray\]'"):
        inlay.sweep(host, run(), {}, engine="ray")


def test_ray_leaves_no_handler_of_sigterm_behind(monkeypatch: pytest.MonkeyPatch):
    """With Ray's, which ends the process, the next training would not be saved when it is stopped."""
    before = signal.getsignal(signal.SIGTERM)
    init = lambda *_, **__: signal.signal(signal.SIGTERM, lambda number, frame: None)  # noqa: E731
    package = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setattr(cluster, "ray", lambda: package)
    with cluster.joined(None):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_how_a_cluster_is_shared():
    def nodes(*resources: dict[str, float]) -> Any:
        return SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": one} for one in resources])

    big = {"CPU": 16.0, "GPU": 4.0}
    assert cluster.share(nodes(big, big)) == cluster.Share(8, 1.0, 1.0, 2)
    assert cluster.share(nodes(big), gpus=0.5).workers == 8
    assert cluster.share(nodes({"CPU": 8.0}, {"CPU": 4.0})) == cluster.Share(2, 4, 0.0, 2)
    assert cluster.share(nodes({"CPU": 8.0}), workers=3).cpus == 2
    assert cluster.share(nodes({"CPU": 1.0}), workers=2).cpus == 0.5
    with pytest.raises(RunError, match="5 workers with 1 GPUs each do not fit: the cluster has 4 GPUs"):
        cluster.share(nodes(big), workers=5)
