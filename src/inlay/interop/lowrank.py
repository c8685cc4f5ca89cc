"""LoRA between libraries. Others have a rank and a scale for every matrix, Inlay one of each for the adapter.

A smaller rank is filled up with zeros, another scale is multiplied into `up`, and a site that others leave out in some
layers is zero there: all exact. A fused projection (GPT-2's queries, keys and values) is one matrix to others and
three sites here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from inlay.base.sites import Site, Sites
from inlay.errors import AdapterError
from inlay.interop.exchange import layers_text
from inlay.interop.files import CONFIG, Keys
from inlay.interop.settings import number
from inlay.methods.lora import Lora


@dataclass(frozen=True)
class Change:
    """What is added to a projection: scale * up down x."""

    down: Tensor
    """[rank, d_in], as others have it."""
    up: Tensor
    """[d_out, rank]"""
    scale: float


def leaves(sites: Sites) -> dict[str, list[Site]]:
    """Path of a projection -> its sites; several if it is fused."""
    sites_of_path: dict[str, list[Site]] = {}
    for site in sites:
        if site.norm is None:
            sites_of_path.setdefault(site.path, []).append(site)
    return sites_of_path


def width(sites: list[Site]) -> int:
    """How many outputs a projection has."""
    return sites[0].d_out if sites[0].columns is None else max(s.columns[1] for s in sites if s.columns)


def to_inlay(changes: Mapping[str, Change], sites: Sites) -> tuple[str, dict[str, Tensor]]:
    """Changes by path -> a spec and its tensors."""
    parts: dict[str, tuple[Site, Change]] = {}
    for path, change in changes.items():
        for site in leaves(sites)[path]:
            rows = change.up if site.columns is None else change.up[slice(*site.columns)]
            parts[site.name] = (site, Change(change.down, rows, change.scale))
    rank = max(change.down.shape[0] for change in changes.values())
    common = next((change.scale for change in changes.values() if change.scale > 0), 1.0)
    alpha = float(f"{common * rank:.12g}")
    layers = sorted({site.layer for site, _ in parts.values() if site.layer is not None})
    order = dict.fromkeys(site.kind for site in sites)
    kinds = [kind for kind in order if any(site.kind == kind for site, _ in parts.values())]
    method = Lora(rank=rank, alpha=alpha, sites="+".join(kinds), layers=layers_text(layers, sites.layers))
    tensors: dict[str, Tensor] = {}
    for part in method.parts(sites):
        site = part.site
        down, up = (torch.zeros(size, dtype=torch.float32) for size in ((site.d_in, rank), (rank, site.d_out)))
        if site.name in parts:
            change = parts[site.name][1]
            ratio = change.scale / (alpha / rank)
            own_rank = change.down.shape[0]
            down[:, :own_rank] = change.down.T
            up[:own_rank] = change.up.T if abs(ratio - 1) < 1e-9 else change.up.T * ratio
        tensors |= {f"{site.name}.down": down, f"{site.name}.up": up}
    return method.spec, tensors


def from_inlay(method: Lora, tensors: Mapping[str, Tensor], sites: Sites) -> dict[str, Change]:
    """An adapter's changes by path; those of a path are joined, with a block of ranks for every different `down`."""
    chosen = {part.site.name: part.site for part in method.parts(sites)}
    change_of_path: dict[str, Change] = {}
    scale = method.alpha / method.rank
    for path, all_sites in leaves(sites).items():
        adapted = [site for site in all_sites if site.name in chosen]
        if not adapted:
            continue
        downs: list[Tensor] = []
        blocks: list[Tensor] = []
        for site in adapted:
            down, up = tensors[f"{site.name}.down"].T, tensors[f"{site.name}.up"].T
            first, last = site.columns or (0, site.d_out)
            same = next((i for i, other in enumerate(downs) if torch.equal(other, down)), None)
            if same is None:
                same = len(downs)
                downs.append(down)
                blocks.append(up.new_zeros(width(all_sites), down.shape[0]))
            blocks[same][first:last] = up
        change_of_path[path] = Change(torch.cat(downs), torch.cat(blocks, 1), scale)
    return change_of_path


def take(keys: Keys, names: Sequence[str], sites: list[Site], place: str, scale: float, expected: float) -> Change:
    """The change in a file's matrices of these names, if they fit their projection, each other and the settings.

    Args:
        place: the path of the projection, for messages.
        expected: the rank in the settings.
    """
    down, up = (keys.take(name) for name in names)
    rank = down.shape[0] if down.dim() == 2 else 0
    if not rank or (tuple(down.shape), tuple(up.shape)) != ((rank, sites[0].d_in), (width(sites), rank)):
        wanted_shapes = f"[rank, {sites[0].d_in}] and [{width(sites)}, rank]"
        shapes = f"{tuple(down.shape)} and {tuple(up.shape)}"
        raise AdapterError(f"{keys.path}: {place}: the matrices are {shapes}, but {wanted_shapes} on this base")
    if rank != expected:
        raise AdapterError(f"{keys.path}: {place} has rank {rank}, but {CONFIG} says {expected:g}")
    return Change(down, up, scale)


def rank_of(value: object, path: Path) -> float:
    """A rank from settings."""
    rank = number(value, "r", path)
    if rank < 1:
        raise AdapterError(f"{path}: r={rank:g} is not valid: expected 1 or more")
    return rank
