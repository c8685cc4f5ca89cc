"""Replicas on Ray Serve: they answer as one, agree about what is served, and one that dies is replaced."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import prometheus_client
import pytest
from serve import place as places
from serve.place import GIVEN, until
from serve.process import Process, state_of
from serve.tasks import same, without_version
from typer.testing import CliRunner

import inlay
from inlay.errors import AdapterError
from inlay.library.library import Library
from inlay.serve import ray_state
from inlay.serve.metrics import gathered
from inlay.serve.ray_state import SharedChoices, StateActor

pytest.importorskip("ray")
LONG = 180.0
"""Seconds for a replica to start where many others want the processor."""


# --- the state, without Ray ---------------------------------------------------------------------------------------


def test_changes_of_two_replicas_at_once_are_both_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    actor = StateActor(tmp_path / "choices.json")
    monkeypatch.setattr(ray_state, "find_state_actor", lambda: _Direct(actor))
    monkeypatch.setattr(ray_state.cluster, "ray", lambda: _Direct(actor))
    one, other = SharedChoices(), SharedChoices()
    for choices in (one, other):
        choices.take_up(asyncio.run(actor.state()))
    one.put["sms"] = "sms@1"
    other.taken.append("ner")  # it does not know of sms
    one.keep()
    other.keep()
    assert (other.put, other.taken) == ({"sms": "sms@1"}, ["ner"])
    one.take_up(asyncio.run(actor.state()))
    assert (one.put, one.taken) == (other.put, other.taken)
    one.put.clear()
    one.taken.clear()
    one.keep()
    assert not one.take_up(ray_state.State(one.number - 1, {"old": "old@1"}, [])), "what is older is not heeded"
    again = asyncio.run(StateActor(tmp_path / "choices.json").state())
    assert (again.put, again.taken) == ({}, [])
    assert again.number > one.number


class _Direct:
    """Calls an actor's methods here and now."""

    def __init__(self, actor: StateActor):
        self.change = self
        self.actor = actor

    def remote(self, changes: Any) -> Any:
        return self.actor.change(changes)

    def get(self, answer: Any, timeout: float) -> Any:
        return asyncio.run(answer)


def test_whoever_waits_for_the_state_hears_of_a_change_at_once():
    async def wait() -> tuple[Any, Any, float]:
        actor = StateActor(None)
        first = await actor.state()
        nothing = await actor.after(first.number, 0.01)
        waiting = asyncio.create_task(actor.after(first.number, 30))
        await asyncio.sleep(0)
        began = time.monotonic()
        await actor.change({"sms": "sms@1"})
        return nothing, await waiting, time.monotonic() - began

    nothing, state, seconds = asyncio.run(wait())
    assert nothing is None
    assert state.put == {"sms": "sms@1"}
    assert seconds < 5


def test_figures_of_replicas_are_told_apart():
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families as parsed

    def measured(number: int) -> CollectorRegistry:
        own = CollectorRegistry()
        prometheus_client.Counter("inlay_answers", "Answers.", ["task"], registry=own).labels("sms").inc(number)
        prometheus_client.Histogram("inlay_seconds", "Seconds.", buckets=(1, 2), registry=own).observe(number)
        return own

    pages = {"a": measured(1), "b": measured(2)}
    found = generate_latest(gathered({name: list(one.collect()) for name, one in pages.items()})).decode()
    got = {(s.name, *sorted(s.labels.items())): s.value for family in parsed(found) for s in family.samples}
    expected = {
        (s.name, *sorted({**s.labels, "replica": name}.items())): s.value
        for name, one in pages.items()
        for family in parsed(generate_latest(one).decode())
        for s in family.samples
    }
    assert got == expected
    assert found.count("# TYPE inlay_answers_total counter") == 1


def test_bad_options_are_refused_before_anything_is_loaded():
    from inlay.cli.main import app

    result = CliRunner().invoke(app, ["serve", "--engine", "rya"])
    assert result.exit_code == 2
    assert "unknown engine 'rya'" in result.output
    result = CliRunner().invoke(app, ["serve", "--replicas", "2"])
    assert result.exit_code in (1, 2)
    assert "--replicas needs --engine ray" in result.output
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(app, ["serve", "--engine", "ray", "--address", address])
    assert result.exit_code == 1
    assert "cannot be reached" in result.output


def test_a_named_task_that_replicas_cannot_serve_is_an_error_at_the_start():
    from inlay.serve import ray
    from inlay.serve.service_config import ServiceConfig

    def saying(found: list[str]) -> Any:
        return SimpleNamespace(remote=lambda: SimpleNamespace(result=lambda timeout_s: found))

    def deployed(refused: list[str]) -> list[str]:
        handle = SimpleNamespace(refused=saying(refused), tasks=saying(["sms@1"]))
        serve = SimpleNamespace(
            start=lambda **_: None,
            ingress=lambda _: lambda replica: replica,
            deployment=lambda **_: lambda _: SimpleNamespace(bind=lambda *_: None),
            run=lambda *_, **__: handle,
        )
        return ray._deploy(
            serve, ServiceConfig("here"), ray.Place("127.0.0.1", 1), SimpleNamespace(workers=1, options={}, gpus=0)
        )  # type: ignore[arg-type]

    assert deployed([]) == ["sms@1"]
    with pytest.raises(AdapterError, match="bare@1 cannot be served"):
        deployed(["bare@1 cannot be served"])


