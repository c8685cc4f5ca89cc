"""Options that several commands have, each with one name, one metavar and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.cli import option_checks
from inlay.cli.help import DATA, METHOD, OUTPUT, RARE, RUNNING, checked
from inlay.library.names import check_alias, check_name


def option(panel: str, name: str, metavar: str | None, help: str, **more: Any) -> Any:
    """An option in a panel; `check` is what a value must pass."""
    check = more.pop("check", None)
    callback = None if check is None else checked(check)
    return typer.Option(name, metavar=metavar, help=help, rich_help_panel=panel, callback=callback, **more)


def either(names: tuple[str, ...]) -> str:
    """`a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


Adapter = Annotated[
    str, typer.Argument(metavar="NAME", help="An adapter: sms (the newest version), sms@3 or sms@prod.")
]
Adapters = Annotated[
    str, typer.Argument(metavar="NAME[,NAME...]", help="One or several adapters of one base: sms, or sms,tone@2.")
]
Method = Annotated[
    str, option(METHOD, "--method", "SPEC", "The method, such as houlsby:size=64.", check=option_checks.method)
]
Text = Annotated[
    str | None,
    option(DATA, "--text", "COLUMN", "The column with the text, words or question; subject,body joins two columns."),
]
Pair = Annotated[str | None, option(DATA, "--pair", "COLUMN", "The column with the second text or the context.")]
Label = Annotated[
    str | None,
    option(
        DATA, "--label", "COLUMN", "The column with the label, tags or answers; a,b,c names several columns of 0 and 1."
    ),
]
SkipBadRows = Annotated[bool, option(DATA, "--skip-bad-rows", None, "Skip rows that cannot be used, and count them.")]
Split = Annotated[
    str | None,
    option(
        *(DATA, "--split", "SPLIT"),
        f"The split of DATA to use: {either(option_checks.SPLITS)}.  "
        "[default: test, or validation if there is no test]",
        check=option_checks.one_of("split", option_checks.SPLITS),
    ),
]
Rows = Annotated[int | None, option(DATA, "--rows", "N", "Use N rows, drawn at random.  [default: all]", min=1)]
Seed = Annotated[int, option(DATA, "--seed", "N", "The random seed.", min=0)]
Format = Annotated[
    str | None,
    option(
        *(RARE, "--format", "FORMAT"),
        f"The format of the data: {either(option_checks.FORMATS)}.  [default: detected]",
        check=option_checks.data_format,
    ),
]
Encoding = Annotated[str | None, option(RARE, "--encoding", "ENCODING", "The encoding of the data.  [default: UTF-8]")]

BASE = "The pretrained model: a hub name or a folder."
Base = Annotated[str | None, option(METHOD, "--base", "BASE", f"{BASE}  [default: all-MiniLM-L6-v2]")]
TrainedBase = Annotated[str | None, option(METHOD, "--base", "BASE", f"{BASE}  [default: the one it was trained on]")]
Grid = Annotated[
    list[str] | None,
    option(
        *(METHOD, "--grid", "KEY=A,B,C"),
        "Values to try for a setting or a method's option. Repeatable.",
    ),
]

Slots = Annotated[
    int | None, option(RUNNING, "--slots", "N", "Train N runs at a time.  [default: as many as fit]", min=1)
]
Compile = Annotated[
    bool | None,
    option(
        *(RUNNING, "--compile/--no-compile", None),
        "Compile the base's layers (CUDA).  [default: if training is long enough to gain from it]",
    ),
]
Weights = Annotated[
    str | None,
    option(
        *(RUNNING, "--weights", "FORM"),
        "How the base's weights are stored: plain; prepack, faster on CPUs, but not for fine-tuned tasks; int8 (CPU) "
        "or fp8 (CUDA), faster still, but scores change slightly.  "
        "[default: plain; prepack to serve, or for a large file, on a CPU]",
        check=option_checks.one_of("form of weights", option_checks.WEIGHTS),
    ),
]
SaveEvery = Annotated[float, option(RUNNING, "--save-every", "S", "Save a checkpoint every S seconds.", min=0)]
Resume = Annotated[bool, option(RUNNING, "--resume", None, "Continue an interrupted run.")]
Restart = Annotated[bool, option(RUNNING, "--restart", None, "Discard an unfinished earlier run and start over.")]
StartOver = Annotated[bool, option(RUNNING, "--restart", None, "Discard earlier results and start over.")]
Engine = Annotated[
    str,
    option(
        RUNNING,
        "--engine",
        "ENGINE",
        f"Where to run: {either(option_checks.ENGINES)}.",
        check=option_checks.one_of("engine", option_checks.ENGINES),
    ),
]
Address = Annotated[
    str | None,
    option(
        *(RUNNING, "--address", "HOST:PORT"),
        "The Ray cluster.  [default: the one this machine belongs to, or a new one]",
    ),
]
Workers = Annotated[
    int | None, option(RUNNING, "--workers", "N", "Ray workers.  [default: one per GPU or machine]", min=1)
]

Library = Annotated[
    str | None,
    option(
        *(OUTPUT, "--library", "LIBRARY"),
        "The library of adapters: a folder or a URL.  [default: $INLAY_LIBRARY, or a folder in your home directory]",
    ),
]
Log = Annotated[
    list[str] | None,
    option(
        *(OUTPUT, "--log", "KIND:WHERE"),
        "Log to jsonl:FILE, tensorboard:FOLDER, wandb:PROJECT or mlflow:EXPERIMENT. Repeatable.",
        check=option_checks.log,
    ),
]
Half = Annotated[bool, option(OUTPUT, "--half", None, "Store adapters in fp16, at half the size.")]
Store = Annotated[
    Path | None, option(OUTPUT, "--store", "FILE", "The SQLite file for all results.  [default: in the library]")
]
Csv = Annotated[Path | None, option(OUTPUT, "--csv", "FILE", "Write every result to a CSV file.")]
Latex = Annotated[Path | None, option(OUTPUT, "--latex", "FILE", "Write the table to a LaTeX file.")]
Plot = Annotated[Path | None, option(OUTPUT, "--plot", "FILE", "Plot the results to a .png, .pdf or .svg file.")]
WithoutHead = Annotated[bool, option(OUTPUT, "--without-head", None, "Leave out the head.")]
Overwrite = Annotated[bool, option(OUTPUT, "--overwrite", None, "Overwrite existing output.")]


def name(help: str) -> Any:
    """`--name`, of something that is kept in a library."""
    return option(OUTPUT, "--name", "NAME", help, check=check_name)


def alias(help: str) -> Any:
    """`--alias`."""
    return option(METHOD, "--alias", "ALIAS", help, check=check_alias)
