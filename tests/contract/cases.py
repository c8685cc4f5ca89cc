"""The cases of the contract: every registered method with defaults, and the variants that take other paths.

The quick tier runs every method on two architectures, one with norms after each sublayer and one with norms before,
its variants on the first of them, and on each of the others one method with slots and one that changes weights. Side by
side, all of them are run on both.
"""

from __future__ import annotations

import pytest
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
    "bitfit:sites=attn.k+ffn.in+ffn.norm",
    "diffprune:structured=true",
    "houlsby:size=8,mixout=0.5",
]
SPECS = sorted(methods.names()) + VARIANTS
ARCHS = arch.names()
_NORMED = [spec for spec in VARIANTS if "normed=true" in spec]
_BIASES = [spec for spec in SPECS if spec.startswith("bitfit")]
REFUSED = {(name, spec): "has no biases" for name in ("llama", "modernbert") for spec in _BIASES}
REFUSED |= {("qwen2", spec): "has no bias to train at 'ffn.in'" for spec in _BIASES if "ffn.in" in spec}
"""No biases to train, or norms at another place: the reason."""
REFUSED |= {
    (name, spec): "norms that follow" for name in ARCHS for spec in _NORMED if arch.find(name).norm_place == "before"
}


EVERYTHING = ("bert", "gpt2")
TWO = ["houlsby", "finetune"]


def specs_for(name: str) -> list[str]:
    return [spec for spec in SPECS if (name, spec) not in REFUSED]


def _pair(name: str, spec: str):
    quick = spec in TWO or name == EVERYTHING[0] or (name == EVERYTHING[1] and spec not in VARIANTS)
    return pytest.param(name, spec, marks=[] if quick else pytest.mark.full)


PAIRS = [_pair(name, spec) for name in ARCHS for spec in specs_for(name)]
HOSTS = [
    pytest.param(name, specs_for(name), id=name, marks=[] if name in EVERYTHING else pytest.mark.full) for name in ARCHS
]
HOSTS += [pytest.param(name, TWO, id=f"{name}-two") for name in ARCHS if name not in EVERYTHING]


def host_of(name: str, specs: list[str]):
    """A host with an adapter of each."""
    host = tiny.host(name)
    for i, spec in enumerate(specs):
        host.add(spec, spec, seed=i)
        tiny.shake(host, spec, seed=i)
    return host
