"""`inlay export`: adapters for programs that do not know Inlay, as an ONNX graph or as a plain model.

Both commands run what they have written against the host before it gets its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inlay.cli import options, output
from inlay.cli.help import METHOD, OUTPUT, App
from inlay.cli.named_adapters import base_of, host_with, open_library, split_names
from inlay.library.card_text import size
from inlay.screen import counted

if TYPE_CHECKING:
    from inlay.engine.host import Host

app = App("Export adapters for other programs: as ONNX, or as a plain Hugging Face model.")

Tokenizer = Annotated[
    bool,
    OUTPUT.flag("--tokenizer/--no-tokenizer", "Write the base's tokenizer too.  [default: yes]", show_default=False),
]


@app.command()
def onnx(
    tasks: Annotated[str, METHOD.option("NAMES", "The adapters, in task_id order: sms,topic@2.")],
    out: Annotated[Path, OUTPUT.option("FILE", "The graph: FILE.onnx.")],
    opset: Annotated[int, OUTPUT.option("N", "The version of ONNX's operators.", min=18)] = 18,
    external_data: Annotated[
        bool, OUTPUT.flag("--external-data", "Put the weights in a separate file; always done above 2 GB.")
    ] = False,
    tokenizer: Tokenizer = True,
    overwrite: options.Overwrite = False,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Export many tasks as one ONNX graph: the base once, and a task_id for every row.

    Examples:
        inlay export onnx --tasks tickets,tone --out tasks.onnx
        inlay export onnx --tasks tickets@prod --out tickets.onnx --no-tokenizer --overwrite
    """
    if not options.listed(tasks):
        raise typer.BadParameter("--tasks names no adapter; expected one or several, such as sms or sms,topic@2")
    screen, names = output.console(as_json), split_names(tasks)
    host = _host(names, base, library)
    from inlay.interop.onnx import export

    screen.print(f"tracing {host.base.name}; this takes a while", style="dim", soft_wrap=True)
    done = export(host, names, out, opset=opset, tokenizer=tokenizer, external_data=external_data, overwrite=overwrite)
    table = output.table("task_id", "task", "output", "labels", right=("task_id",))
    for task in done.tasks:
        table.add_row(str(task["id"]), task["name"], task["output"], _few(task["labels"]))
    screen.print(table)
    parts = f"base {size(done.base_bytes)}, {counted(len(names), 'task')} {size(done.adapter_bytes)}"
    screen.print(f"\n{out}: {size(done.bytes)} ({parts})", soft_wrap=True)
    if done.files[1:]:
        screen.print(f"also written: {', '.join(done.files[1:])}", style="dim", soft_wrap=True)
    screen.print(f"largest difference from the host in ONNX Runtime: {done.difference:.1e}")
    sizes = {"bytes": done.bytes, "base_bytes": done.base_bytes, "adapter_bytes": done.adapter_bytes}
    document = {"out": str(out), "files": done.files, **sizes, "opset": opset, "difference": done.difference}
    output.document({**document, "tasks": done.tasks}, as_json)


@app.command()
def merged(
    name: options.Adapter,
    out: Annotated[Path, OUTPUT.option("FOLDER", "A new folder.")],
    without_head: options.WithoutHead = False,
    tokenizer: Tokenizer = True,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Export a plain Hugging Face model with the adapter merged into its weights.

    This works for lora, bitfit, norms, finetune and diffprune, where merging is exact.

    Examples:
        inlay export merged tickets --out tickets-model
        inlay export merged tickets@prod --out encoder --without-head
    """
    host = _host([name], base, library)
    from inlay.interop.merge import merge

    done = merge(host, name, out, without_head=without_head, tokenizer=tokenizer)
    screen = output.console(as_json)
    screen.print(f"{out}: {done.model}, {size(done.bytes)}", soft_wrap=True)
    screen.print(f"largest difference from the host in transformers: {done.difference:.1e}")
    document = {"out": str(out), "model": done.model, "bytes": done.bytes, "difference": done.difference}
    output.document({"name": name, **document}, as_json)


def _host(names: list[str], base: str | None, library: str | None) -> Host:
    """The base in fp32 on the CPU, with these adapters under the names that the user gave."""
    store = open_library(library)
    entries = {name: store.find(name) for name in names}
    for entry in entries.values():
        entry.check_one("exported")
    base_of(base, list(entries.values()))
    import torch

    return host_with(base, None, store, entries, device="cpu", dtype=torch.float32)


def _few(labels: list[str]) -> str:
    shown = ", ".join(labels[:6])
    return shown if len(labels) <= 6 else f"{shown} ... ({len(labels)})"
