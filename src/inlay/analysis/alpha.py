"""How much each layer shifts: the mean of |alpha| over all tokens (Fu et al. 2022, figure 5).

alpha and v share a scale (twice the one with half the other is the same adapter), so layers are compared by |alpha|,
as in the paper, and also by the length of the shift, |alpha| times the length of v. Special tokens count: they are
shifted like all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from inlay import drawing
from inlay.analysis import texts
from inlay.analysis.finding import Finding
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.methods.adapterbias import TokenShift
from inlay.tasks import Example

_PANELS = ((r"mean $|\alpha|$", 2), (r"mean length of $\alpha v$", 3))
"""The panels: their titles, and the columns they show."""


def alpha(host: Host, examples: Mapping[str, Sequence[Example]]) -> Finding:
    """The mean of |alpha| in every layer of any number of adapters, which share batches.

    Args:
        examples: adapter -> the texts it is shown.
    """
    if not examples:
        raise RunError("alpha needs at least one adapter")
    texts.refuse_without_alpha(host, examples)
    requests = [(name, text) for name, of_name in examples.items() for text in texts.read(host, name, of_name)]
    weights = texts.weights(host, requests)
    rows: list[tuple[str, int, float, float]] = []
    counts: list[str] = []
    for name in examples:
        of_texts = [alpha for (adapter, _), alpha in zip(requests, weights, strict=True) if adapter == name]
        of_tokens = torch.cat(of_texts, 1)
        counts.append(f"{of_tokens.shape[1]:,} tokens of {len(of_texts):,} texts")
        mean = of_tokens.double().abs().mean(1).tolist()
        rows += [(name, i, m, m * v) for i, (m, v) in enumerate(zip(mean, _lengths_of_v(host, name), strict=True))]
    shown = f"{counts[0]} each" if len(counts) > 1 and len(set(counts)) == 1 else ", ".join(counts)
    about = f"mean |alpha| per layer of {', '.join(examples)}: {shown}"
    columns = ("adapter", "layer", "alpha", "shift")
    return Finding("alpha", about, columns, rows, lambda: _draw(rows), _summarise(rows))


def _lengths_of_v(host: Host, name: str) -> list[float]:
    """The length of v in every layer; 0 in a layer that the adapter does not change."""
    sites, tensors = host.base.sites, host.read(name)
    parts = host.forward.bank.slot(host.slot(name)).parts
    of_layer = {p.site.layer: tensors[p.names()["v"]].norm().item() for p in parts if isinstance(p.delta, TokenShift)}
    return [of_layer.get(call * sites.layers // sites.depth, 0.0) for call in range(sites.depth)]


def _summarise(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for name in dict.fromkeys(row[0] for row in rows):
        rows_of_name = [row for row in rows if row[0] == name]
        summary[f"{name}: mean |alpha| over layers"] = sum(row[2] for row in rows_of_name) / len(rows_of_name)
        summary[f"{name}: layer with the largest |alpha|"] = max(rows_of_name, key=lambda row: row[2])[1]
        summary[f"{name}: layer with the largest shift"] = max(rows_of_name, key=lambda row: row[3])[1]
    return summary


def _draw(rows: Sequence[Sequence[Any]]) -> Any:
    names, layers = list(dict.fromkeys(row[0] for row in rows)), 1 + max(row[1] for row in rows)
    figure, panels = drawing.sheet(1, 2, width=2.9, height=1.4 + 0.2 * layers, sharey=True)
    for panel, (title, column) in zip(panels[0], _PANELS, strict=True):
        for i, name in enumerate(names):
            rows_of_name = [row for row in rows if row[0] == name]
            style = {"color": drawing.colour(i), "label": name, "markersize": 5, "lw": 1.5}
            marker = drawing.marker(i)
            panel.plot([row[column] for row in rows_of_name], [row[1] for row in rows_of_name], f"-{marker}", **style)
        panel.set_xlim(left=0)
        panel.locator_params(axis="x", nbins=4)
        drawing.label(panel, title)
    first = panels[0, 0]
    first.set_ylabel("layer")
    step = -(-layers // 12)
    first.set_yticks(range(0, layers, step))
    first.set_ylim(layers - 0.5, -0.5)  # the first layer on top, as in the paper
    drawing.legend(figure, drawing.handles([first]), min(2, len(names)))
    return figure
