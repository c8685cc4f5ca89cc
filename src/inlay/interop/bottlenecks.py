"""AdapterHub's bottleneck options and weights, and those of houlsby; `adapterhub.py` says which are equal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.bank.delta import Part
from inlay.base.load import Base
from inlay.base.sites import Sites
from inlay.errors import AdapterError
from inlay.interop.exchange import layers_text
from inlay.interop.files import CONFIG, Keys
from inlay.interop.settings import number, refuse
from inlay.methods.houlsby import Bottleneck, Houlsby, NormedBottleneck

_BERT = {"attn": "attention.output", "ffn": "output"}
PLACES = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra", "deberta-v2"), _BERT),
    "distilbert": {"attn": "attention_adapters", "ffn": "output_adapters"},
    "albert": {"attn": "attention.attention_adapters", "ffn": "output_adapters"},
}
"""model_type -> sublayer -> the module in a layer that holds its bottlenecks."""
_SWAPPED = ("albert",)
"""Models whose bottlenecks after attention get the residual as the output, and the output as the residual."""

_ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "swish": "swish",
    "silu": "swish",
    "leakyrelu": "leaky_relu",
    "leaky_relu": "leaky_relu",
    "mish": "mish",
    "linear": "identity",
}
_THEIRS = {"leaky_relu": "leakyrelu", "identity": "linear"}
_OLD_ACTIVATIONS = {"gelu": "gelu_new", "gelu_orig": "gelu"}
"""The meaning of names in files without a version."""

_REFUSED = {
    "inv_adapter": "invertible adapters change the embeddings",
    "invertible_adapter": "invertible adapters change the embeddings",
    "phm_layer": "its matrices are Kronecker products (Compacter)",
    "ln_before": "the adapter has a norm of its own in front",
    "ln_after": "the adapter has a norm of its own behind",
    "use_gating": "its gate looks at the whole text",
}
_READ = set(
    "mh_adapter output_adapter reduction_factor non_linearity original_ln_before original_ln_after is_parallel scaling "
    "residual_before_ln leave_out".split()
)
_TRAINING_ONLY = {"init_weights", "init_weights_seed", "dropout", "stochastic_depth"}
_WITHOUT_EFFECT = set(
    "architecture adapter_residual_before_ln inv_adapter_reduction_factor cross_adapter phm_dim factorized_phm_W "
    "shared_W_phm shared_phm_rule factorized_phm_rule phm_c_init phm_init_range learn_phm hypercomplex_nonlinearity "
    "phm_rank phm_bias".split()
)
"""Without effect in encoders, or belonging to an option that is refused."""
_DEFAULTS = {"original_ln_before": False, "original_ln_after": True, "residual_before_ln": True}


def to_inlay(keys: Keys, name: str, options: Mapping[str, Any], old: bool, base: Base) -> tuple[str, dict[str, Tensor]]:
    """A spec and its tensors.

    Args:
        name: the adapter's name in the keys.
        old: whether the file has no version.
    """
    path, sites = keys.path / CONFIG, base.sites
    refuse(options, _REFUSED, _READ | _TRAINING_ONLY | _WITHOUT_EFFECT, path)
    parallel, normed = _read_variant(options, path)
    places = [place for place, key in (("attn", "mh_adapter"), ("ffn", "output_adapter")) if options.get(key)]
    if not places:
        raise AdapterError(f"{path}: neither mh_adapter nor output_adapter is set; it would adapt nothing")
    parallel = _called_parallel(places, parallel, normed, sites)
    left_out = _read_left_out(options, path)
    layers = [layer for layer in range(sites.layers) if layer not in left_out]
    if not layers:
        raise AdapterError(f"{path}: leave_out names every layer")
    matrices_of_site = {
        f"layers.{layer}.{place}.{'norm' if normed else 'out'}": _read_matrices(
            keys, f"{sites.layer_paths[layer]}.{PLACES[sites.arch.model_type][place]}.adapters.{name}", options, sites
        )
        for layer in layers
        for place in places
    }
    method = Houlsby(
        size=max(matrices["down"].shape[1] for matrices in matrices_of_site.values()),
        activation=_read_activation(options, old, path),
        where="both" if len(places) == 2 else "attn" if places == ["attn"] else "ffn",
        norms=None if normed else False,
        parallel=parallel,
        normed=normed,
        layers=layers_text(layers, sites.layers),
    )
    shapes = method.params(sites)
    tensors = {f"{site}.{key}": t for site, matrices in matrices_of_site.items() for key, t in matrices.items()}
    return method.spec, {key: _fill_with_zeros(tensor, shapes[key].shape) for key, tensor in tensors.items()}


def from_inlay(
    method: Houlsby, tensors: Mapping[str, Tensor], name: str, sites: Sites
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Options and weights; a shared adapter is written at every place where it acts."""
    if method.depth > 1 or method.inner_norm:
        option = "depth" if method.depth > 1 else "inner_norm"
        raise AdapterError(f"AdapterHub's bottlenecks have one hidden layer and no norm: {option} cannot be written")
    weights: dict[str, Tensor] = {}
    chosen = set()
    for part in method.parts(sites):
        if type(part.delta) not in (Bottleneck, NormedBottleneck):
            _refuse_norms(part, tensors)
            continue
        assert part.site.layer is not None
        chosen.add(part.site.layer)
        place = PLACES[sites.arch.model_type][part.site.kind.split(".")[0]]
        prefix = f"{sites.layer_paths[part.site.layer]}.{place}.adapters.{name}"
        matrices = {key: tensors[full] for key, full in part.names().items()}
        weights |= {
            f"{prefix}.adapter_down.0.weight": matrices["down"].T,
            f"{prefix}.adapter_down.0.bias": matrices["down_bias"],
            f"{prefix}.adapter_up.weight": matrices["up"].T,
            f"{prefix}.adapter_up.bias": matrices["up_bias"],
        }
    places = [place for place in ("attn", "ffn") if method.where in ("both", place)]
    options = {
        "mh_adapter": "attn" in places,
        "output_adapter": "ffn" in places,
        "reduction_factor": _reduction(sites.hidden, method.size),
        "non_linearity": _THEIRS.get(method.activation, method.activation),
        "original_ln_before": method.normed,
        "original_ln_after": True,
        "residual_before_ln": True,
        "is_parallel": _called_parallel(places, method.parallel, method.normed, sites),
        "scaling": 1.0,
        "leave_out": [layer for layer in range(sites.layers) if layer not in chosen],
        "adapter_residual_before_ln": False,
        "ln_before": False,
        "ln_after": False,
        "use_gating": False,
        "inv_adapter": None,
        "inv_adapter_reduction_factor": None,
        "cross_adapter": False,
        "dropout": 0.0,
        "init_weights": "bert",
        "phm_layer": False,
    }
    return options, weights


