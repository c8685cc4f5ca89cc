"""Other ways to compute the projections of a base's layers: `int8.py`, `prepack.py` and `fp8.py`.

`forward` is overridden on the modules, below the overrides of the wiring. A product keeps its weight in a form of its
own, which adapters that change the base's weights cannot use, and most products have no gradients.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from inlay.base.joint import joint, joint_bias
from inlay.base.sites import stores_in_out
from inlay.errors import BaseError, first_line

if TYPE_CHECKING:
    from inlay.base.load import Base


class LinearBackend(ABC):
    """`x W' + b` with a weight in a form of its own."""

    kind: ClassVar[str]
    """The name of this form of weights."""
    trains: ClassVar[bool] = False
    """Whether it has a gradient."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        """
        Args:
            weight: [out, in].
        """
        self.out = len(weight)
        self._bias = None if bias is None else bias.detach().clone()

    def __call__(self, x: Tensor) -> Tensor:
        """x: fp32 [..., in] -> fp32 [..., out]."""
        if x.requires_grad and torch.is_grad_enabled():
            return _Forward.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]
        return self.compute(x)

    def parts(self, x: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        """The result cut into parts of these widths."""
        return torch.split(self(x), sizes, -1)

    @classmethod
    def refuse(cls, base: Base) -> None:
        """Raise if a base cannot run in this form: by default, if it is not on the CPU in fp32."""
        if base.device.type != "cpu" or base.dtype != torch.float32:
            here = f"{base.device.type} in {str(base.dtype).removeprefix('torch.')}"
            raise BaseError(
                f"{cls.kind} is for the CPU in float32, and {base.name} is on {here}; load it without {cls.kind}"
            )
        try:
            ones = torch.ones(2, 2, dtype=torch.float32)
            cls(ones, None)(ones[:1])
        except (AttributeError, NotImplementedError, RuntimeError) as error:
            reason = first_line(error)
            raise BaseError(
                f"this build of torch cannot do {cls.kind} on the CPU ({reason}); load without it"
            ) from None

    @classmethod
    def fits(cls, weight: Tensor) -> bool:
        """Whether it can compute with a weight of this shape [out, in]; other projections stay plain."""
        return True

    @abstractmethod
    def compute(self, x: Tensor) -> Tensor:
        """The product, without a gradient."""


class _Forward(torch.autograd.Function):
    """Lets a pass record gradients; only computing them is an error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, product: LinearBackend) -> Tensor:
        ctx.kind = product.kind
        return product.compute(x.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise BaseError(f"{ctx.kind} is for serving: it has no gradients; train on a host without {ctx.kind}")


def replace_products(base: Base, make: type[LinearBackend], release: bool) -> None:
    """Compute the projections of a base's layers with such products, until `base.restore()`.

    Args:
        release: free the plain weights; the base can then not be restored.
    """
    if base.products:
        raise BaseError(f"{base.name} runs in {base.form} already")
    make.refuse(base)
    projections = {path: module for path, module in _projections(base) if make.fits(_weight(module))}
    if not projections:
        raise BaseError(f"{base.name} has no projections that {make.kind} could compute")
    undo_overrides = []
    for group in _groups(base, projections):
        product = _product(list(group.values()), make)
        first = 0
        for path, module in group.items():
            last = first + len(_weight(module))
            undo_overrides.append(_override(module, functools.partial(_part, product, first, last)))
            base.products[path] = product
            first = last
            if release:
                module.weight = nn.Parameter(_plain(module).to("meta"), requires_grad=False)
    if release:
        return
    restore = base.restore

    def undo_all() -> None:
        for undo_override in undo_overrides:
            undo_override()
        base.products, base.restore = {}, restore
        restore()

    base.restore = undo_all


def _projections(base: Base) -> Iterator[tuple[str, nn.Module]]:
    for layer in base.sites.layer_paths:
        for path, module in base.model.get_submodule(layer).named_modules():
            if type(module) is nn.Linear or stores_in_out(module):
                yield f"{layer}.{path}", module


def _groups(base: Base, projections: Mapping[str, nn.Module]) -> Iterator[Mapping[str, nn.Module]]:
    """Each projection alone, but queries, keys and values together where the wiring computes them as one."""
    joint_groups = list(joint(base.model, base.sites)) if base.sites.arch.packable else []
    joint_groups = [group for group in joint_groups if group.keys() <= projections.keys()]
    yield from joint_groups
    for path, module in projections.items():
        if not any(path in group for group in joint_groups):
            yield {path: module}


def _product(modules: list[nn.Module], make: type[LinearBackend]) -> LinearBackend:
    weights = [_weight(module) for module in modules]
    biases = [getattr(module, "bias", None) for module in modules]
    return make(torch.cat(weights), joint_bias([None if b is None else b.data for b in biases], weights))


def _weight(module: nn.Module) -> Tensor:
    """A module's weight as [out, in]."""
    weight = _plain(module)
    return weight.T.contiguous() if stores_in_out(module) else weight


def _plain(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.data


def _part(product: LinearBackend, first: int, last: int, x: Tensor) -> Tensor:
    y = product(x)
    return y if last - first == product.out else y[..., first:last]


def _override(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    before = module.__dict__.get("forward")
    module.forward = forward

    def undo() -> None:
        del module.forward
        if before is not None:
            module.forward = before

    return undo
