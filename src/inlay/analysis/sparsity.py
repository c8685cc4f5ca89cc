"""How many weights of L-alpha are left after L0, in every layer (Fu et al. 2022, table B).

A weight is left if its gate, as fixed after training, is not exactly shut. `expected` is the number of gates expected
to be open, E[L0] = sum of P(z > 0), which L0 makes small: it falls long before a gate is exactly shut. Adapters of
older versions do not have it. The bias of L-alpha has no gate and does not count. If all layers share an L-alpha, they
have one bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inlay import drawing
from inlay.analysis.finding import Finding
from inlay.bank.delta import parse
from inlay.engine.host import Host
from inlay.errors import AdapterError, RunError
from inlay.methods.adapterbias import AdapterBias, TokenShift


def sparsity(host: Host, names: Sequence[str]) -> Finding:
    """How many weights of L-alpha are left in every layer, for adapters that were trained with `adapterbias:l0=...`."""
    if not names:
        raise RunError("sparsity needs at least one adapter")
    rows: list[tuple[Any, ...]] = [(name, *row) for name in names for row in _weights_left(host, name)]
    summary: dict[str, Any] = {}
    for name in names:
        left, total = (sum(row[column] for row in rows if row[0] == name) for column in (2, 3))
        summary |= {f"{name}: left": left, f"{name}: of": total, f"{name}: percent left": 100 * left / total}
        expected = [row[4] for row in rows if row[0] == name]
        if None not in expected:
            summary[f"{name}: percent expected"] = 100 * sum(expected) / total
    about = f"what L0 left of the weights of L-alpha: {', '.join(names)}"
    columns = ("adapter", "layer", "left", "of", "expected")
    return Finding("sparsity", about, columns, rows, lambda: _draw(rows), summary)


def _weights_left(host: Host, name: str) -> list[tuple[int | str | None, int, int, float | None]]:
    """(layer, weights left, all weights, E[L0] if it is known)."""
    record = host.forward.bank.slot(host.slot(name))
    method = parse(host.adapter(name).method)
    if not isinstance(method, AdapterBias):
        raise AdapterError(f"{name} is {method.spec}, which has no L-alpha; sparsity is for adapterbias:l0=...")
    if not method.l0:
        raise AdapterError(f"{name} was trained without L0 ({method.spec}), so all of L-alpha is there; use l0=...")
    tensors, row_of = host.read(name), {}
    gates = method.gates_left(tensors) or host.adapter(name).about.get("gates") or {}
    for part in (p for p in record.parts if isinstance(p.delta, TokenShift)):
        stacks = {key: tensors[full].unsqueeze(0) for key, full in part.names().items()}
        w = part.delta.effective(stacks, None)["w"]
        tensor = part.names()["w"]
        layer = "all" if tensor.startswith("shared.") else part.site.layer
        expected = gates.get(tensor.removesuffix("w") + "gate", {}).get("expected")
        row_of[tensor] = (layer, int(w.count_nonzero()), w.numel(), expected)
    return list(row_of.values())


def _draw(rows: Sequence[Sequence[Any]]) -> Any:
    names, layers = list(dict.fromkeys(row[0] for row in rows)), list(dict.fromkeys(str(row[1]) for row in rows))
    bars = len(layers) * len(names)
    figure, panel = drawing.single(width=max(3.6, 1.2 + 0.34 * bars), height=3.0)
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        rows_of_name = [row for row in rows if row[0] == name]
        x = [layers.index(str(row[1])) + (i - (len(names) - 1) / 2) * width for row in rows_of_name]
        share = [100 * row[2] / row[3] for row in rows_of_name]
        total = 100 * sum(row[2] for row in rows_of_name) / sum(row[3] for row in rows_of_name)
        colour = drawing.colour(i)
        drawn = panel.bar(x, share, width * 0.92, color=colour, label=f"{name} ({total:.1f} % of all)")
        panel.bar_label(drawn, fmt="%.0f", fontsize=8 if bars <= 24 else 6, padding=1)
    panel.set_xticks(range(len(layers)), layers)
    panel.set_ylim(0, 108)  # room for numbers over full bars
    panel.set_yticks(range(0, 101, 20))
    drawing.label(panel, "layer", r"weights of $L_\alpha$ left (%)")
    panel.set_axisbelow(True)
    panel.grid(axis="x", visible=False)
    drawing.legend(figure, drawing.handles([panel]), min(2, len(names)))
    return figure
