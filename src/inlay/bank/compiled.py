"""Layers as compiled code: a layer is compiled, not the model, and one compilation serves all of them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[..., Any]
_SIZES_VARY = {"force_parameter_static_shapes": False, "force_nn_module_property_static_shapes": False}
"""For the compiler, which takes the sizes of parameters and of what it finds in modules for fixed: stacks grow."""
_OPTIONS = _SIZES_VARY | {"recompile_limit": 64}
"""Another mix of methods is another compilation; beyond this many, mixes run as they are."""
_refused: set[type] = set()
"""Layers that cannot be compiled."""


def compiled_layer(plain: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A layer's call as compiled code, one for all layers: what differs between them are tensors."""
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
    except TorchDynamoException as error:  # before anything was run
        _refused.add(kind)
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"{kind.__name__} cannot be compiled, and runs as it is: {reason}", stacklevel=2)
        return plain(*args, **kwargs)


@functools.cache
def _compile() -> Call:
    return torch.compile(_call, fullgraph=True, dynamic=None)


def _call(plain: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return plain(*args, **kwargs)
