"""What every command shares: where output goes, how errors end, and silence for everyone else.

With `--json`, stdout holds one JSON document and everything for people goes to stderr; without it, people read
stdout. An InlayError becomes one line and exit code 1; wrong usage is 2.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from inlay.base import caches
from inlay.cli.memory import keep_memory
from inlay.errors import InlayError
from inlay.library.about import percent as percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; the rest goes to stderr.")]
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""A full disk can meet any write, and is nobody's bug."""
GAP = 3
"""Between two columns of a table."""

_ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
}


class Commands(TyperGroup):
    """A group whose commands end with one clear line when they fail."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; only a bug shows a traceback."""
        keep_memory()
        try:
            with quiet():
                return super().invoke(ctx)
        except InlayError as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            where = f" ({error.filename})" if error.filename else ""
            typer.echo(f"error: cannot write: {error.strerror}{where}", err=True)
            raise typer.Exit(1) from None


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, log lines or progress bars of other packages: what matters is raised."""
    # before torch and transformers are imported; what the user has set stays
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # long spins crawl as soon as another process has a core
    compiled = caches.folder("compiled")
    if compiled is not None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def console(as_json: bool = False, quiet: bool = False) -> Console:
    """Where people read: stdout, or stderr while a JSON document has stdout; nobody, if another process talks."""
    from rich.console import Console

    return Console(stderr=as_json, quiet=quiet, highlight=False, markup=False, emoji=False)


def document(value: object) -> None:
    """Write the JSON document; numbers that are not finite have no JSON, and become null."""
    typer.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(*columns: str, right: Sequence[str] = (), keep: Sequence[str] = ()) -> Table:
    """A plain table; columns in `right` hold numbers, those in `keep` are not folded either."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name in (*right, *keep), overflow="fold")
    return made


def fold(items: Sequence[str], width: int, comma: str = ", ") -> str:
    """Join items, breaking lines between items only."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(comma) + len(item) < width:
            lines[-1] += comma + item
        else:
            lines[-1:] = [*(f"{line}," for line in lines[-1:]), item]
    return "\n".join(lines)
