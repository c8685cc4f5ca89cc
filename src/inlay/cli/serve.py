"""`inlay serve`: every task of a library over HTTP, from one base, in one batch."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from inlay.cli import options, output, preflight
from inlay.cli.help import METHOD, OUTPUT, RARE, RUNNING, Command
from inlay.cli.named_adapters import base_of, faster_weights, open_library
from inlay.errors import InlayError, LibraryError
from inlay.library import card_text
from inlay.library.names import split_ref
from inlay.screen import counted

if TYPE_CHECKING:
    import socket

    from inlay.cluster import Share
    from inlay.library.library import Entry, Library
    from inlay.serve.keys import Keys
    from inlay.serve.ray import Place
    from inlay.serve.service_config import ServiceConfig
    from inlay.serve.watch import Choices, TaskSelection

_NEEDED = ("fastapi", "uvicorn", "httptools", "prometheus_client")
_EVERY = "2"
"""Seconds between two looks at the library, for a plain --watch."""
_SHOWN = 30
"""Tasks that are listed at the start."""


class WatchesPlainly(Command):
    """A command whose --watch may stand without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default number."""
        for i, word in enumerate(args):
            if word == "--watch" and (i + 1 == len(args) or args[i + 1].startswith("--")):
                args = [*args[: i + 1], _EVERY, *args[i + 1 :]]
                break
        return super().parse_args(ctx, args)


COMMAND = WatchesPlainly


def serve(
    host: Annotated[str, RUNNING.option("HOST", "The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, RUNNING.option("PORT", "The port to listen on; 0 picks a free one.", min=0, max=65535)] = 8000,
    base: Annotated[
        str | None,
        METHOD.option("BASE", f"{options.BASE}  [default: the one that most of the tasks were trained on]"),
    ] = None,
    weights: options.ServeWeights = None,
    library: options.Library = None,
    tasks: Annotated[
        str | None, METHOD.option("NAMES", "Serve only these: sms,sms@2,topic.  [default: the whole library]")
    ] = None,
    alias: Annotated[str | None, options.alias("Serve the versions that this alias points to, such as prod.")] = None,
    resident: Annotated[
        int, RARE.option("N", "Keep up to N adapters loaded; others are loaded on demand.", min=1)
    ] = 256,
    tokens: Annotated[
        int | None,
        RARE.option("N", "The most tokens in a batch.  [default: 4096; on CUDA 32768]", name="--batch-tokens", min=1),
    ] = None,
    wait_ms: Annotated[float, RARE.option("MS", "How long a batch waits for more requests.", min=0)] = 2,
    queue: Annotated[int, RARE.option("N", "How many requests may wait; further ones are refused.", min=1)] = 1024,
    key_file: Annotated[
        Path | None, RUNNING.option("FILE", "The API keys: a name, scopes and a key on each line.")
    ] = None,
    management_socket: Annotated[
        Path | None,
        RUNNING.option("PATH", "Also listen on a Unix socket; anyone who can open it may change the tasks."),
    ] = None,
    open_management: Annotated[
        bool, RUNNING.flag("--open-management", "Without keys, let anyone who can connect change the tasks.")
    ] = False,
    cors: Annotated[
        list[str] | None, RUNNING.option("ORIGIN", "Allow requests from web pages of this origin. Repeatable.")
    ] = None,
    watch: Annotated[
        float | None, RUNNING.option("[S]", "Check for new versions and moved aliases every S seconds.", min=0.05)
    ] = None,
    log_texts: Annotated[bool, OUTPUT.flag("--log-texts", "Include texts in the log.")] = False,
    engine: options.Engine = "local",
    address: options.Address = None,
    replicas: Annotated[
        int | None, RARE.option("N", "Replicas on Ray.  [default: one per GPU or machine]", min=1)
    ] = None,
    gpus: Annotated[
        float | None, RARE.option("X", "GPUs per replica, such as 0.5.  [default: 1 if there are any]", min=0)
    ] = None,
    as_json: output.AsJson = False,
) -> None:
    """Serve every task of a library over HTTP, with a web page for trying them out.

    Every request is logged to stderr as one line of JSON. SIGTERM and Ctrl+C stop the service after all
    accepted requests are answered.

    Examples:
        inlay serve --watch
        inlay serve --tasks tickets,tone@2 --host 0.0.0.0 --port 9000 --key-file keys.txt
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise InlayError(f"serving needs {', '.join(missing)}: pip install 'inlay[serve]'")
    preflight.check_engine(engine, address, {"--replicas": replicas, "--gpus": gpus})
    from inlay.serve.keys import Keys, read_keys

    opened = Keys(None, open_management, None if management_socket is None else str(management_socket))
    _check_management(opened, key_file, engine)
    keys = opened if key_file is None else read_keys(key_file)
    store, selection = open_library(library), _task_selection(tasks, alias)
    refs = selection.only
    entries = store.list(damaged=[]) if refs is None else [store.find(ref) for ref in refs.values()]
    base = _base(store, entries, base)
    from inlay.serve.engine_types import Settings
    from inlay.serve.limits import Limits
    from inlay.serve.process import take_port, taken_socket, url_of
    from inlay.serve.service_config import ServiceConfig
    from inlay.serve.watch import Choices

    tell = functools.partial(_tell, host=host, keys=keys, screen=output.console(as_json), as_json=as_json)
    with take_port(host, port) as taken, taken_socket(management_socket) as unix:  # before minutes are spent on loading
        choices = Choices.read(store.local / "serving" / f"{port}.json" if port else None)
        settings = Settings(tokens, wait_ms, queue, resident)
        limits = Limits(items=max(1, min(256, queue * 4 // 5)), answers=min(1024, queue))
        form = _form(weights, engine, entries)
        config = ServiceConfig(
            store.root, base, form, selection, settings, keys, limits, tuple(cors or ()), watch, log_texts
        )
        if engine == "ray":
            from inlay.serve.ray import Place

            url, chosen_port = url_of(taken), taken.getsockname()[1]
            taken.close()  # Ray Serve listens there
            _serve_on_ray(config, Place(host, chosen_port, address, replicas, gpus, choices.path), url, tell)
        else:
            _serve_here(config, choices, [taken, *unix], tell)


def _serve_here(config: ServiceConfig, choices: Choices, taken: list[socket.socket], tell: Callable[..., None]) -> None:
    from inlay.engine.host import Host
    from inlay.serve.process import run, url_of

    url = url_of(taken[0])  # if the service ends while it starts, the socket is closed before `started`
    service = config.service(Host(config.base, weights=config.weights), choices)

    def started() -> None:
        refs = [task.ref for task in service.engine.tasks()]
        tell(url, refs, choices.path, "", memory=_memory())

    run(service, taken, started)


def _serve_on_ray(config: ServiceConfig, place: Place, url: str, tell: Callable[..., None]) -> None:
    from inlay.serve.ray import run

    def started(refs: list[str], share: Share) -> None:
        tell(url, refs, place.choices, f"{counted(share.workers, 'replica')} on Ray", replicas=share.workers)

    library, base = (os.path.abspath(p) if p and os.path.isdir(p) else p for p in (config.library, config.base))
    watch = config.watch or float(_EVERY)
    run(replace(config, library=library or config.library, base=base, watch=watch), place, started)


def _check_management(opened: Keys, key_file: Path | None, engine: str) -> None:
    open_ways = {"--open-management": opened.open_management, "--management-socket": opened.socket is not None}
    for name in (name for name, is_given in open_ways.items() if is_given):
        if key_file is not None:
            raise InlayError(f"{name} is for a service without keys: with --key-file, managing takes a key")
    if opened.socket is not None and engine == "ray":
        raise InlayError("--management-socket is for --engine local; on Ray, manage with a key (--key-file)")


def _task_selection(tasks: str | None, alias: str | None) -> TaskSelection:
    from inlay.serve.watch import TaskSelection

    if tasks is None:
        return TaskSelection(None, alias)
    only: dict[str, str] = {}
    for ref in options.listed(tasks):
        name, version = split_ref(ref)
        served = name if name not in only else ref  # another version beside the first
        if served in only or ref in only.values():
            raise LibraryError(f"--tasks names {ref} twice")
        only[served] = ref if version is not None or alias is None else f"{name}@{alias}"
    if not only:
        raise LibraryError(f"--tasks {tasks!r} names no adapter; expected some such as sms,topic@2")
    return TaskSelection(only, alias)


def _form(weights: str | None, engine: str, entries: Sequence[Entry]) -> str | None:
    """How to keep the base's weights: as asked; else packed on the CPU, unless an adapter changes them."""
    if weights is not None or engine == "ray" or not entries:
        return weights
    return faster_weights(entries)


def _base(store: Library, entries: Sequence[Entry], base: str | None) -> str | None:
    """The given base, else that of most tasks."""
    if not entries and base is None:
        screen = output.console(True)
        warning = f"{store.root} has no adapters yet; inlay train makes one, and --watch finds it"
        screen.print(warning, style="yellow", soft_wrap=True)
    tasks_of_base = Counter(str(entry.card["base_name"]) for entry in entries if entry.card.get("base_name"))
    return base_of(base or next((name for name, _ in tasks_of_base.most_common(1)), None), [])


def _tell(
    url: str,
    refs: list[str],
    choices: Path | None,
    place: str,
    *,
    host: str,
    keys: Keys,
    screen: output.Console,
    as_json: bool,
    **more: Any,
) -> None:
    """When the service is ready, say where it listens, what it serves, and how much memory that takes."""
    shown = refs[:_SHOWN] + ([f"and {len(refs) - _SHOWN:,} more"] if len(refs) > _SHOWN else [])
    memory = ", ".join(f"{card_text.size(number)} on {where}" for where, number in more.get("memory", {}).items())
    screen.print(f"{url} serves {counted(len(refs), 'task')} ({place or memory})", style="bold", soft_wrap=True)
    if shown:
        screen.print(output.fold(shown, screen.width), soft_wrap=True)
    if keys.open:
        screen.print(f"no --key-file: {_who(host, keys)}", style="yellow", soft_wrap=True)
    screen.print("Ctrl+C or SIGTERM stops it after all accepted requests are answered", style="dim")
    document = {"url": url, "tasks": refs, "open": keys.open, **more}
    output.document({**document, "pid": os.getpid(), "choices": None if choices is None else str(choices)}, as_json)


def _who(host: str, keys: Keys) -> str:
    """Who may ask, and who may change what is served."""
    is_local = host in ("localhost", "::1") or host.startswith("127.")
    asks = "anyone on this machine (or behind a proxy on it)" if is_local else "anyone who reaches it"
    if keys.open_management:
        return f"{asks} may send requests and change tasks"
    through = f"tasks are changed through {keys.socket}" if keys.socket else "tasks cannot be changed over HTTP"
    return f"{asks} may send requests; {through}"


def _memory() -> dict[str, int]:
    """Device -> bytes that this process uses there."""
    import torch

    bytes_of_device: dict[str, int] = {}
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        bytes_of_device["cpu"] = pages * os.sysconf("SC_PAGE_SIZE")
    if torch.cuda.is_available():
        bytes_of_device["cuda"] = torch.cuda.memory_allocated()
    return bytes_of_device
