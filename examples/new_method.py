"""A method of your own in one file: a learned scale of the feed-forward's first projection.

    y + s * y   at ffn.in, s starting at zero

Run it: python examples/new_method.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import inlay
from inlay.bank.delta import Delta, Param, Part, Signal, SlotMethod, Tensors
from inlay.bank.route import Route
from inlay.base.sites import Site, Sites


@dataclass(frozen=True)
class Scale(Delta):
    """y * (1 + s)."""

    def params(self, site: Site) -> dict[str, Param]:
        return {"s": Param((site.d_out,))}

    def difference(self, route: Route, p: Tensors, at: Signal) -> torch.Tensor:
        return at.y * route.vector(p["s"], at.y)


@inlay.method("scale")
@dataclass(frozen=True, kw_only=True)
class ScaleFeedForward(SlotMethod):
    """Scale what enters the feed-forward's activation; `layers=` and `mixout=` come with the base class."""

    def parts(self, sites: Sites) -> list[Part]:
        chosen = sites.select(("ffn.in",), sites.choose_layers(self.layers))
        return [Part(site, Scale(), site.name) for site in chosen]


def main() -> None:
    host = inlay.Host()
    host.add("mine", "scale:layers=top3", labels=["no", "yes"])
    host.add("theirs", "lora", labels=["a", "b", "c"])
    print(f"scale:layers=top3 trains {inlay.parse_method('scale:layers=top3').count(host.base.sites):,} parameters")
    with torch.no_grad():
        for logits in host.logits(host.batch(["one batch", "two methods"]), ["mine", "theirs"]):
            print(logits)


if __name__ == "__main__":
    main()
