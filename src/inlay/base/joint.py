"""Projections that read the same input: their products can be one."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from inlay.base.sites import Sites


def joint(model: nn.Module, sites: Sites) -> Iterator[dict[str, nn.Linear]]:
    """Path -> module of a layer's queries, keys and values, for every layer that has three of them."""
    for layer in range(sites.layers):
        found = [sites.at(kind, layer) for kind in ("attn.q", "attn.k", "attn.v")]
        paths = dict.fromkeys(site.path for site in found if site is not None)
        three = {path: model.get_submodule(path) for path in paths}
        plain = {path: module for path, module in three.items() if type(module) is nn.Linear}
        if len(plain) == 3:
            yield plain
