"""`inlay plan`: will N tasks fit, and what do they cost, against N full fine-tunings. Needs no weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, output
from inlay.errors import InlayError, RunError
from inlay.library.about import size

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.bank.delta import Method
    from inlay.base.sites import Sites

GB = 10**9


def plan(
    tasks: Annotated[int, typer.Option(metavar="N", help="How many tasks.")],
    base: options.Base = None,
    shape: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="bert-base, bert-large ... in place of a base.")
    ] = None,
    method: Annotated[str, typer.Option(metavar="SPEC", help="What every task is trained with.")] = "houlsby",
    rows: Annotated[int, typer.Option(metavar="N", help="Training rows of a task.")] = 5000,
    tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of a row, on average.")] = 32,
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over the rows.")] = 5,
    labels: Annotated[int, typer.Option(metavar="N", help="Labels of a task.")] = 2,
    device_memory: Annotated[
        float | None, typer.Option(metavar="GB", help="Of the device.  [default: that of the measured machine]")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this machine first, and remember it for other plans.")
    ] = False,
    as_json: output.AsJson = False,
) -> None:
    """Say whether N tasks fit, and what they cost in memory, disk and time, against N full fine-tunings.

    Speed is that of this machine where --measure has run, else what is published for an H200. The exit code is 1 if
    they do not fit.
    """
    numbers = {"tasks": tasks, "rows": rows, "tokens": tokens, "epochs": epochs, "labels": labels}
    problems = [f"--{key} {n} is not valid: expected at least 1" for key, n in numbers.items() if n < 1]
    if device_memory is not None and not 0 < device_memory < 1e9:
        problems.append(f"--device-memory {device_memory:g} is not valid: expected GB, more than 0")
    name, sites, made = _settle(base, shape, method, problems)
    if problems:
        raise RunError("; ".join(problems))
    assert sites is not None
    assert made is not None
    from inlay.bench import figures
    from inlay.bench.plan import Question
    from inlay.bench.plan import plan as answer

    memory = None if device_memory is None else int(device_memory * GB)
    question = Question(tasks, made, rows, tokens, epochs, labels, memory)
    screen = output.console(as_json)
    known = figures.known(name, made.spec)
    if measure:
        say = output.console(as_json=True)
        known = figures.measure(
            base or figures.default_base(), shape, sites, made.spec, tasks, lambda line: say.print(line, style="dim")
        )
        if figures.keep(known) is None:
            say.print("not remembered: the cache is off, or cannot be written", style="dim")
    found = answer(question, name, sites, known)
    found["answer"] = _answer(found)
    if known.source != "this machine":
        other = f"for an {known.machine}, as measured in {known.source}, not for this machine: --measure measures it"
        screen.print(other, style="yellow", soft_wrap=True)
    _show(screen, found)
    if as_json:
        output.document(found)
    if not found["fits"]:
        raise typer.Exit(1)


def _settle(
    base: str | None, shape: str | None, spec: str, problems: list[str]
) -> tuple[str, Sites | None, Method | None]:
    """The base's name and shape, and the method; what is wrong with them is added to the problems."""
    from inlay.base.places import check_shape, locate
    from inlay.config import split_spec
    from inlay.registry import methods

    checks: list[Callable[[], object]] = [lambda: methods.check(split_spec(spec)[0])]
    checks += [] if base is None else [functools.partial(locate, base)]
    checks += [] if shape is None else [functools.partial(check_shape, shape)]
    for one in checks:
        try:
            one()
        except InlayError as error:
            problems.append(str(error))
    if base is not None and shape is not None:
        problems.append("--base and --shape exclude each other")
    if problems:  # nothing is imported for a command that cannot run
        return "", None, None
    from inlay.bank.delta import parse

    try:
        made = parse(spec)
    except InlayError as error:
        problems.append(str(error))
        return "", None, None
    from inlay.base.shapes import sites_of, sites_of_base
    from inlay.bench.figures import default_base

    name = shape or base or default_base()
    sites = None
    try:
        sites = sites_of(shape) if shape is not None else sites_of_base(locate(name)[0])
        made.count(sites)  # what the method cannot do in this base is noticed here
    except InlayError as error:
        problems.append(str(error))
    return name, sites, made


