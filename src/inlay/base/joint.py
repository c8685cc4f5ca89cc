"""Projections that read the same input, so that one product can compute them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from inlay.base.sites import Sites


def joint(model: nn.Module, sites: Sites) -> Iterator[dict[str, nn.Linear]]:
    """Path -> module of a layer's queries, keys and values, for every layer where these are three plain modules."""
    for layer in range(sites.layers):
        sites_of_layer = [sites.at(kind, layer) for kind in ("attn.q", "attn.k", "attn.v")]
        paths = dict.fromkeys(site.path for site in sites_of_layer if site is not None)
        modules = {path: model.get_submodule(path) for path in paths}
        plain = {path: module for path, module in modules.items() if type(module) is nn.Linear}
        if len(plain) == 3:
            yield plain


def joint_bias(biases: Sequence[Tensor | None], weights: Sequence[Tensor]) -> Tensor | None:
    """The biases one after the other, zeros where one is missing; None if all are.

    Args:
        weights: [out, in] of each.
    """
    if all(bias is None for bias in biases):
        return None
    pairs = zip(biases, weights, strict=True)
    return torch.cat([weight.new_zeros(len(weight)) if bias is None else bias for bias, weight in pairs])
