"""Options that several commands have, each with one metavar and one meaning; a parameter is called as its option is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from inlay.cli import option_checks
from inlay.cli.help import DATA, METHOD, OUTPUT, RARE, RUNNING, argument
from inlay.library.names import check_alias, check_name


def either(names: tuple[str, ...]) -> str:
    """`a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def listed(text: str) -> list[str]:
    """The parts of `a, b,c`."""
    return [part for part in map(str.strip, text.split(",")) if part]


Adapter = Annotated[str, argument("NAME", "An adapter: sms (the newest version), sms@3 or sms@prod.")]
Adapters = Annotated[str, argument("NAME[,NAME...]", "One or several adapters of one base: sms, or sms,tone@2.")]
Method = Annotated[str, METHOD.option("SPEC", "The method, such as houlsby:size=64.", check=option_checks.method)]
Text = Annotated[
    str | None, DATA.option("COLUMN", "The column with the text, words or question; subject,body joins two columns.")
]
Pair = Annotated[str | None, DATA.option("COLUMN", "The column with the second text or the context.")]
Label = Annotated[
    str | None,
    DATA.option("COLUMN", "The column with the label, tags or answers; a,b,c names several columns of 0 and 1."),
]
SkipBadRows = Annotated[bool, DATA.flag("--skip-bad-rows", "Skip rows that cannot be used, and count them.")]
Split = Annotated[
    str | None,
    DATA.option(
        "SPLIT",
        f"The split of DATA to use: {either(option_checks.SPLITS)}.  "
        "[default: test, or validation if there is no test]",
        check=option_checks.one_of("split", option_checks.SPLITS),
    ),
]
Rows = Annotated[int | None, DATA.option("N", "Use N rows, drawn at random.  [default: all]", min=1)]
Seed = Annotated[int, DATA.option("N", "The random seed.", min=0)]
Format = Annotated[
    str | None,
    RARE.option(
        "FORMAT",
        f"The format of the data: {either(option_checks.FORMATS)}.  [default: detected]",
        check=option_checks.data_format,
    ),
]
Encoding = Annotated[str | None, RARE.option("ENCODING", "The encoding of the data.  [default: UTF-8]")]

BASE = "The pretrained model: a hub name or a folder."
Base = Annotated[str | None, METHOD.option("BASE", f"{BASE}  [default: all-MiniLM-L6-v2]")]
TrainedBase = Annotated[str | None, METHOD.option("BASE", f"{BASE}  [default: the one it was trained on]")]
Grid = Annotated[
    list[str] | None, METHOD.option("KEY=A,B,C", "Values to try for a setting or a method's option. Repeatable.")
]

Slots = Annotated[int | None, RUNNING.option("N", "Train N runs at a time.  [default: as many as fit]", min=1)]
Compile = Annotated[
    bool | None,
    RUNNING.flag(
        "--compile/--no-compile",
        "Compile the base's layers (CUDA).  [default: if training is long enough to gain from it]",
    ),
]


def _weights(default: str) -> Any:
    return RUNNING.option(
        "FORM",
        "How the base's weights are stored: plain; prepack, faster on CPUs, but not for fine-tuned tasks; int8 (CPU) "
        f"or fp8 (CUDA), faster still, but scores change slightly.  [default: {default}]",
        check=option_checks.weights,
    )


Weights = Annotated[str | None, _weights("plain")]
PredictWeights = Annotated[str | None, _weights("plain; prepack for large files on a CPU")]
ServeWeights = Annotated[str | None, _weights("plain; prepack on a CPU, unless a task is fine-tuned")]
TrainWeights = Annotated[
    str | None,
    RUNNING.option(
        "FORM",
        "How the base's weights are stored: plain, or fp8 (CUDA), faster for many runs, but scores change slightly.  "
        "[default: plain]",
        check=option_checks.weights_to_train,
    ),
]
SaveEvery = Annotated[float, RUNNING.option("S", "Save a checkpoint every S seconds.", min=0)]
Resume = Annotated[bool, RUNNING.flag("--resume", "Continue an interrupted run.")]
Restart = Annotated[bool, RUNNING.flag("--restart", "Discard an unfinished earlier run and start over.")]
StartOver = Annotated[bool, RUNNING.flag("--restart", "Discard earlier results and start over.")]
Engine = Annotated[
    str,
    RUNNING.option(
        "ENGINE",
        f"Where to run: {either(option_checks.ENGINES)}.",
        check=option_checks.one_of("engine", option_checks.ENGINES),
    ),
]
Address = Annotated[
    str | None,
    RUNNING.option("HOST:PORT", "The Ray cluster.  [default: the one this machine belongs to, or a new one]"),
]
Workers = Annotated[int | None, RUNNING.option("N", "Ray workers.  [default: one per GPU or machine]", min=1)]

Library = Annotated[
    str | None,
    OUTPUT.option(
        "LIBRARY",
        "The library of adapters: a folder or a URL.  [default: $INLAY_LIBRARY, or a folder in your home directory]",
    ),
]
Log = Annotated[
    list[str] | None,
    OUTPUT.option(
        "KIND:WHERE",
        "Log to jsonl:FILE, tensorboard:FOLDER, wandb:PROJECT or mlflow:EXPERIMENT. Repeatable.",
        check=option_checks.log,
    ),
]
Half = Annotated[bool, OUTPUT.flag("--half", "Store adapters in fp16, at half the size.")]
Store = Annotated[Path | None, OUTPUT.option("FILE", "The SQLite file for all results.  [default: in the library]")]
Csv = Annotated[Path | None, OUTPUT.option("FILE", "Write every result to a CSV file.")]
Latex = Annotated[Path | None, OUTPUT.option("FILE", "Write the table to a LaTeX file.")]
Plot = Annotated[Path | None, OUTPUT.option("FILE", "Plot the results to a .png, .pdf or .svg file.")]
WithoutHead = Annotated[bool, OUTPUT.flag("--without-head", "Leave out the head.")]
Overwrite = Annotated[bool, OUTPUT.flag("--overwrite", "Overwrite existing output.")]


def name(help: str) -> Any:
    """`--name`, of something that is kept in a library."""
    return OUTPUT.option("NAME", help, check=check_name)


def alias(help: str) -> Any:
    """`--alias`."""
    return METHOD.option("ALIAS", help, check=check_alias)