def _read_variant(options: Mapping[str, Any], path: Path) -> tuple[bool, bool]:
    """Whether a bottleneck is parallel, and whether it reads the norm."""
    before, after, residual = (options.get(key, value) for key, value in _DEFAULTS.items())
    parallel = bool(options.get("is_parallel", False))
    if after and (parallel or not before) and residual in (True, False):
        return parallel, False
    if after and before and residual is True:
        return False, True
    raise AdapterError(
        f"{path}: original_ln_before={before}, original_ln_after={after}, residual_before_ln={residual} is not a place "
        "that Inlay has: it has those of double_seq_bn, seq_bn and par_bn"
    )


def _called_parallel(places: list[str], parallel: bool, normed: bool, sites: Sites) -> bool:
    """What the other library calls parallel: the opposite where it swaps the two; the normed sum is the same."""
    name = sites.arch.model_type
    if normed or name not in _SWAPPED or "attn" not in places:
        return parallel
    if "ffn" in places:
        raise AdapterError(
            f"on {name} AdapterHub's bottlenecks read the input of attention but the output of the feed-forward (if "
            "they are parallel the other way round), and Inlay's read the same of both: exchange one of them"
        )
    return not parallel


def _read_activation(options: Mapping[str, Any], old: bool, path: Path) -> str:
    name = str(options.get("non_linearity", "")).lower()
    meant = _OLD_ACTIVATIONS.get(name, name) if old else name
    if meant not in _ACTIVATIONS:
        raise AdapterError(f"{path}: Inlay has no non_linearity={meant}; it has {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[meant]


def _read_left_out(options: Mapping[str, Any], path: Path) -> set[int]:
    layers = options.get("leave_out") or []
    if not isinstance(layers, list) or not all(isinstance(layer, int) for layer in layers):
        raise AdapterError(f"{path}: leave_out is {layers!r}, not a list of layers")
    return set(layers)


def _read_matrices(keys: Keys, prefix: str, options: Mapping[str, Any], sites: Sites) -> dict[str, Tensor]:
    """A bottleneck at its own size, its scale in `up`."""
    d = sites.hidden
    down = keys.take(f"{prefix}.adapter_down.0.weight")
    m = down.shape[0] if down.dim() else 0
    keys.take(f"{prefix}.adapter_down.0.weight", (m, d))
    down_bias = keys.take(f"{prefix}.adapter_down.0.bias", (m,))
    up, up_bias = keys.take(f"{prefix}.adapter_up.weight", (d, m)), keys.take(f"{prefix}.adapter_up.bias", (d,))
    scaling = options.get("scaling", 1.0)
    scale: Tensor | float
    if scaling in ("learned", "channel"):
        scale = keys.take(f"{prefix}.scaling", (1,) if scaling == "learned" else (d,))
    else:
        scale = number(scaling, "scaling", keys.path / CONFIG)
    return {"down": down.T, "down_bias": down_bias, "up": up.T * scale, "up_bias": up_bias * scale}


def _fill_with_zeros(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A smaller tensor with zeros after it."""
    full = torch.zeros(shape, dtype=torch.float32)
    full[tuple(slice(0, n) for n in tensor.shape)] = tensor
    return full


def _refuse_norms(part: Part, tensors: Mapping[str, Tensor]) -> None:
    if any(tensors[full].abs().max() > 0 for full in part.names().values()):
        name = part.site.name
        raise AdapterError(
            f"AdapterHub keeps the base's norms, and this adapter trained {name}; train with norms=false"
        )


def _reduction(hidden: int, size: int) -> float | int:
    """A reduction factor for which hidden // factor is the size, rounding included."""
    return hidden // size if hidden % size == 0 else hidden / (size + 0.5)
