"""Ctrl-C and SIGTERM wait until a step is whole, so that what is saved then is a state the loop could have reached.

An evaluation may take long, and changes nothing: it is given up at the next batch, and made when the training goes on.
A second signal does not wait, and saves nothing. Outside the main thread, or where the program handles a signal itself,
it is left alone.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """An evaluation was given up."""


class Interrupt:
    """Whether the loop is to stop."""

    def __init__(self) -> None:
        self.pending = False
        self.number: int | None = None
        """The signal that asked for it."""
        self._installed: list[signal.Signals] = []

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number, handler in _DEFAULTS.items():
                if signal.getsignal(number) is handler:
                    signal.signal(number, self._note)
                    self._installed.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._installed:
            signal.signal(number, _DEFAULTS[number])
        self._installed = []

    def give_up(self) -> None:
        """Raise Stopped if the loop is to stop."""
        if self.pending:
            raise Stopped

    @property
    def error(self) -> KeyboardInterrupt:
        """The error that the loop ends with; it has the signal, if there was one."""
        return KeyboardInterrupt(*(() if self.number is None else (self.number,)))

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if self.pending:
            raise self.error
        self.pending = True
