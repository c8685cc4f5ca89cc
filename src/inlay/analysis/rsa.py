"""How far a tuned model's representations are from the base's, layer by layer (He et al. 2021, section 2).

Representational similarity: a model's cosine similarities between all pairs of the same n tokens, compared with another
model's by Pearson's correlation over the upper triangles. 1 is the same geometry, up to a rotation. Special tokens are
left out. The n x n matrices are computed block by block, and only sums of them are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay import drawing
from inlay.analysis.finding import Finding
from inlay.analysis.rows import in_batches
from inlay.base.load import load_tokenizer
from inlay.engine.host import Host
from inlay.engine.predict import limit_of
from inlay.engine.watch import layer_states
from inlay.errors import DataError, RunError
from inlay.tasks import Example, Row

BASE = "base"
_FEWEST = 10
"""The fewest tokens whose pairs can be compared."""
_BLOCK = 256
_SPECIAL = ("cls", "sep", "pad", "bos", "eos")


def rsa(
    host: Host, names: Sequence[str], examples: Sequence[Example], *, tokens: int = 5000, seed: int = 0, where: str = ""
) -> Finding:
    """The similarity of adapters to the bare base, and to each other, at the embedding and after every layer.

    Args:
        names: adapters of this host; the task of the first turns the texts into tokens. Labels are not needed.
        tokens: how many tokens to draw from those of all texts; all of them if there are fewer.
        where: a name for the texts, for people.
    """
    if len(set(names)) < len(names) or not names:
        raise RunError("expected the names of different adapters")
    if BASE in names:
        raise RunError(f"an adapter called {BASE!r} cannot be told from the base; load it under another name")
    rows, chosen = _draw_tokens(host, names[0], examples, tokens, seed)
    states = _states(host, [None, *names], rows, chosen)
    layers = [similarity(states[:, layer].to(host.base.device)).tolist() for layer in range(states.shape[1])]
    models = [BASE, *names]
    pairs = list(itertools.combinations(range(len(models)), 2))
    table = [(layer, models[a], models[b], layers[layer][a][b]) for a, b in pairs for layer in range(len(layers))]
    summary: dict[str, Any] = {"tokens": states.shape[2]}
    summary |= {f"{models[a]} and {models[b]}, last layer": layers[-1][a][b] for a, b in pairs}
    return Finding(
        "rsa",
        f"representational similarity of {', '.join(names)} and the base, over {states.shape[2]:,} tokens"
        f"{f' of {where}' if where else ''}",
        ("layer", "model", "other", "similarity"),
        table,
        lambda: _draw(table, len(names)),
        summary,
    )


def similarity(states: Tensor, block: int = _BLOCK) -> Tensor:
    """[models, models] Pearson's correlations between the models' cosine similarities of all pairs of tokens.

    NaN for a model whose similarities are all the same.

    Args:
        states: [models, n, d] the same tokens in every model.
        block: how many rows of the n x n matrices to compute at a time.
    """
    unit = F.normalize(states.double(), dim=-1).float()
    models, n, _ = unit.shape
    sums = unit.new_zeros(models, dtype=torch.float64)
    products = unit.new_zeros(models, models, dtype=torch.float64)
    middle = _middle(unit)
    for start in range(0, n - 1, block):
        of_block = unit[:, start : start + block]
        cosines = of_block @ unit[:, start:].transpose(1, 2)
        above = torch.ones(cosines.shape[1:], dtype=torch.bool, device=unit.device).triu(1)
        values = cosines[:, above].double() - middle
        sums += values.sum(1)
        products += values @ values.T
    pairs = n * (n - 1) / 2
    shared = products - sums.outer(sums) / pairs
    deviation = shared.diagonal().clamp_min(0).sqrt()
    # the rest that rounding leaves of equal numbers is no variance
    deviation = torch.where(deviation > 1e-6 * pairs**0.5, deviation, torch.nan)
    return (shared / deviation.outer(deviation)).clamp(-1, 1)


def _middle(unit: Tensor) -> Tensor:
    """[models, 1] about the mean cosine, subtracted before squaring: a model's states may all point the same way."""
    return unit.double().mean(1).square().sum(-1, keepdim=True)


def _draw_tokens(
    host: Host, name: str, examples: Sequence[Example], tokens: int, seed: int
) -> tuple[list[Row], list[list[int]]]:
    """The rows that have chosen tokens, and the places of these in each row."""
    if tokens < _FEWEST:
        raise RunError(f"{tokens} tokens are too few to compare: expected at least {_FEWEST}")
    tokenizer = load_tokenizer(host.base)
    unlabelled = [Example(e.text, e.pair, e.words, place=e.place) for e in examples]
    encoded = host.task(name).encode(tokenizer, unlabelled, host.labels(name), limit_of(host, name))
    special = {getattr(tokenizer, f"{kind}_token_id", None) for kind in _SPECIAL}
    places = [(r, t) for r, row in enumerate(encoded) for t, token in enumerate(row.ids) if token not in special]
    if len(places) < _FEWEST:
        raise DataError(f"the texts have {len(places)} tokens, which is too few to compare: at least {_FEWEST}")
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:tokens].tolist()
    by_row: dict[int, list[int]] = {}
    for row, token in sorted(places[i] for i in order):
        by_row.setdefault(row, []).append(token)
    return [encoded[row] for row in by_row], list(by_row.values())


def _states(host: Host, models: Sequence[str | None], rows: Sequence[Row], chosen: Sequence[Sequence[int]]) -> Tensor:
    """[models, depth + 1, tokens, d] of the chosen tokens, on the CPU; all models in the same batches."""
    requests = [(model, row) for model in models for row in rows]
    states = [torch.empty(0)] * len(requests)
    for i, layers in in_batches(host, requests, layer_states):
        states[i] = layers[:, chosen[i % len(rows)]].float().cpu()
    return torch.stack([torch.cat(states[i : i + len(rows)], dim=1) for i in range(0, len(requests), len(rows))])


def _draw(table: Sequence[tuple[int, str, str, float]], adapters: int) -> Any:
    sides = [[row for row in table if row[1] == BASE]]
    sides += [[row for row in table if row[1] != BASE]] if adapters > 1 else []
    figure, panels = drawing.sheet(1, len(sides), width=4.2, height=3.2, sharey=True)
    number = 0
    for panel, rows in zip(panels[0], sides, strict=True):
        pairs = list(dict.fromkeys((model, other) for _, model, other, _ in rows))
        for model, other in pairs:
            line = [(layer, value) for layer, a, b, value in rows if (a, b) == (model, other)]
            marker = drawing.marker(number)
            style = {"color": drawing.colour(number), "lw": 1.5, "markersize": 4.5}
            label = f"{other} and base" if model == BASE else f"{model} and {other}"
            panel.plot(*zip(*line, strict=True), marker=marker, label=label, **style)
            number += 1
        layers = sorted({row[0] for row in rows})
        ticks = [layer for layer in layers if layer % (1 + (len(layers) - 1) // 13) == 0]
        panel.set_xticks(ticks, ["emb." if layer == 0 else str(layer) for layer in ticks])
        against = "against the base" if rows is sides[0] else "against each other"
        drawing.label(panel, "after layer", title=against)
        columns = 1 if len(pairs) < 4 else 2
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False, fontsize=8, ncols=columns)
    panels[0, 0].set_ylabel("similarity (Pearson's r of cosines)")
    return figure
