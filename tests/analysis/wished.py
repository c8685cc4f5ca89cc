"""Adapters whose alpha is what a test wishes, token by token.

L-alpha is linear in the feed-forward's activations, so with more of them than tokens there are weights that give any
alpha exactly; v stays zero, so that no layer sees another's shift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tiny
import torch

import inlay
from inlay.engine.predict import batch_of, limit_of
from inlay.tasks import Example, Row

WIDE = 400
"""More activations than a test has tokens."""


def host(name: str = "bert", **changes: Any) -> inlay.Host:
    return tiny.text_host(name, intermediate_size=WIDE, **changes)


def examples(*texts: str, labels: Sequence[str] = ()) -> list[Example]:
    return [Example(text, target=label) for text, label in zip(texts, labels or [None] * len(texts), strict=True)]


def rows(made: inlay.Host, name: str, some: Sequence[Example]) -> list[Row]:
    """As the adapter's own task encodes them."""
    bare = [Example(e.text, e.pair, e.words) for e in some]
    found = made.translator(name).rows(made.base.tokenizer, bare, limit_of(made, name))
    return [row for own in found for row in own]


def plant(made: inlay.Host, name: str, some: Sequence[Example], layer: int, wish: Callable[[int, str], float]) -> None:
    """Let alpha in a layer be `wish(number of the text, token)`."""
    shown = rows(made, name, some)
    tokens = [made.base.tokenizer.convert_ids_to_tokens(list(row.ids)) for row in shown]
    wanted = torch.tensor([[wish(n, token)] for n, own in enumerate(tokens) for token in own])
    site = made.base.sites.at("ffn.out", layer)
    heard: list[torch.Tensor] = []
    hook = made.base.model.get_submodule(site.path).register_forward_pre_hook(
        lambda module, inputs: heard.append(inputs[0].detach())
    )
    with torch.no_grad():
        for row in shown:
            made.hidden(batch_of([row]), [name])
    hook.remove()
    x = torch.cat([h.flatten(0, -2) for h in heard]).double()
    assert len(x) == len(wanted) < WIDE
    w = torch.linalg.lstsq(x, wanted.double(), driver="gelsd").solution.float()
    made.write(name, {f"layers.{layer}.ffn.out.w": w, f"layers.{layer}.ffn.out.b": torch.zeros(1)})
