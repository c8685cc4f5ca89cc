"""`inlay plan`: will N tasks fit, and what do they cost, against N full fine-tunings. Needs no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.base.places import locate
from inlay.cli import option_checks, options, output, preflight
from inlay.cli.help import DATA, METHOD, RUNNING, TRAINING
from inlay.library.card_text import size

if TYPE_CHECKING:
    from inlay.bank.delta import Method
    from inlay.base.sites import Sites

GB = 10**9


def plan(
    task_count: Annotated[int, DATA.option("N", "How many tasks.", min=1)],
    rows: Annotated[int, DATA.option("N", "Training rows per task.", name="--rows-per-task", min=1)] = 5000,
    tokens: Annotated[int, DATA.option("N", "Average tokens per row.", name="--tokens-per-row", min=1)] = 32,
    epochs: Annotated[int, TRAINING.option("N", "Passes over the data.", min=1)] = 5,
    labels: Annotated[int, METHOD.option("N", "The number of labels.", min=1)] = 2,
    base: options.Base = None,
    shape: Annotated[
        str | None,
        METHOD.option(
            "SHAPE", f"A shape instead of a base: {options.either(option_checks.SHAPES)}.", check=option_checks.shape
        ),
    ] = None,
    method: options.Method = "houlsby",
    device_memory: Annotated[
        float | None, RUNNING.option("GB", "Device memory.  [default: the measured machine's]")
    ] = None,
    measure: Annotated[
        bool, RUNNING.flag("--measure", "Measure this machine first; later plans reuse the result.")
    ] = False,
    as_json: output.AsJson = False,
) -> None:
    """Estimate whether N tasks fit, and their memory, disk and time compared with N fully fine-tuned models.

    Speed is this machine's if --measure has been run, otherwise the published one of an H200. The exit code is 1 if the
    tasks do not fit.

    Examples:
        inlay plan --task-count 1000
        inlay plan --task-count 1000 --shape bert-base --method lora --measure
    """
    if base is not None and shape is not None:
        raise typer.BadParameter("--base and --shape cannot be combined")
    if device_memory is not None and not 0 < device_memory < 1e9:
        raise typer.BadParameter("expected more than 0 GB", param_hint="'--device-memory'")
    preflight.check_base(base)
    preflight.check_specs(method)
    name, sites, parsed = _settle(base, shape, method)
    from inlay.bench import figures
    from inlay.bench.plan import Question
    from inlay.bench.plan import plan as answer

    memory = None if device_memory is None else int(device_memory * GB)
    question = Question(task_count, parsed, rows, tokens, epochs, labels, memory)
    screen = output.console(as_json)
    speeds = figures.known(name, parsed.spec)
    if measure:
        say = output.console(as_json=True)
        where = (base or figures.default_base(), shape, sites)
        speeds = figures.measure(*where, parsed.spec, task_count, lambda line: say.print(line, style="dim"))
        if figures.keep(speeds) is None:
            say.print("not saved for later plans: the cache is off or cannot be written", style="dim")
    estimate = answer(question, name, sites, speeds)
    estimate["answer"] = _answer(estimate)
    if speeds.source != "this machine":
        other = f"these are speeds of an {speeds.machine} ({speeds.source}), not of this machine; --measure gets those"
        screen.print(other, style="yellow", soft_wrap=True)
    _show(screen, estimate)
    output.document(estimate, as_json)
    if not estimate["fits"]:
        raise typer.Exit(1)


def _settle(base: str | None, shape: str | None, spec: str) -> tuple[str, Sites, Method]:
    """The base's name and shape, and the method."""
    from inlay.bank.delta import parse
    from inlay.base.shapes import sites_of, sites_of_base
    from inlay.bench.figures import default_base

    name, method = shape or base or default_base(), parse(spec)
    sites = sites_of(shape) if shape is not None else sites_of_base(locate(name)[0])
    method.count(sites)  # refuses a method that this base cannot have
    return name, sites, method


def _answer(estimate: Mapping[str, Any]) -> str:
    """The estimate in one line."""
    ours, training, device = estimate["serving"], estimate["training"], estimate["device"]
    tasks, runs, disk = estimate["tasks"], training["side_by_side"], estimate["disk"]["bytes"]
    where = f"{device['name']} ({size(device['memory'])})"
    if device["memory"] != estimate["figures"]["memory"]:
        where = f"a device of {size(device['memory'])}"
    if estimate["fits"]:
        fits = f"{tasks:,} tasks fit" if tasks > 1 else "one task fits"
        beside = f"{size(ours['bytes'])} beside a base of {size(estimate['base']['bytes'])} on {where}"
        train = f"{runs} train side by side" if runs > 1 else "one trains at a time"
        return f"{fits}: {beside}; {train}, {_time(training['hours'])} for all; {size(disk)} on disk"
    if ours["resident"] < tasks:
        all_ = size(ours["bytes_for_all"])
        fail = f"{tasks:,} tasks do not fit" if tasks > 1 else "one task does not fit"
        return f"{fail}: all of them take {all_}; {ours['resident']:,} fit at once on {where}"
    return f"nothing can be trained: a run takes {size(training['bytes_per_run'])}, too much for {where}"


def _show(screen: output.Console, estimate: Mapping[str, Any]) -> None:
    screen.print(estimate["answer"])
    for way in estimate["would_fit"]:
        screen.print(f"  instead: {way}")
    ours, full, adapter = estimate["serving"], estimate["finetuning"], estimate["adapter"]
    training, disk = estimate["training"], estimate["disk"]
    name = estimate["method"]
    table = output.table("", name, "full fine-tuning", right=(name, "full fine-tuning"))
    base = estimate["base"]["parameters"]
    table.add_row("parameters of a task", f"{adapter['parameters']:,}", f"{base:,}")
    table.add_row(
        "  of all, with the base", f"{base + estimate['tasks'] * adapter['parameters']:,}", f"{full['parameters']:,}"
    )
    table.add_row("resident at once", f"{ours['resident']:,}", f"{full['resident']:,}")
    table.add_row(
        "memory, all resident", size(ours["bytes_for_all"] + estimate["base"]["bytes"]), size(full["bytes_for_all"])
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
    figures = estimate["figures"]
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
