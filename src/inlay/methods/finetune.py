"""Fine-tuning: every parameter of the base, or the top layers and the pooler (Houlsby et al. 2019).

Stored as differences from the base, like everything else, so weight decay pulls towards the pretrained weights.
`top=n` with n the number of layers is everything, embeddings too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.bank.delta import Param, Tensors, Uniform, WeightMethod
from inlay.base.sites import Sites
from inlay.config import option
from inlay.errors import SpecError
from inlay.registry import methods


def weights_of(sites: Sites, layers: str) -> list[str]:
    """The base's parameters in these layers and above them (final norm, pooler); all of them for all layers."""
    chosen = sites.choose_layers(layers)
    if len(chosen) == sites.layers:
        return list(sites.parameters)
    above = [site.path for site in sites if site.kind in ("final.norm", "pooler")]
    prefixes = tuple(f"{path}." for path in [*(sites.layer_paths[i] for i in chosen), *above])
    return [name for name in sites.parameters if name.startswith(prefixes)]


def count_by_layer(sites: Sites, names: list[str]) -> dict[str, int]:
    """How many of these parameters each part of the model has."""
    total: Counter[str] = Counter()
    for name in names:
        layer = next((i for i, path in enumerate(sites.layer_paths) if name.startswith(f"{path}.")), None)
        place = name.split(".")[0] if layer is None else f"layers.{layer}"
        total[place] += torch.Size(sites.parameters[name]).numel()
    return dict(total)


@methods.register("finetune")
@dataclass(frozen=True, kw_only=True)
class Finetune(WeightMethod):
    """Change the weights themselves."""

    top: int | None = option(None, "only the top n layers and the pooler; auto: everything", at_least=1)

    def check(self) -> None:
        """Refuse two ways of choosing layers."""
        if self.top is not None and self.layers != "all":
            raise SpecError("finetune: give top= or layers=, not both")

    def targets(self, sites: Sites) -> list[str]:
        """The parameters of the chosen layers."""
        return weights_of(sites, self.layers if self.top is None else f"top{self.top}")

    def params(self, sites: Sites) -> dict[str, Param]:
        """One difference per parameter."""
        return {name: Param(sites.parameters[name]) for name in self.targets(sites)}

    def initial(self, sites: Sites, seed: int) -> dict[str, Tensor]:
        """No difference."""
        return {name: torch.zeros(param.shape, dtype=torch.float32) for name, param in self.params(sites).items()}

    def by_site(self, sites: Sites) -> dict[str, int]:
        """By layer, since whole layers train."""
        return count_by_layer(sites, self.targets(sites))

    def difference(self, name: str, tensors: Tensors, like: Tensor, uniform: Uniform | None) -> Tensor:
        """As stored."""
        return tensors[name]
