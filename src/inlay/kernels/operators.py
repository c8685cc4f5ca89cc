"""Operators of our own, opaque to the compiler.

`torch.library.custom_op` would do too, but its first call imports the compiler, used or not: that takes a second, and
much longer where no bytecode is cached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch._ops import OpOverload

_LIBRARY = torch.library.Library("inlay", "FRAGMENT")  # type: ignore[no-untyped-call]
_F = TypeVar("_F", bound=Callable[..., Any])


def operator(name: str, has_gradient: bool) -> Callable[[Callable[..., Any]], OpOverload]:
    """Register a function as `torch.ops.inlay.<name>`; it changes none of its arguments.

    It also needs `fake`, and `gradient` if it has a gradient.
    """

    def register(run: Callable[..., Any]) -> OpOverload:
        schema = torch.library.infer_schema(run, mutates_args=())
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        op: OpOverload = getattr(torch.ops.inlay, name).default
        if not has_gradient:
            gradient(op, refuse)
        return op

    def refuse(*_: Any) -> NoReturn:
        raise NotImplementedError(f"inlay::{name} has no gradient")

    return register


def fake(op: OpOverload) -> Callable[[_F], _F]:
    """Register a function that makes empty results of the right shape and dtype, for the compiler."""

    def register(shaped: _F) -> _F:
        torch.library.register_fake(op, shaped, lib=_LIBRARY)
        return shaped

    return register


def gradient(op: OpOverload, backward: Callable[..., Any], keep: Callable[..., None] | None = None) -> None:
    """Register a gradient: `keep(ctx, inputs, output)` keeps what `backward(ctx, *gradients)` needs."""
    torch.library.register_autograd(op, backward, setup_context=keep, lib=_LIBRARY)
