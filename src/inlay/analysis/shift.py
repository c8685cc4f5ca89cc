"""How the last layer moves tokens: from its first norm's output to its second's (Fu et al. 2022, figure A).

Between the two are the frozen feed-forward and what the adapter adds to it, so a line is not only the adapter's shift;
compare it with the bare base. Every panel has its own principal components, computed from its tokens before and after.
Special tokens are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, zip_longest
from random import Random
from typing import Any

import torch
from torch import Tensor

from inlay import drawing
from inlay.analysis import texts
from inlay.analysis.finding import Finding
from inlay.analysis.norm_outputs import norm_outputs
from inlay.analysis.pca import pca
from inlay.analysis.rows import in_batches
from inlay.base.load import load_tokenizer
from inlay.engine.alpha import has_alpha
from inlay.engine.host import Host
from inlay.errors import ArchError, DataError, RunError
from inlay.tasks import Example

BARE = "the bare base"
_FEWEST = 3
"""The fewest tokens: two are always on a line."""


def shift(
    host: Host, names: Sequence[str], examples: Sequence[Example], *, rows: int = 6, seed: int = 0, bare: bool = False
) -> Finding:
    """Tokens before and after the last layer's shift, coloured by label; a panel for every adapter.

    Args:
        names: an adapter, and others to compare with, such as one of BitFit, all on the same texts.
        examples: texts with one label each; `rows` of them are drawn with `seed`, labels in turn.
        bare: a panel for the base without an adapter, too.
    """
    if not names:
        raise RunError("shift needs at least one adapter")
    _refuse_others(host, names)
    chosen = _draw_texts(names[0], examples, rows, seed)
    seen = texts.read(host, names[0], chosen)
    tokens = sum(len(text.plain) for text in seen)
    if tokens < _FEWEST:
        raise DataError(f"these texts have {tokens} tokens without special ones; a plane needs at least {_FEWEST}")
    labels = [str(e.target) for e, text in zip(chosen, seen, strict=True) for _ in text.plain]
    written = _token_texts(host, seen)
    table: list[tuple[Any, ...]] = []
    shares: dict[str, tuple[float, float]] = {}
    summary: dict[str, Any] = {}
    for name, (before, after) in _moved(host, [*names, *([None] if bare else [])], seen).items():
        projection = pca(torch.cat([before, after]))
        shares[name] = projection.shares
        places = zip(*torch.split(projection.points, tokens), strict=True)
        for (row, token), label, ends in zip(written, labels, places, strict=True):
            named = zip(("before", "after"), ends, strict=True)
            table += [(name, row, token, label, when, *point.tolist()) for when, point in named]
        numbers = _directions(after - before, labels)
        if name in host and has_alpha(host, host.slot(name)):
            numbers |= _alphas(host, name, seen, labels)
        summary |= {f"{name}: {key}": value for key, value in numbers.items()}
    about = f"the last layer's {tokens:,} tokens of {len(seen)} texts before and after the shift: {', '.join(shares)}"
    columns = ("adapter", "text", "token", "label", "when", "pc1", "pc2")
    return Finding("shift", about, columns, table, lambda: _draw(table, shares), summary)


def _moved(host: Host, names: Sequence[str | None], seen: Sequence[texts.Text]) -> dict[str, tuple[Tensor, Tensor]]:
    """[tokens, d] before and after, special tokens left out, under every adapter; they share batches."""
    requests = [(name, text) for name in names for text in seen]
    outputs_of = dict(in_batches(host, [(name, text.row) for name, text in requests], norm_outputs))
    moved: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    for i, (name, text) in enumerate(requests):
        for side, outputs in zip(moved.setdefault(name or BARE, ([], [])), outputs_of[i], strict=True):
            side.append(outputs[list(text.plain)])
    return {name: (torch.cat(before), torch.cat(after)) for name, (before, after) in moved.items()}


def _refuse_others(host: Host, names: Sequence[str]) -> None:
    """Refuse bases and tasks that shift cannot show."""
    arch = host.base.sites.arch
    if arch.norm_place != "after":
        why = "normalises before its sublayers, not after them, so that no norm's output is before or after a shift"
        raise ArchError(f"shift: {arch.model_type} {why}")
    for name in names:
        host.slot(name)
    task = host.task(names[0])
    if task.kind != "classification":
        raise DataError(f"{names[0]} is for {task.name}; shift colours texts by their one label: classification")


def _draw_texts(name: str, examples: Sequence[Example], rows: int, seed: int) -> list[Example]:
    """`rows` texts, labels in turn."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        if example.target is not None:
            groups.setdefault(str(example.target), []).append(example)
    if len(groups) < 2:
        problem = f"has the label {next(iter(groups))}" if groups else "has no label"
        raise DataError(f"every text that {name} was shown {problem}; shift compares labels, and needs two")
    if rows < len(groups):
        raise RunError(f"rows={rows} is not valid: expected one text for each of the {len(groups)} labels at least")
    random = Random(seed)
    shuffled = [random.sample(groups[label], len(groups[label])) for label in sorted(groups)]
    turns = (example for turn in zip_longest(*shuffled) for example in turn if example is not None)
    return list(islice(turns, rows))


