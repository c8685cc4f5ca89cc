"""The settings of a service, in a form that can be sent to another machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from inlay.engine.host import Host
from inlay.library.library import Library
from inlay.serve.app import Service
from inlay.serve.engine import Engine
from inlay.serve.engine_types import Settings
from inlay.serve.keys import Keys
from inlay.serve.limits import Limits
from inlay.serve.logs import Log
from inlay.serve.watch import Catalogue, Choices, TaskSelection, Watcher


@dataclass(frozen=True)
class ServiceConfig:
    """The settings of the command that starts a service."""

    library: str
    base: str | None = None
    weights: str | None = None
    selection: TaskSelection = field(default_factory=TaskSelection)
    settings: Settings = field(default_factory=Settings)
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    cors: tuple[str, ...] = ()
    watch: float | None = None
    """Seconds between two checks of the library."""
    log_texts: bool = False

    def service(self, host: Host, choices: Choices) -> Service:
        """The service, ready to be started."""
        library = Library(self.library)
        engine = Engine(host, library, self.settings)
        catalogue = Catalogue(engine, library, self.selection, choices)
        log = Log(self.log_texts)
        watcher = Watcher(catalogue, self.watch, log.problem) if self.watch else None
        return Service(engine, catalogue, self.keys, self.limits, log, self.cors, watcher)
