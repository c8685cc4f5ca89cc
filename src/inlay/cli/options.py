"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Text = Annotated[
    str | None,
    typer.Option("--text", metavar="C", help="The column of the text, words or question; subject,body joins two."),
]
Pair = Annotated[str | None, typer.Option("--pair", metavar="C", help="The column of the second text or context.")]
Label = Annotated[
    str | None,
    typer.Option(
        "--label", metavar="C", help="The column of the label, tags or answers; a,b,c are columns of 0 and 1."
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", metavar="F", help="The format of the files.  [default: found out]")
]
Encoding = Annotated[str | None, typer.Option("--encoding", metavar="E", help="Their encoding.  [default: UTF-8]")]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out bad rows, and count them.")]
Base = Annotated[
    str | None, typer.Option("--base", metavar="B", help="A hub name or a folder.  [default: all-MiniLM-L6-v2]")
]
TrainedBase = Annotated[
    str | None, typer.Option("--base", metavar="B", help="A hub name or a folder.  [default: as trained]")
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="FORM",
        help="How to keep the base's weights: plain; prepack (CPU), faster, not for fine-tuned tasks; int8 (CPU) or "
        "fp8 (CUDA), faster still, with slightly other scores.  [default: plain; serve on a CPU: prepack]",
    ),
]
Library = Annotated[
    str | None,
    typer.Option(
        "--library", metavar="L", help="A folder of adapters.  [default: INLAY_LIBRARY, else among your data]"
    ),
]
Engine = Annotated[str, typer.Option("--engine", metavar="E", help="Where it runs: local, or ray.")]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="A", help="A Ray cluster: host:port.  [default: this machine's, else a new one]"),
]
