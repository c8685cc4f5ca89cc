"""`inlay serve`: every task of a library over HTTP, from one base, in one batch."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from inlay.cli import options, output
from inlay.errors import InlayError, LibraryError
from inlay.library import about

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.engine.host import Host
    from inlay.library.library import Library
    from inlay.serve.app import Service
    from inlay.serve.watch import Wish

_NEEDED = ("fastapi", "uvicorn", "httptools", "prometheus_client")
_EVERY = "2"
"""Seconds between two looks at the library, for a plain --watch."""
_SHOWN = 30
"""Tasks that are listed at the start."""


class WatchesPlainly(TyperCommand):
    """A command whose --watch may stand without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give it one."""
        for i, word in enumerate(args):
            if word == "--watch" and (i + 1 == len(args) or args[i + 1].startswith("--")):
                args = [*args[: i + 1], _EVERY, *args[i + 1 :]]
                break
        return super().parse_args(ctx, args)


def serve(
    host: Annotated[str, typer.Option(metavar="H", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="P", help="Its port; 0 takes any.")] = 8000,
    base: options.TrainedBase = None,
    weights: options.Weights = None,
    library: options.Library = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Serve these alone: sms,topic@2.  [default: the library]")
    ] = None,
    alias: Annotated[
        str | None, typer.Option(metavar="A", help="Serve what this alias points to, such as prod.")
    ] = None,
    resident: Annotated[int, typer.Option(min=1, metavar="N", help="Adapters beside the base at once.")] = 256,
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of one batch.  [default: 4096, on CUDA 32768]")
    ] = None,
    wait_ms: Annotated[
        float, typer.Option(min=0, metavar="X", help="How long the first of a batch waits for others.")
    ] = 2.0,
    queue: Annotated[int, typer.Option(min=1, metavar="N", help="Requests that may wait; more are refused.")] = 1024,
    key_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Who may ask: lines of name, scopes and key.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="A web page's origin that may ask from a browser.")
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(min=0.05, metavar="[S]", help="Look for new versions and moved aliases every S seconds."),
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Put texts into the log.")] = False,
    as_json: output.AsJson = False,
) -> None:
    """Serve every task of a library over HTTP, with a page to try them.

    The log goes to stderr, one line of JSON for every request. SIGTERM and Ctrl+C end it when all that was accepted is
    answered.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise InlayError(f"serving needs {', '.join(missing)}: pip install 'inlay[serve]'")
    from inlay.library.library import Library
    from inlay.serve.app import Service
    from inlay.serve.ask import Settings
    from inlay.serve.engine import Engine
    from inlay.serve.keys import Keys, read_keys
    from inlay.serve.limits import Limits
    from inlay.serve.logs import Log
    from inlay.serve.run import Running, run, take_port, url_of
    from inlay.serve.watch import Catalogue, Choices, Watcher

    keys = Keys() if key_file is None else read_keys(key_file)
    screen = output.console(as_json)
    with take_port(host, port) as taken:  # before minutes are spent on loading
        store, wish = Library(library), _wish(tasks, alias)
        kept = Choices.read(store.local / "serving" / f"{port}.json" if port else None)
        on = _host(store, wish, base, weights)
        engine = Engine(on, store, Settings(tokens, wait_ms, queue, resident))
        catalogue = Catalogue(engine, store, wish, kept)
        limits = Limits(items=max(1, min(256, queue * 4 // 5)), answers=min(1024, queue))
        service = Service(engine, catalogue, keys, limits, Log(log_texts))
        watcher = Watcher(catalogue, watch, lambda note: service.log.write("task", problem=note)) if watch else None
        told = functools.partial(_tell, service, url_of(taken), host, screen, as_json)
        run(Running(service, tuple(cors or ()), watcher, told), taken)


def _wish(tasks: str | None, alias: str | None) -> Wish:
    from inlay.library.names import check_alias, split_ref
    from inlay.serve.watch import Wish

    if alias is not None:
        check_alias(alias)
    if tasks is None:
        return Wish(None, alias)
    only: dict[str, str] = {}
    for ref in filter(None, (part.strip() for part in tasks.split(","))):
        name, which = split_ref(ref)
        if name in only:
            raise LibraryError(f"{name} is asked for twice: one version of a task is served at a time")
        only[name] = ref if which is not None or alias is None else f"{name}@{alias}"
    if not only:
        raise LibraryError(f"--tasks {tasks!r} names no adapter; expected some such as sms,topic@2")
    return Wish(only, alias)


def _host(store: Library, wish: Wish, base: str | None, weights: str | None) -> Host:
    """The base that is named, else that of the most tasks."""
    from inlay.engine.host import Host

    only = wish.only
    entries = store.list(damaged=[]) if only is None else [store.find(ref) for ref in only.values()]
    if not entries and base is None:
        screen = output.console(True)
        screen.print(f"{store.root} has no adapters yet: the default base is served", style="yellow", soft_wrap=True)
    named = Counter(str(entry.card["base_name"]) for entry in entries if entry.card.get("base_name"))
    return Host(base or next((name for name, _ in named.most_common(1)), None), weights=weights)


def _tell(service: Service, url: str, host: str, screen: Console, as_json: bool) -> None:
    """Say where it listens, what it serves, and what that takes; called when it is ready."""
    served = service.engine.tasks()
    found: dict[str, Any] = {
        "url": url,
        "tasks": [one.ref for one in served],
        "open": service.keys.open,
        "memory": _memory(),
        "pid": os.getpid(),
        "choices": str(kept) if (kept := service.catalogue.choices.path) else None,
    }
    refs = [one.ref for one in served][:_SHOWN] + (
        [f"and {len(served) - _SHOWN:,} more"] if len(served) > _SHOWN else []
    )
    count = "1 task" if len(served) == 1 else f"{len(served):,} tasks"
    memory = ", ".join(f"{about.size(number)} on {where}" for where, number in found["memory"].items())
    screen.print(f"{url} serves {count} ({memory})", style="bold", soft_wrap=True)
    if refs:
        screen.print(output.fold(refs, screen.width), soft_wrap=True)
    if service.keys.open:
        reach = "this machine" if _is_local(host) else "whoever reaches it"
        screen.print(f"no --key-file: open to {reach}; tasks are managed from this machine alone", style="yellow")
    screen.print("Ctrl+C or SIGTERM ends it when all is answered", style="dim")
    if as_json:
        output.document(found)


def _is_local(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _memory() -> dict[str, int]:
    """Bytes that this process has, by device."""
    import torch

    found: dict[str, int] = {}
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        found["cpu"] = pages * os.sysconf("SC_PAGE_SIZE")
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.memory_allocated()
    return found
