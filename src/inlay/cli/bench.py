"""`inlay bench`: how fast, beside peft and adapters where their environments are given (bench/peers/README.md)."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from inlay.cli import option_checks, options, output, preflight
from inlay.cli.help import DATA, METHOD, OUTPUT, RARE, RUNNING, App
from inlay.cli.option_groups import expand_groups
from inlay.screen import counted

if TYPE_CHECKING:
    from inlay.bench.peers import Peer
    from inlay.bench.work import Settings

app = App("Benchmark training and prediction against other libraries.")

_PEER_SETTINGS = ("grouped", "compile", "fp32", "autocast", "bf16")


def _check_peer_settings(text: str) -> None:
    for setting in text.split(","):
        option_checks.one_of("setting of peers", ("best", "plain", *_PEER_SETTINGS))(setting)


class Common(NamedTuple):
    """The options of all benchmarks; the names are those of `bench.work.Settings`."""

    shape: Annotated[
        str,
        METHOD.option(
            "SHAPE",
            f"minilm (the default base), or random weights of another shape: {options.either(option_checks.SHAPES)}.",
            check=option_checks.one_of("shape", ("minilm", *option_checks.SHAPES)),
        ),
    ] = "minilm"
    base: Annotated[
        str | None, METHOD.option("BASE", "The pretrained model, instead of a shape: a hub name or a folder.")
    ] = None
    lengths: Annotated[
        str,
        DATA.option(
            "KIND",
            "Lengths of rows: glue (5 to 128 tokens, 32 on average) or short (5 to 16).",
            check=option_checks.one_of("kind of lengths", ("glue", "short")),
        ),
    ] = "glue"
    data: Annotated[str | None, DATA.option("FILE", "Take the lengths from the texts of this file.")] = None
    text: options.Text = None
    seed: options.Seed = 0
    repeats: Annotated[int, RUNNING.option("N", "Time N blocks of each library.", min=1)] = 7
    steps: Annotated[int, RUNNING.option("N", "Steps or batches per block.", min=1)] = 10
    warmup_steps: Annotated[int, RUNNING.option("N", "Steps or batches before the first block.", min=1)] = 5
    device: Annotated[str | None, RUNNING.option("DEVICE", "cpu or cuda.  [default: cuda if there is one]")] = None
    threads: Annotated[
        int | None,
        RUNNING.option("N", "CPU threads for every library.  [default: torch's]", min=1),
    ] = None
    weights: options.Weights = None
    peft_python: Annotated[str | None, RARE.option("PYTHON", "A Python interpreter with peft installed.")] = None
    peft_path: Annotated[str | None, RARE.option("FOLDER", "Its PYTHONPATH, if it needs one.")] = None
    adapters_python: Annotated[
        str | None,
        RARE.option("PYTHON", "A Python interpreter with adapters installed."),
    ] = None
    adapters_path: Annotated[str | None, RARE.option("FOLDER", "Its PYTHONPATH, if it needs one.")] = None
    peer_settings: Annotated[
        str,
        RARE.option(
            "SETTINGS",
            f"best (try all, count the fastest), plain, or some of {','.join(_PEER_SETTINGS)}.",
            check=_check_peer_settings,
        ),
    ] = "best"
    peer_scripts: Annotated[
        str | None, RARE.option("FOLDER", "The folder with the peers' scripts.  [default: bench/peers]")
    ] = None
    out: Annotated[
        Path | None, OUTPUT.option("FILE", "Also write the results to this JSON file, after each measurement.")
    ] = None
    as_json: output.AsJson = False


BatchSize = Annotated[str, DATA.option("N", "Rows per batch, or several sizes: 1,64.")]


@app.command()
@expand_groups(common=Common)
def train(
    method: options.Method = "houlsby:size=64",
    runs: Annotated[str, DATA.option("N", "Runs side by side, or several numbers: 1,16,64.")] = "1",
    batch_size: Annotated[str, DATA.option("N", "Rows per step of each run.")] = "32",
    *,
    common: Common,
) -> None:
    """Time a training step of several runs; other libraries take the runs one after another.

    Examples:
        inlay bench train --method houlsby:size=64 --runs 1,16
        inlay bench train --method lora --adapters-python adapters/bin/python --json
    """
    sizes = {"runs": _numbers(runs, "--runs"), "rows": _numbers(batch_size, "--batch-size")}
    _measure("train", method, sizes, common)


@app.command()
@expand_groups(common=Common)
def serve(method: options.Method = "houlsby:size=64", batch_size: BatchSize = "32", *, common: Common) -> None:
    """Time batches of one task, from token ids to logits.

    Examples:
        inlay bench serve --method lora --batch-size 1,64
        inlay bench serve --shape bert-base --weights int8 --json
    """
    _measure("serve", method, {"rows": _numbers(batch_size, "--batch-size")}, common)


@app.command()
@expand_groups(common=Common)
def mixed(
    method: options.Method = "lora",
    batch_size: BatchSize = "64",
    task_count: Annotated[str, DATA.option("N", "Tasks in a batch, or several numbers: 1,32.")] = "32",
    loaded: Annotated[
        str | None, DATA.option("N", "Tasks loaded, or several numbers: 1,1000.  [default: as --task-count]")
    ] = None,
    *,
    common: Common,
) -> None:
    """Time batches of many tasks, from token ids to hidden states.

    Examples:
        inlay bench mixed --method lora --batch-size 64 --task-count 32
        inlay bench mixed --method lora --task-count 1 --loaded 1,1000 --json
    """
    sizes = {"rows": _numbers(batch_size, "--batch-size"), "tasks": _numbers(task_count, "--task-count")}
    sizes |= {} if loaded is None else {"loaded": _numbers(loaded, "--loaded")}
    _measure("mixed", method, sizes, common)


@app.command()
def host(
    batch_size: Annotated[int, DATA.option("N", "Rows in a batch to answer.", min=1)] = 64,
    task_count: Annotated[int, DATA.option("N", "Tasks in that batch.", min=1)] = 50,
    run_count: Annotated[int, DATA.option("N", "Runs in a step, of 32 rows each.", min=1)] = 64,
    as_json: output.AsJson = False,
) -> None:
    """Time what the CPU does besides the model, stage by stage: answering a batch, and planning a training step.

    Examples:
        inlay bench host
        inlay bench host --batch-size 1 --task-count 1 --json
    """
    from inlay.bench.host_cost import predict_costs, step_costs

    screen = output.console(as_json)
    measured = {"predict": predict_costs(batch_size, task_count), "step": step_costs(run_count)}
    batch = f"a batch of {batch_size} rows of {counted(task_count, 'task')}, from texts to answers"
    step = f"a step of {counted(run_count, 'run')}, planned for CUDA"
    for title, unit, costs in ((batch, "µs a row", measured["predict"]), (step, "µs a run", measured["step"])):
        screen.print(f"{title}, without the model's own forward pass\n")
        table = output.table("stage", unit, "Python calls", right=(unit, "Python calls"))
        for cost in costs:
            table.add_row(cost.stage, f"{cost.microseconds:.1f}", f"{cost.calls:,}")
        screen.print(table)
        screen.print("")
    output.document({name: [dataclasses.asdict(cost) for cost in costs] for name, costs in measured.items()}, as_json)


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(
            f"{text!r} is not valid: expected numbers from 1, separated by commas", param_hint=f"'{option}'"
        )
    return numbers


def _measure(work: str, method: str, sizes: Mapping[str, Sequence[int]], common: Common) -> None:
    """Measure every combination of sizes; the file is complete after each."""
    for name in ("peft", "adapters"):
        if getattr(common, f"{name}_path") is not None and getattr(common, f"{name}_python") is None:
            raise typer.BadParameter(f"--{name}-path needs --{name}-python")
    if common.data is not None:
        from inlay.data.source import check_file

        check_file(common.data)
    preflight.check_base(common.base)
    preflight.check_writable(common.out)
    peers = _peers(common)
    preflight.check_specs(method)
    from inlay.bench.work import compare

    screen, progress = output.console(common.as_json), output.console(as_json=True)
    results: list[dict[str, Any]] = []
    for combination in itertools.product(*sizes.values()):
        settings = _settings(work, method, dict(zip(sizes, combination, strict=True)), common)
        result = compare(settings, peers, lambda line: progress.print(line, style="dim"))
        results.append(result)
        _show(screen, result)
        if common.out is not None:
            common.out.write_text(json.dumps(results, indent=1) + "\n")
    if common.out is not None:
        screen.print(f"written: {common.out}", style="dim", soft_wrap=True)
    output.document(results, common.as_json)


def _settings(work: str, method: str, sizes: dict[str, int], common: Common) -> Settings:
    from inlay.bench.work import Settings

    values = {**common._asdict(), "warmup": common.warmup_steps}
    names = [field.name for field in dataclasses.fields(Settings) if values.get(field.name) is not None]
    sizes = {"loaded": sizes["tasks"], **sizes} if "tasks" in sizes else sizes
    return Settings(**{**{name: values[name] for name in names}, **sizes, "work": work, "method": method}).settled()


def _peers(common: Common) -> list[Peer]:
    from inlay.bench.peers import KINDS, Peer

    peers = []
    for name in KINDS:
        python, path = getattr(common, f"{name}_python"), getattr(common, f"{name}_path")
        if python is not None:
            peers.append(Peer(name, python, path, common.peer_scripts))
            peers[-1].command()  # a missing script is noticed now
    return peers


def _show(screen: output.Console, result: Mapping[str, Any]) -> None:
    screen.print(f"{_title(result)}\n")
    table = output.table("", "ms", "quartiles", "ratio", "how", right=("ms", "quartiles", "ratio"))
    for name, party in result["parties"].items():
        if "cost_ms" not in party:
            continue
        low, high = party["quartiles_ms"]
        ratio = result["ratios"].get(name)
        cells = (f"{party['cost_ms']:.2f}", f"{low:.2f}-{high:.2f}", "" if ratio is None else f"{ratio:.2f}x")
        table.add_row(name, *cells, _how(party))
    screen.print(table)
    for note in result["notes"]:
        screen.print(note, style="dim")
    screen.print("")


def _title(result: Mapping[str, Any]) -> str:
    s = result["settings"]
    work = {
        "train": f"a step of {counted(s['runs'], 'run')}, {s['rows']} rows each",
        "serve": f"a batch of {s['rows']} rows of one task",
        "mixed": f"a batch of {s['rows']} rows of {counted(s['tasks'], 'task')}, {s['loaded']} loaded",
    }[s["work"]]
    where = f"{s['base'] or s['shape']} on {s['device']} ({result['machine']['device']}, {s['threads']} threads)"
    where += f", {s['weights']}" if s["weights"] else ""
    return f"{s['method']}: {work}, {result['tokens_per_row']:.0f} tokens a row; {where}"


def _how(party: Mapping[str, Any]) -> str:
    """A peer's settings, and how many of its steps make one of ours."""
    chosen = party.get("settings")
    if chosen is None:
        return ""
    parts = [chosen["precision"]]
    parts += ["rows of like length"] * bool(chosen["grouped"]) + ["compiled"] * bool(chosen["compile"])
    parts += [f"{party['share']} steps of {party['cost_ms'] / party['share']:.2f}"] * (party["share"] > 1)
    return ", ".join(parts)
