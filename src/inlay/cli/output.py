"""What every command shares: where output goes, and silence for other packages.

With `--json`, stdout holds one JSON document and everything for people goes to stderr; without it, everything for
people goes to stdout.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay import screen
from inlay.base import caches
from inlay.library.card_text import percent as percent
from inlay.screen import GAP as GAP
from inlay.screen import table as table

if TYPE_CHECKING:
    from rich.console import Console as Console
    from rich.table import Table

AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON document to stdout, and everything else to stderr.", rich_help_panel="Output"
    ),
]
_CONTROLS = re.compile("[\x7f-\x9f]")
_ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
}


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
    """Where people read: stdout, or stderr while a JSON document has stdout; nowhere if `quiet`."""
    return screen.console(stderr=as_json, quiet=quiet)


def document(value: object, as_json: bool) -> None:
    """Write the JSON document, if asked for; control characters that JSON leaves alone are escaped."""
    if not as_json:
        return
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False, default=str)
    typer.echo(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def finite(value: Any) -> Any:
    """A value for JSON, where numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def grid(rows: Iterable[tuple[str, str]], width: int = 0, style: str = "") -> Table:
    """Two columns without lines; the first is never folded."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=width, style=style)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def fold(items: Sequence[str], width: int, comma: str = ", ") -> str:
    """Join items, breaking lines between items only."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(comma) + len(item) < width:
            lines[-1] += comma + item
        else:
            lines[-1:] = [*(f"{line}," for line in lines[-1:]), item]
    return "\n".join(lines)
