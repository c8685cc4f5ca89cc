"""One line of JSON for every request, on stderr: the caller, the tasks, the outcome and the time it took.

It holds no texts, unless they were asked for, and no keys, only their names.
"""

from __future__ import annotations

import json
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO


class Log:
    """Writes lines; `texts` says whether texts may be in them."""

    def __init__(self, texts: bool = False, file: TextIO | None = None):
        self.texts = texts
        self.file = file

    def write(self, event: str, **fields: Any) -> None:
        """One line. Requests are answered even if the log cannot be written."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": time, "event": event, **fields}, ensure_ascii=True, default=str)
        file = self.file or sys.stderr
        try:
            file.write(line + "\n")
            file.flush()
        except (OSError, ValueError):
            pass

    def problem(self, about: str) -> None:
        """A line on a task that cannot be served, or a library that cannot be read."""
        self.write("task", problem=about)

    def failed(self, error: BaseException, **fields: Any) -> None:
        """A line on an unexpected error, with its traceback."""
        self.write("bug", error=repr(error)[:500], traceback=traceback.format_exception(error), **fields)