# --- two replicas -------------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """A service of two replicas, and what they serve."""

    process: Process
    library: Library
    base: str
    port: int

    def ask(self, task: str = "sms") -> tuple[str, dict[str, Any]]:
        """Who has answered, and what; on a connection of its own."""
        body = {"requests": [{"task": task, **GIVEN[task]}]}
        response = httpx.post(f"{self.process.url}/v1/predict", json=body, timeout=60)
        assert response.status_code == 200, response.text
        return response.headers["x-inlay-replica"], response.json()["results"][0]

    def until_all(self, says: Callable[[dict[str, Any]], bool], task: str = "sms") -> float:
        """Seconds until both replicas, in their latest answers, say something."""
        began = time.monotonic()
        latest: dict[str, bool] = {}
        while not (len(latest) == 2 and all(latest.values())):
            who, answer = self.ask(task)
            latest[who] = says(answer)
            assert time.monotonic() < began + 60, latest
        return time.monotonic() - began

    def answers(self) -> dict[str, float]:
        """What /metrics says: replica -> answers."""
        page = httpx.get(f"{self.process.url}/metrics").text
        found: Counter[str] = Counter()
        for who, number in re.findall(r'^inlay_answers_total\{.*replica="(\w+)".*\} (\S+)$', page, re.MULTILINE):
            found[who] += float(number)
        return dict(found)

    def workers(self) -> dict[int, str]:
        """All processes that the service has started: id -> command."""
        found: dict[int, tuple[int, str]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(folder.name)] = parent, (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue

        def is_ours(pid: int) -> bool:
            return pid in found and (found[pid][0] == self.process.child.pid or is_ours(found[pid][0]))

        return {pid: command for pid, (_, command) in found.items() if is_ours(pid)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    base, library = places.make_library(tmp_path_factory.mktemp("ray"))
    places.add(inlay.Host(base), library, "sms", 50, base)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = (
        "--engine",
        "ray",
        "--address",
        "local",
        "--replicas",
        2,
        "--port",
        port,
        "--watch",
        0.2,
        "--open-management",
    )
    with Process(library, *options) as process:
        yield Cluster(process, library, base, port)


@pytest.mark.full
def test_both_answer_as_the_host_does(cluster: Cluster):
    assert cluster.process.about["replicas"] == 2
    host = inlay.Host(cluster.base)
    for name in GIVEN:
        host.load(cluster.library.get(name), name)
    given = {name: one.get("text") or one.get("tokens") or one for name, one in GIVEN.items()}
    expected = {name: host.predict([(name, one)])[0] for name, one in given.items()}
    answered: dict[str, set[str]] = {}
    asked: list[str] = []
    for i in range(60):
        name = list(GIVEN)[i % len(GIVEN)]
        who, answer = cluster.ask(name)
        assert same(without_version(answer), expected[name])
        answered.setdefault(who, set()).add(name)
        asked.append(who)
    assert len(answered) == 2
    assert all(len(names) > 1 for names in answered.values())
    until(lambda: cluster.answers() == dict(Counter(asked)), 30)


@pytest.mark.full
def test_what_one_is_asked_to_serve_all_serve(cluster: Cluster):
    cluster.until_all(lambda answer: answer["version"] == 2)
    with inlay.Client(cluster.process.url) as client:
        client.serve("sms", "sms@1")
        assert cluster.until_all(lambda answer: answer.get("version") == 1) < 10
        client.withdraw("ner")
        assert cluster.until_all(lambda answer: answer.get("error", {}).get("type") == "unknown_task", "ner") < 10
        assert '"sms@1"' in state_of(cluster.library, cluster.port).read_text()
        client.serve("sms")
        client.serve("ner")
    cluster.until_all(lambda answer: answer.get("version") == 2)
    version = places.add(inlay.Host(cluster.base), cluster.library, "sms", 60, cluster.base)
    assert version == 3
    assert cluster.until_all(lambda answer: answer.get("version") == 3) < 20, "found by watching the library"


@pytest.mark.full
def test_one_that_is_killed_is_replaced_and_answers_go_on(cluster: Cluster):
    before = {cluster.ask()[0] for _ in range(30)}
    replicas = [pid for pid, command in cluster.workers().items() if command.startswith("ray::ServeReplica:inlay")]
    assert len(before) == len(replicas) == 2
    seen: list[str] = []
    problems: list[str] = []
    end = threading.Event()

    def load() -> None:
        while not end.is_set():
            try:
                seen.append(cluster.ask()[0])
            except (AssertionError, httpx.HTTPError) as error:
                problems.append(str(error))

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: len(seen) > 10)
    os.kill(replicas[0], signal.SIGKILL)
    try:
        until(lambda: len(set(seen) - before) == 1, LONG)
        at = len(problems)
        until(lambda: len(seen[-40:]) == 40 and len(set(seen[-40:])) == 2, 60)
    finally:
        end.set()
        for thread in threads:
            thread.join(60)
    assert len(problems) == at, "once it is replaced there are no more"
    assert at <= 4, problems  # the calls that the dead one had in hand
    newest = cluster.library.find("sms").version
    assert cluster.until_all(lambda answer: answer.get("version") == newest) < 60


@pytest.mark.full
def test_the_end_under_load(cluster: Cluster):
    processes = cluster.workers()
    assert processes
    statuses: Counter[int] = Counter()
    problems: list[str] = []

    def load() -> None:
        body = {"requests": [{"task": "sms", **GIVEN["sms"]}]}
        while not (problems or statuses[404]):  # by then it is off
            try:
                statuses[httpx.post(f"{cluster.process.url}/v1/predict", json=body, timeout=60).status_code] += 1
            except httpx.HTTPError as error:
                problems.append(repr(error))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: statuses[200] > 20)
    assert cluster.process.end(signal.SIGTERM) == 0, cluster.process.said()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert statuses.keys() <= {200, 404}, "all that was accepted is answered"
    assert "Traceback" not in cluster.process.said()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), 30)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{cluster.process.url}/health")
