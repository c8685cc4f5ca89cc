"""A Ray cluster: joined quietly, measured, and left as it was found.

An existing cluster (`--address`, `RAY_ADDRESS`, or the one this machine belongs to) is joined; without one, a cluster
of this machine alone is started, and ends with this process. Ray is imported only when it is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inlay.errors import RunError, first_line

_REACH = 5.0
"""Seconds for an address to answer."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_SERVE_LOG_TO_STDERR": "0"}
"""Ray sends no usage statistics, and gives no warnings about settings of ours."""


@dataclass(frozen=True)
class Share:
    """How many workers there are, and what each of them gets."""

    workers: int
    cpus: float
    gpus: float
    nodes: int
    """Machines of the cluster."""

    @property
    def options(self) -> dict[str, float]:
        """The options of a Ray worker."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus}


def ray(module: str = "ray") -> Any:
    """The package, or a module of it."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError:
        raise RunError("--engine ray needs Ray: pip install 'inlay[ray]'") from None


def problems(address: str | None) -> list[str]:
    """What is wrong, as far as that can be known before anything is started."""
    if importlib.util.find_spec("ray") is None:
        return ["--engine ray needs Ray: pip install 'inlay[ray]'"]
    target = address or os.environ.get("RAY_ADDRESS") or "auto"
    if target in ("auto", "local"):
        return []
    match = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d{1,5})", target)
    if match is None:
        return [f"{target!r} is not an address of a Ray cluster; expected host:port, ray://host:port or auto"]
    try:
        with socket.create_connection((match[1], int(match[2])), _REACH):
            return []
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return [f"the Ray cluster at {target} cannot be reached: {reason}"]


@contextmanager
def joined(address: str | None) -> Iterator[Any]:
    """Ray, connected; a connection that existed before stays open."""
    package = ray()
    if package.is_initialized():
        yield package
        return
    with _handler_kept(signal.SIGTERM):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                package.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            except Exception as error:  # Ray has no type of its own for what goes wrong here
                where = f"at {address} " if address else ""
                raise RunError(f"the Ray cluster {where}cannot be used: {first_line(error)}") from None
        try:
            yield package
        finally:
            package.shutdown()


@contextmanager
def _handler_kept(number: signal.Signals) -> Iterator[None]:
    """Restore a signal's handler: Ray sets its own and leaves it, and a later training would end without saving."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


def share(package: Any, workers: int | None = None, gpus: float | None = None, what: str = "workers") -> Share:
    """One worker per GPU, or per machine without GPUs, unless `workers` says otherwise.

    Workers share the CPUs of their machine, so that all cores are used; a worker with a GPU gets one CPU.

    Args:
        gpus: of one worker; by default 1 if the cluster has any.
    """
    alive = [node for node in package.nodes() if node["Alive"]]
    total = sum(node["Resources"].get("GPU", 0.0) for node in alive)
    gpus_each = (1.0 if total else 0.0) if gpus is None else gpus
    most = int(sum(node["Resources"].get("GPU", 0.0) // gpus_each for node in alive)) if gpus_each else None
    count = workers or (len(alive) if most is None else max(1, most))
    if most is not None and count > most:
        raise RunError(f"{count} {what} with {gpus_each:g} GPUs each do not fit: the cluster has {total:g} GPUs")
    cores = [node["Resources"].get("CPU", 0.0) for node in alive]
    usable = [number for number in cores if number > 0]
    if not usable:
        raise RunError("the Ray cluster offers no CPUs")
    cpus = min(usable) / math.ceil(count / len(usable))
    return Share(count, 1.0 if gpus_each else (math.floor(cpus) if cpus >= 1 else cpus), gpus_each, len(alive))
