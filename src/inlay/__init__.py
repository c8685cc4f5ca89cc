"""Inlay: one frozen transformer, many tasks.

Names are loaded when first used, so `import inlay` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inlay.bank.delta import parse as parse_method
    from inlay.data.batch import Batch
    from inlay.engine.attach import attach
    from inlay.engine.host import Host
    from inlay.errors import InlayError
    from inlay.library.adapter import Adapter
    from inlay.registry import methods

    method = methods.register

__version__ = "0.1.0"

_PLACES = {
    "Adapter": "inlay.library.adapter:Adapter",
    "Batch": "inlay.data.batch:Batch",
    "Host": "inlay.engine.host:Host",
    "InlayError": "inlay.errors:InlayError",
    "attach": "inlay.engine.attach:attach",
    "method": "inlay.registry:methods.register",
    "parse_method": "inlay.bank.delta:parse",
}

__all__ = ["Adapter", "Batch", "Host", "InlayError", "__version__", "attach", "method", "parse_method"]


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