def _token_texts(host: Host, seen: Sequence[texts.Text]) -> list[tuple[int, str]]:
    """(number of the text, token) of every token that is shown."""
    tokenizer = load_tokenizer(host.base)
    tokens = [tokenizer.convert_ids_to_tokens(list(text.row.ids)) for text in seen]
    return [(n, tokens[n][i]) for n, text in enumerate(seen) for i in text.plain]


def _directions(moves: Tensor, labels: Sequence[str]) -> dict[str, float]:
    """How alike the directions of tokens are, in all dimensions: 1 if all are the same, near 0 for random ones."""
    directions = torch.nn.functional.normalize(moves.double(), dim=1)
    numbers = {"agreement of directions": directions.mean(0).norm().item()}
    kinds = sorted(set(labels))
    means = [directions[[i for i, label in enumerate(labels) if label == kind]].mean(0) for kind in kinds]
    pairs = [(a, b) for i, a in enumerate(means) for b in means[:i]]
    cosines = [torch.nn.functional.cosine_similarity(a, b, dim=0).item() for a, b in pairs]
    return numbers | {"cosine between labels": sum(cosines) / len(cosines)}


def _alphas(host: Host, name: str, seen: Sequence[texts.Text], labels: Sequence[str]) -> dict[str, float]:
    """The mean of alpha in the last layer for every label: AdapterBias's own part of the move."""
    weights = texts.weights(host, [(name, text) for text in seen])
    last = torch.cat([alpha[-1, list(text.plain)] for alpha, text in zip(weights, seen, strict=True)])
    of_label = {kind: [i for i, label in enumerate(labels) if label == kind] for kind in sorted(set(labels))}
    return {f"mean alpha, label {kind}": last[tokens].mean().item() for kind, tokens in of_label.items()}


def _draw(table: Sequence[Sequence[Any]], shares: dict[str, tuple[float, float]]) -> Any:
    labels = sorted({row[3] for row in table})
    columns = min(2, len(shares))
    figure, panels = drawing.sheet(-(-len(shares) // columns), columns, width=3.1, height=2.9)
    for empty in panels.flat[len(shares) :]:
        empty.set_visible(False)
    for panel, (name, (first, second)) in zip(panels.flat, shares.items(), strict=False):
        for i, label in enumerate(labels):
            points = [row for row in table if row[0] == name and row[3] == label]
            (x0, y0), (x1, y1) = (
                ([row[5] for row in points if row[4] == when], [row[6] for row in points if row[4] == when])
                for when in ("before", "after")
            )
            colour, marker = drawing.colour(i), drawing.marker(i)
            panel.plot([x0, x1], [y0, y1], "-", color=colour, lw=0.5, alpha=0.25, zorder=1)
            style = {"s": 14, "marker": marker, "color": colour, "linewidths": 0}
            panel.scatter(x0, y0, alpha=0.35, label=f"{label}, before", zorder=2, **style)
            panel.scatter(x1, y1, label=f"{label}, after", zorder=3, **style)
        axes = f"component 1 ({100 * first:.0f} % of variance)", f"component 2 ({100 * second:.0f} %)"
        drawing.label(panel, *axes, name)
    drawing.legend(figure, drawing.handles([panels[0, 0]]), 2 * columns)
    return figure