def _answer(found: Mapping[str, Any]) -> str:
    """All of it in a line."""
    ours, training, device = found["serving"], found["training"], found["device"]
    tasks, runs = found["tasks"], found["training"]["side_by_side"]
    where = f"{device['name']} ({size(device['memory'])})"
    if device["memory"] != found["figures"]["memory"]:
        where = f"a device of {size(device['memory'])}"
    if found["fits"]:
        fits = f"{tasks:,} tasks fit" if tasks > 1 else "one task fits"
        beside = f"{size(ours['bytes'])} beside a base of {size(found['base']['bytes'])} on {where}"
        train = f"{runs} train side by side" if runs > 1 else "one trains at a time"
        return f"{fits}: {beside}; {train}, {_time(training['hours'])} for all; {size(found['disk']['bytes'])} on disk"
    if ours["resident"] < tasks:
        all_ = size(ours["bytes_for_all"])
        fail = f"{tasks:,} tasks do not fit" if tasks > 1 else "one task does not fit"
        return f"{fail}: all of them take {all_}; {ours['resident']:,} fit at once on {where}"
    return f"nothing can be trained: a run takes {size(training['bytes_per_run'])}, too much for {where}"


def _show(screen: Console, found: Mapping[str, Any]) -> None:
    screen.print(found["answer"])
    for way in found["would_fit"]:
        screen.print(f"  instead: {way}")
    ours, full, adapter = found["serving"], found["finetuning"], found["adapter"]
    training, disk = found["training"], found["disk"]
    name = found["method"]
    table = output.table("", name, "full fine-tuning", right=(name, "full fine-tuning"))
    base = found["base"]["parameters"]
    table.add_row("parameters of a task", f"{adapter['parameters']:,}", f"{base:,}")
    table.add_row(
        "  of all, with the base", f"{base + found['tasks'] * adapter['parameters']:,}", f"{full['parameters']:,}"
    )
    table.add_row("resident at once", f"{ours['resident']:,}", f"{full['resident']:,}")
    table.add_row(
        "memory, all resident", size(ours["bytes_for_all"] + found["base"]["bytes"]), size(full["bytes_for_all"])
    )
    table.add_row("memory of a run", size(training["bytes_per_run"]), size(full["bytes_per_run"]))
    table.add_row("runs side by side", f"{training['side_by_side']:,}", "1")
    table.add_row("tokens a second", f"{training['tokens_per_second']:,.0f}", f"{full['tokens_per_second']:,.0f}")
    table.add_row("training all", _time(training["hours"]), _time(full["hours"]))
    table.add_row("disk, fp32", size(disk["bytes"]), size(full["disk_bytes"]))
    table.add_row("disk, fp16", size(disk["bytes_fp16"]), size(full["disk_bytes_fp16"]))
    table.add_row("files", f"{disk['files']:,}", "")
    if ours["rows_per_second"] is not None:
        table.add_row("rows a second, engine", f"{ours['rows_per_second']:,.0f}", "")
    screen.print("")
    screen.print(table)
    figures = found["figures"]
    screen.print(
        f"\nspeed: {figures['source']}, {figures['machine']}, {figures['base']} with {figures['method']}, "
        f"{figures['when'][:10]}, inlay {figures['version']}",
        style="dim",
    )
    for note in figures["notes"]:
        screen.print(note, style="dim")


def _time(hours: float) -> str:
    if hours < 1 / 60:
        return f"{3600 * hours:.1f} s"
    if hours < 1:
        return f"{60 * hours:.1f} min"
    return f"{hours:,.1f} h"
