"""The cases of the contract: every registered method with defaults, and the variants that take other paths."""

from __future__ import annotations

import tiny

from inlay.base import arch
from inlay.registry import methods

VARIANTS = [
    "houlsby:size=5,activation=tanh",
    "houlsby:size=9,where=ffn,norms=false",
    "houlsby:share=sublayers,size=8",
    "houlsby:share=2,size=8,norms=true",
    "houlsby:size=4,parallel=true,depth=2,inner_norm=true",
    "houlsby:size=6,where=ffn,normed=true",
    "houlsby:size=8,normed=true,share=sublayers,inner_norm=true",
    "adapterbias:share=v",
    "adapterbias:share=both",
    "adapterbias:alpha=false",
    "adapterbias:l0=0.01",
    "lora:rank=3,alpha=5,sites=attn.q+attn.out+ffn.in+ffn.out",
    "finetune:top=1",
    "houlsby:size=8,mixout=0.5",
]
SPECS = sorted(methods.names()) + VARIANTS
ARCHS = arch.names()
_NORMED = [spec for spec in VARIANTS if "normed=true" in spec]
REFUSED = {(name, "bitfit"): "has no biases" for name in ("llama", "modernbert")}
"""No biases to train, or norms at another place: the reason."""
REFUSED |= {
    (name, spec): "norms that follow" for name in ARCHS for spec in _NORMED if arch.find(name).norm_place == "before"
}


def specs_for(name: str) -> list[str]:
    return [spec for spec in SPECS if (name, spec) not in REFUSED]


PAIRS = [(name, spec) for name in ARCHS for spec in specs_for(name)]


def full_host(name: str, shaken: bool = True):
    """A host with one adapter of every case."""
    host = tiny.host(name)
    for i, spec in enumerate(specs_for(name)):
        host.add(spec, spec, seed=i)
        if shaken:
            tiny.shake(host, spec, seed=i)
    return host
