"""How much each layer of an adapter matters: the metric without it (Houlsby et al. 2019, figure 6).

    change(i, j) = (m without layers i to j - m) / |m|      m the deciding metric; nothing is trained again

Everything that the adapter adds in these layers is removed, except trained norms, which stay, as in the paper, unless
`with_norms` is set. Parts that layers share stay in the other layers. The head stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from inlay import drawing, metrics
from inlay.analysis.finding import Finding
from inlay.analysis.layer_removal import Span, outputs_without, refuse_nothing, spans
from inlay.analysis.rows import deciding, rows_of
from inlay.comparison.baselines import majority
from inlay.engine.evaluate import outputs_of, score
from inlay.engine.host import Host
from inlay.errors import RunError
from inlay.tasks import Example

_ROOMY = 12
"""Up to this many layers, cells have room for a number."""


def ablation(
    host: Host,
    name: str,
    examples: Sequence[Example],
    *,
    metric: str | None = None,
    with_norms: bool = False,
    where: str = "",
) -> Finding:
    """The relative change of the metric when an adapter loses every span of layers.

    Args:
        metric: the adapter's deciding metric by default.
        with_norms: trained norms of these layers are replaced by the base's, too.
        where: a name for the examples, for people.
    """
    rows, metric = rows_of(host, name, examples), deciding(host, name, metric)
    refuse_nothing(host, name, with_norms)
    outputs_of_span = outputs_without(host, name, rows, spans(host.base.sites.layers), with_norms)
    (outputs,) = outputs_of(host, [(name, rows)])
    whole = score(host, name, examples, rows, outputs)[metric]
    values = {span: score(host, name, examples, rows, out)[metric] for span, out in outputs_of_span.items()}
    if not whole or not math.isfinite(whole):
        raise RunError(f"{name} has {metric} {whole:g} here, so no change is relative to it; choose another --metric")
    changes = {span: (value - whole) / abs(whole) for span, value in values.items()}
    everything = Span(0, host.base.sites.layers - 1)
    singles = {span.first: change for span, change in changes.items() if span.first == span.last}
    worst = (max if metric in metrics.LOWER_IS_BETTER else min)(singles, key=singles.__getitem__)
    summary: dict[str, Any] = {"whole adapter": whole, "all layers removed": values[everything]}
    if (guess := majority(host.task(name), examples, host.labels(name))) is not None:
        summary["majority class"] = guess[1][metric]
    summary |= {"most important layer": worst, "change without it": singles[worst]}
    norms = "adapters and norms" if with_norms else "adapters"
    measured = f"{metric} of {name} on {len(examples):,} rows{f' ({where})' if where else ''}"
    return Finding(
        "ablation",
        f"{measured} without the {norms} of layers",
        ("first_layer", "last_layer", metric, "relative_change"),
        [(span.first, span.last, values[span], changes[span]) for span in changes],
        lambda: _draw(changes, summary, name, metric),
        {"metric": metric, **summary},
    )


def _draw(changes: Mapping[Span, float], summary: Mapping[str, Any], name: str, metric: str) -> Any:
    layers = 1 + max(span.last for span in changes)
    side = min(6.0, max(3.4, 0.45 * layers))
    figure, panel = drawing.single(width=side + 0.9, height=side)
    cells = [[100 * changes.get(Span(i, j), math.nan) for j in range(layers)] for i in range(layers)]
    shown = [100 * change for change in changes.values()]
    largest = max(1.0, *map(abs, shown))
    colours = drawing.BALANCE + ("_r" if metric in metrics.LOWER_IS_BETTER else "")
    image = panel.imshow(cells, cmap=colours, vmin=-largest, vmax=largest)
    for span, change in changes.items():
        if layers <= _ROOMY:
            pale = abs(100 * change) < 0.6 * largest
            style = {"ha": "center", "va": "center", "fontsize": 8, "color": "black" if pale else "white"}
            panel.text(span.last, span.first, _percent(change), **style)
    _draw_grid(panel, layers)
    panel.set_xticks(range(layers))
    panel.set_yticks(range(layers))
    drawing.label(panel, "last layer removed", "first layer removed", grid=False)
    panel.set_title(f"{name}: layers removed", fontsize=11)
    bar = figure.colorbar(image, ax=panel, shrink=0.8, label=f"relative change of {metric} (%)")
    bar.ax.set_ylim(min(0.0, *shown), max(0.0, *shown))  # colours that occur, with white at zero
    named = ("whole adapter", "all layers removed", "majority class")
    lines = [f"{key}: {summary[key]:.3f}" for key in named if key in summary]
    panel.text(
        -0.4, layers - 0.6, "\n".join([metric, *lines, "framed: single layers"]), fontsize=8, va="bottom", ha="left"
    )
    return figure


def _draw_grid(panel: Any, layers: int) -> None:
    """White lines between cells, and the diagonal marked: single layers."""
    patches = drawing.plotting("matplotlib.patches")
    for i in range(layers):
        panel.plot([i - 0.5, layers - 0.5], [i - 0.5] * 2, color="white", lw=0.8)
        panel.plot([i - 0.5] * 2, [-0.5, i + 0.5], color="white", lw=0.8)
        style = {"fill": False, "edgecolor": drawing.COLOURS[2], "lw": 1.8}
        panel.add_patch(patches.Rectangle((i - 0.46, i - 0.46), 0.92, 0.92, **style))
    panel.set(xlim=(-0.5, layers - 0.5), ylim=(layers - 0.5, -0.5))


def _percent(change: float) -> str:
    value = 100 * change
    if round(value, 1) == 0:
        return "0"
    return (f"{value:+.1f}" if abs(value) < 9.95 else f"{value:+.0f}").replace("-", "\N{MINUS SIGN}")
