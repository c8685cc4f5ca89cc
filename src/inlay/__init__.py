"""Inlay: one frozen transformer, many tasks.

Names are loaded when first used, so `import inlay` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from inlay.version import __version__

if TYPE_CHECKING:
    from inlay.bank.delta import parse as parse_method
    from inlay.client import AsyncClient, Client
    from inlay.comparison.api import compare
    from inlay.comparison.table import Comparison
    from inlay.data.batch import Batch
    from inlay.engine.attach import attach
    from inlay.engine.host import Host
    from inlay.errors import InlayError
    from inlay.library.adapter import Adapter
    from inlay.library.ensemble import Ensemble
    from inlay.library.library import Library
    from inlay.registry import methods, tasks
    from inlay.runs.result import Result
    from inlay.runs.run import Run
    from inlay.sweeps.api import sweep
    from inlay.sweeps.table import Sweep
    from inlay.tasks import parse as parse_task
    from inlay.training.api import train

    method = methods.register
    task = tasks.register

_PLACES = {
    "Adapter": "inlay.library.adapter:Adapter",
    "AsyncClient": "inlay.client:AsyncClient",
    "Batch": "inlay.data.batch:Batch",
    "Client": "inlay.client:Client",
    "Comparison": "inlay.comparison.table:Comparison",
    "Ensemble": "inlay.library.ensemble:Ensemble",
    "Host": "inlay.engine.host:Host",
    "InlayError": "inlay.errors:InlayError",
    "Library": "inlay.library.library:Library",
    "Result": "inlay.runs.result:Result",
    "Run": "inlay.runs.run:Run",
    "Sweep": "inlay.sweeps.table:Sweep",
    "attach": "inlay.engine.attach:attach",
    "compare": "inlay.comparison.api:compare",
    "method": "inlay.registry:methods.register",
    "parse_method": "inlay.bank.delta:parse",
    "parse_task": "inlay.tasks:parse",
    "sweep": "inlay.sweeps.api:sweep",
    "task": "inlay.registry:tasks.register",
    "train": "inlay.training.api:train",
}

__all__ = [
    "Adapter",
    "AsyncClient",
    "Batch",
    "Client",
    "Comparison",
    "Ensemble",
    "Host",
    "InlayError",
    "Library",
    "Result",
    "Run",
    "Sweep",
    "__version__",
    "attach",
    "compare",
    "method",
    "parse_method",
    "parse_task",
    "sweep",
    "task",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'inlay' has no attribute {name!r}")
    module, _, path = _PLACES[name].partition(":")
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
