"""Layers as compiled code: a layer is compiled, not the model, and one compilation serves all of them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from inlay.errors import first_line

Call = Callable[..., Any]
_SIZES_VARY = {"force_parameter_static_shapes": False, "force_nn_module_property_static_shapes": False}
"""The compiler would take the sizes of parameters, and of tensors in modules, as fixed; but stacks grow."""
_OPTIONS = _SIZES_VARY | {"recompile_limit": 64}
"""Every mix of methods is compiled anew; mixes beyond this many run uncompiled."""
_refused: set[type] = set()
"""Layers that cannot be compiled."""


def compiled_layer(plain: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a layer as compiled code. One compilation serves all layers, which differ only in their tensors."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    kind = type(getattr(plain, "__self__", plain))
    if kind in _refused:
        return plain(*args, **kwargs)
    states = args[0] if args else kwargs["hidden_states"]
    torch._dynamo.mark_dynamic(states, 1)
    try:
        with torch._dynamo.config.patch(_OPTIONS):
            return _compile()(plain, args, kwargs)
    except FailOnRecompileLimitHit:
        return plain(*args, **kwargs)
    except TorchDynamoException as error:  # raised before anything has run
        _refused.add(kind)
        reason = first_line(error)
        warnings.warn(f"{kind.__name__} cannot be compiled, and runs as it is: {reason}", stacklevel=2)
        return plain(*args, **kwargs)


@functools.cache
def _compile() -> Call:
    return torch.compile(_call, fullgraph=True, dynamic=None)


def _call(plain: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return plain(*args, **kwargs)
