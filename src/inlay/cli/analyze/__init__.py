"""`inlay analyze KIND`: the papers' figures for any adapter; a picture twice (PNG, SVG) and its numbers (CSV)."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="What adapters learn: the papers' figures for any adapter.")
