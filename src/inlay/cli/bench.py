"""`inlay bench`: how fast, beside peft and adapters where their environments are given (bench/peers/README.md)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options, output
from inlay.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.bench.peers import Peer
    from inlay.bench.work import Settings

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure speed, beside other libraries; --json FILE keeps it."
)

Method = Annotated[str, typer.Option("--method", metavar="SPEC", help="houlsby:size=64, lora, or any other.")]
Shape = Annotated[
    str, typer.Option("--shape", metavar="S", help="minilm (the default base), or bert-base ... with random weights.")
]
Base = Annotated[str | None, typer.Option("--base", metavar="B", help="A hub name or a folder, in place of a shape.")]
Lengths = Annotated[
    str, typer.Option("--lengths", metavar="L", help="glue (about 31 tokens, 5 to 128) or short (5 to 16).")
]
Data = Annotated[str | None, typer.Option("--data", metavar="F", help="A file whose texts give the lengths.")]
Text = Annotated[str | None, typer.Option("--text", metavar="C", help="The column of its texts.")]
Repeats = Annotated[int, typer.Option("--repeats", metavar="N", help="Blocks of every party that are counted.")]
Steps = Annotated[int, typer.Option("--steps", metavar="N", help="Steps or batches of a block.")]
Warmup = Annotated[int, typer.Option("--warmup", metavar="N", help="Steps or batches before the first block.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the rows.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="D", help="cpu or cuda.  [default: cuda if there is one]")
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="CPU threads of everyone.  [default: torch's]")
]
PeftPython = Annotated[str | None, typer.Option("--peft-python", metavar="P", help="An interpreter that has peft.")]
PeftPath = Annotated[str | None, typer.Option("--peft-path", metavar="D", help="Its PYTHONPATH, if it needs one.")]
AdaptersPython = Annotated[
    str | None, typer.Option("--adapters-python", metavar="P", help="An interpreter that has adapters.")
]
AdaptersPath = Annotated[
    str | None, typer.Option("--adapters-path", metavar="D", help="Its PYTHONPATH, if it needs one.")
]
PeerSettings = Annotated[
    str,
    typer.Option(
        "--peer-settings",
        metavar="S",
        help="best (all are tried, the fastest counts), plain, or some of grouped,compile,fp32,autocast,bf16.",
    ),
]
Workers = Annotated[
    str | None, typer.Option("--workers", metavar="D", help="The folder of the peers' scripts.  [default: bench/peers]")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="F", help="Write everything that was measured here.")]


@app.command()
def train(
    method: Method = "houlsby:size=64",
    runs: Annotated[str, typer.Option(metavar="K", help="Runs side by side, or several: 1,16,64.")] = "1",
    rows: Annotated[int, typer.Option(metavar="N", help="Rows of one run in a step.")] = 32,
    shape: Shape = "minilm",
    base: Base = None,
    lengths: Lengths = "glue",
    data: Data = None,
    text: Text = None,
    repeats: Repeats = 7,
    steps: Steps = 10,
    warmup: Warmup = 5,
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = None,
    weights: options.Weights = None,
    peft_python: PeftPython = None,
    peft_path: PeftPath = None,
    adapters_python: AdaptersPython = None,
    adapters_path: AdaptersPath = None,
    peer_settings: PeerSettings = "best",
    workers: Workers = None,
    json_file: Json = None,
) -> None:
    """One step of K runs: forward, loss, backward, clipping, AdamW. Peers do K steps of one run."""
    given = locals()
    counts = _numbers(runs, "--runs")
    _measure([_settings("train", given, runs=k) for k in counts], _peers(given), json_file)


@app.command()
def serve(
    method: Method = "houlsby:size=64",
    rows: Annotated[str, typer.Option(metavar="N", help="Rows of a batch, or several: 1,64.")] = "32",
    shape: Shape = "minilm",
    base: Base = None,
    lengths: Lengths = "glue",
    data: Data = None,
    text: Text = None,
    repeats: Repeats = 7,
    steps: Steps = 10,
    warmup: Warmup = 5,
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = None,
    weights: options.Weights = None,
    peft_python: PeftPython = None,
    peft_path: PeftPath = None,
    adapters_python: AdaptersPython = None,
    adapters_path: AdaptersPath = None,
    peer_settings: PeerSettings = "best",
    workers: Workers = None,
    json_file: Json = None,
) -> None:
    """Batches of one task, from token ids to logits."""
    given = locals()
    _measure([_settings("serve", given, rows=n) for n in _numbers(rows, "--rows")], _peers(given), json_file)


@app.command()
def mixed(
    method: Method = "lora",
    rows: Annotated[int, typer.Option(metavar="N", help="Rows of a batch.")] = 64,
    tasks: Annotated[str, typer.Option(metavar="N", help="Tasks among its rows, or several: 1,32.")] = "32",
    loaded: Annotated[
        str | None, typer.Option(metavar="N", help="Tasks that are loaded, or several: 1,1000.  [default: as --tasks]")
    ] = None,
    shape: Shape = "minilm",
    base: Base = None,
    lengths: Lengths = "glue",
    data: Data = None,
    text: Text = None,
    repeats: Repeats = 7,
    steps: Steps = 10,
    warmup: Warmup = 5,
    seed: Seed = 0,
    device: Device = None,
    threads: Threads = None,
    weights: options.Weights = None,
    peft_python: PeftPython = None,
    peft_path: PeftPath = None,
    adapters_python: AdaptersPython = None,
    adapters_path: AdaptersPath = None,
    peer_settings: PeerSettings = "best",
    workers: Workers = None,
    json_file: Json = None,
) -> None:
    """Batches of many tasks, from token ids to hidden states."""
    given = locals()
    among = _numbers(tasks, "--tasks")
    pairs = [(n, n) for n in among]
    if loaded is not None:
        pairs = list(itertools.product(among, _numbers(loaded, "--loaded")))
    _measure([_settings("mixed", given, tasks=n, loaded=all_) for n, all_ in pairs], _peers(given), json_file)


def _numbers(text: str, option: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise RunError(f"{option} {text!r} is not valid: expected numbers from 1, with commas between them")
    return found


def _settings(work: str, given: Mapping[str, Any], **own: int) -> Settings:
    from dataclasses import fields

    from inlay.bench.work import Settings

    named = {field.name: given[field.name] for field in fields(Settings) if given.get(field.name) is not None}
    return Settings(**{**named, **own, "work": work}).settled()


def _peers(given: Mapping[str, Any]) -> list[Peer]:
    from inlay.bench.peers import KINDS, Peer

    found = []
    for name in KINDS:
        python, path = given[f"{name}_python"], given[f"{name}_path"]
        if path is not None and python is None:
            raise RunError(f"--{name}-path is of no use without --{name}-python")
        if python is not None:
            found.append(Peer(name, python, path, given["workers"]))
            found[-1].command()  # a script that is not there is noticed now
    return found


def _measure(all_settings: Sequence[Settings], peers: Sequence[Peer], file: Path | None) -> None:
    """Measure one after the other; the file is complete after each."""
    from inlay.bench.work import compare

    screen, people = output.console(), output.console(as_json=True)
    results: list[dict[str, Any]] = []
    for settings in all_settings:
        found = compare(settings, peers, lambda line: people.print(line, style="dim"))
        results.append(found)
        _show(screen, found)
        if file is not None:
            file.write_text(json.dumps(results, indent=1) + "\n")
    if file is not None:
        screen.print(f"wrote {file}")


def _show(screen: Console, found: Mapping[str, Any]) -> None:
    screen.print(f"{_title(found)}\n")
    table = output.table("", "ms", "quartiles", "ratio", "how", right=("ms", "quartiles", "ratio"))
    for name, one in found["parties"].items():
        if "cost_ms" not in one:
            continue
        low, high = one["quartiles_ms"]
        ratio = found["ratios"].get(name)
        cells = (f"{one['cost_ms']:.2f}", f"{low:.2f}-{high:.2f}", "" if ratio is None else f"{ratio:.2f}x")
        table.add_row(name, *cells, _how(one))
    screen.print(table)
    for note in found["notes"]:
        screen.print(note, style="dim")
    screen.print("")


def _title(found: Mapping[str, Any]) -> str:
    s = found["settings"]
    what = {
        "train": f"a step of {_count(s['runs'], 'run')}, {s['rows']} rows each",
        "serve": f"a batch of {s['rows']} rows of one task",
        "mixed": f"a batch of {s['rows']} rows of {_count(s['tasks'], 'task')}, {s['loaded']} loaded",
    }[s["work"]]
    where = f"{s['base'] or s['shape']} on {s['device']} ({found['machine']['device']}, {s['threads']} threads)"
    where += f", {s['weights']}" if s["weights"] else ""
    return f"{s['method']}: {what}, {found['tokens_per_row']:.0f} tokens a row; {where}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _how(one: Mapping[str, Any]) -> str:
    """A peer's settings, and that one run at a time is all it can do."""
    chosen = one.get("settings")
    if chosen is None:
        return ""
    parts = [chosen["precision"]]
    parts += ["rows of like length"] * bool(chosen["grouped"]) + ["compiled"] * bool(chosen["compile"])
    parts += [f"{one['share']} steps of {one['cost_ms'] / one['share']:.2f}"] * (one["share"] > 1)
    return ", ".join(parts)
