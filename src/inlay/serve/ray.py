"""Replicas of a service on Ray Serve: each is a whole service, with its own base, engine and application.

Ray Serve listens, passes calls on to replicas, and replaces a replica that has died. What `PUT` and `DELETE` change on
one replica reaches the others through an actor (`ray_state.py`); changes in the library are seen by watching it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from inlay import cluster
from inlay.errors import AdapterError, RunError, first_line
from inlay.serve.app import build
from inlay.serve.nodes import check_nodes
from inlay.serve.process import begin, finish, signals
from inlay.serve.ray_state import NAME, NAMESPACE, Follower, SharedChoices, StateActor, find_state_actor
from inlay.serve.server import DRAIN
from inlay.serve.service_config import ServiceConfig

_APP = "inlay"
HEADER = b"x-inlay-replica"


@dataclass(frozen=True)
class Place:
    """Where replicas run, and the address that they answer on."""

    host: str
    port: int
    address: str | None = None
    replicas: int | None = None
    gpus: float | None = None
    choices: Path | None = None
    """The file that keeps choices, on this machine."""


class Replica:
    """A service without a socket."""

    def __init__(self, config: ServiceConfig, device: str):
        from inlay.engine.host import Host

        global _here
        ray = cluster.ray()
        self.label = str(ray.get_runtime_context().get_actor_id())[:12]
        choices = SharedChoices()
        choices.take_up(ray.get(find_state_actor().state.remote()))
        self.service = config.service(Host(config.base, weights=config.weights, device=device), choices)
        self.follower = Follower(self.service, choices, self.label)
        self.built = build(self.service, self._lifespan)
        begin(self.service)
        self.follower.start()
        _here = self

    def check_health(self) -> None:
        """Called by Ray Serve now and then; it replaces a replica that raises here."""
        if self.service.engine.failed is not None:
            raise RuntimeError(f"the engine has failed: {self.service.engine.failed}")

    def tasks(self) -> list[str]:
        """The refs of the tasks that are served."""
        return [served.ref for served in self.service.engine.tasks()]

    def refused(self) -> list[str]:
        """Why named tasks are not served: an error at the start, but not for a replica that comes later."""
        return self.service.catalogue.refused()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call; a header names the replica."""

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, self.label.encode())]
            await send(message)

        await self.built(scope, receive, signed)

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Ray Serve ends it when the replica is to stop, and all its calls are answered."""
        yield
        self.follower.stop()
        await asyncio.to_thread(finish, self.service)


_here: Replica | None = None
"""The replica of this process."""


class Entrance:
    """The application for Ray Serve: it is made before the replica, and passes everything on to it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on."""
        assert _here is not None
        await _here.answer(scope, receive, send)


def run(config: ServiceConfig, place: Place, started: Callable[[list[str], cluster.Share], None]) -> None:
    """Serve until a signal comes; then answer what was accepted.

    Args:
        started: called when all replicas are ready, with the refs of the tasks.
    """
    with cluster.joined(place.address) as ray, signals() as ended:
        for_cpu = config.weights in ("int8", "prepack")
        share = cluster.share(ray, place.replicas, 0.0 if for_cpu else place.gpus, "replicas")
        serve = cluster.ray("ray.serve")
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        _refuse_second(serve)
        check_nodes(ray, config.library, config.base)
        try:
            _start_state_actor(ray, place.choices)
            tasks = _deploy(serve, config, place, share)
            started(tasks, share)
            ended.wait()
        finally:
            _end(ray, serve)


def _deploy(serve: Any, config: ServiceConfig, place: Place, share: cluster.Share) -> list[str]:
    serve.start(proxy_location="EveryNode", http_options={"host": place.host, "port": place.port})
    deployment = serve.deployment(
        name="Replica",
        num_replicas=share.workers,
        ray_actor_options=share.options,
        max_ongoing_requests=config.limits.connections,  # the engine's own queue sets the limit
        graceful_shutdown_timeout_s=DRAIN,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=2.0,
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )
    device = "cuda" if share.gpus else "cpu"
    try:
        app = deployment(serve.ingress(Entrance())(Replica)).bind(config, device)
        handle = serve.run(app, name=_APP, route_prefix="/")
        refused = handle.refused.remote().result(timeout_s=DRAIN)
        tasks: list[str] = handle.tasks.remote().result(timeout_s=DRAIN)
    except (RuntimeError, TimeoutError) as error:
        raise RunError(f"the replicas could not be started: {_startup_error(serve) or first_line(error)}") from None
    if refused:
        raise AdapterError("; ".join(refused))
    return tasks


def _startup_error(serve: Any) -> str:
    """Why replicas do not start: the last line of the traceback that Ray Serve keeps."""
    with suppress(Exception):
        message = next(iter(serve.status().applications[_APP].deployments.values())).message
        line = str([line.strip() for line in message.splitlines() if "Error" in line][-1])
        return line.partition(": ")[2] if line.startswith("inlay.errors.") else line
    return ""


def _start_state_actor(ray: Any, choices: Path | None) -> None:
    """It outlives this process, as replicas do, and stays on this machine, where its file is."""
    affinity = cluster.ray("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    here = affinity(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "max_restarts": -1, "num_cpus": 0}
    actor = ray.remote(StateActor).options(**options, scheduling_strategy=here).remote(choices)
    ray.get(actor.state.remote())


def _end(ray: Any, serve: Any) -> None:
    with suppress(Exception):  # it may never have come up
        serve.delete(_APP)
    with suppress(ValueError):
        ray.kill(find_state_actor())
    with redirect_stderr(StringIO()):  # Ray says there that its controller, which it has just killed, is dead
        serve.shutdown()


def _refuse_second(serve: Any) -> None:
    """Ray Serve listens on one port for a whole cluster."""
    try:
        running = sorted(serve.status().applications)
    except Exception:  # none is running
        return
    if running:
        raise RunError(
            f"Ray Serve runs {', '.join(running)} on this cluster: end that first (serve shutdown), or use another one"
        )
