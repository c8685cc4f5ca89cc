"""The changes of an adapter in every layer: the norm of its trained parameters minus their initial values.

If the method weighs its shift by token, also the mean weight. A norm tells how far training moved a layer, not how much
the layer matters: for that there is `inlay analyze ablation`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from inlay import drawing
from inlay.bank.delta import parse
from inlay.base.load import load_tokenizer
from inlay.base.sites import Sites
from inlay.engine.alpha import alphas, has_alpha
from inlay.engine.host import Host
from inlay.engine.predict import batch_of, cut
from inlay.library.adapter import Adapter
from inlay.tasks import Row

Norms = Mapping[tuple[str, str], float]
"""(place, part) -> norm; a place is a layer, layers that share, or a name such as `pooler`."""
PARTS = ("attention", "feed-forward", "norms", "all")
ROWS = 200
"""Rows over which weights are averaged."""
_TOKENS = 4096


def changes(host: Host, name: str, adapter: Adapter) -> dict[tuple[str, str], float]:
    """The norm of trained minus initial parameters, by layer and part, without the head."""
    sites, method = host.base.sites, parse(adapter.method)
    before = method.initial(sites, adapter.seed)
    now = host.read(name)
    squares: dict[tuple[str, str], float] = {}
    for tensor, param in method.params(sites).items():
        if param.role != "trained" or tensor not in now:
            continue
        start = before[tensor].to(now[tensor])
        far = float((now[tensor].float() - start.float()).square().sum())
        where = _place(tensor, sites), _part(tensor)
        squares[where] = squares.get(where, 0.0) + far
    return {where: far**0.5 for where, far in squares.items()}


def weights(host: Host, name: str, rows: Sequence[Row]) -> list[float] | None:
    """The mean size of a token's weight in every layer, special tokens left out; None if the method has no weights."""
    if not has_alpha(host, host.slot(name)) or not rows:
        return None
    special = set(load_tokenizer(host.base).all_special_ids)
    total, count = [0.0] * host.base.sites.depth, 0
    rows = rows[:ROWS]
    for numbers in cut([len(row.ids) for row in rows], _TOKENS):
        chunk = [rows[i] for i in numbers]
        for row, alpha in zip(chunk, alphas(host, batch_of(chunk), [name] * len(chunk)), strict=True):
            if alpha is not None:
                kept = [i for i, token in enumerate(row.ids) if token not in special]
                total = [t + float(layer[kept].abs().sum()) for t, layer in zip(total, alpha, strict=True)]
                count += len(kept)
    return [t / count for t in total] if count else None


def draw_norms(norms: Norms) -> Any:
    """Bars for every layer, one for each of its parts."""
    places = sorted({place for place, _ in norms}, key=_order)
    parts = [part for part in PARTS if part in {part for _, part in norms}]
    figure, panel = _sheet(len(places), "norm of what was learned")
    wide = 0.8 / len(parts)
    for i, part in enumerate(parts):
        at = [(x, norms[place, part]) for x, place in enumerate(places) if (place, part) in norms]
        x = [place + (i - (len(parts) - 1) / 2) * wide for place, _ in at]
        panel.bar(x, [norm for _, norm in at], wide * 0.9, color=drawing.COLOURS[i], label=part)
    is_crowded = len(places) > 14 or max(map(len, places)) > 6
    panel.set_xticks(range(len(places)), places, rotation=90 if is_crowded else 0)
    if len(parts) > 1:
        drawing.legend(figure, drawing.handles([panel]), 3)
    return figure


def draw_weights(weights: Sequence[float]) -> Any:
    """A bar for every layer."""
    figure, panel = _sheet(len(weights), "mean |α| of a token")  # noqa: RUF001 - as in the paper
    panel.bar(range(len(weights)), weights, 0.7, color=drawing.COLOURS[4])
    panel.set_xticks(range(len(weights)))
    return figure


def _sheet(layers: int, name: str) -> tuple[Any, Any]:
    figure, panel = drawing.single(width=max(4.0, 0.4 * layers + 1), height=2.6)
    drawing.label(panel, "layer", name)
    panel.grid(visible=False, axis="x")
    panel.set_axisbelow(True)
    return figure, panel


def _place(name: str, sites: Sites) -> str:
    for i, path in enumerate(sites.layer_paths):
        if name.startswith(f"{path}."):
            return str(i)
    layers = re.match(r"layers\.(\d+(?:-\d+)?)\.", name)
    return layers[1] if layers else re.split(r"[._]", name)[0]


def _part(name: str) -> str:
    """The part of a tensor, known by the names of Inlay's sites and of the base's parameters."""
    lowered = name.lower()
    if "norm" in lowered:
        return "norms"
    if "attn" in lowered or "attention" in lowered:
        return "attention"
    is_shared = re.match(r"layers\.[\d-]+\.\w+$", name) or not re.search(r"layer", lowered)
    return "all" if is_shared else "feed-forward"


def _order(place: str) -> tuple[int, int, str]:
    first = re.match(r"\d+", place)
    if first:
        return (1, int(first[0]), place)
    return (0 if place.startswith("embed") else 2, 0, place)
