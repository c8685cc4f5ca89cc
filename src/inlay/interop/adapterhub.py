"""Directories of AdapterHub's library (adapters): bottlenecks and LoRA with their heads, in and out.

Its three bottlenecks are options of houlsby here, always with the base's own norms:

    double_seq_bn (Houlsby)    y + B(y) before the residual          norms=false
    seq_bn (Pfeiffer)          LN(s + B(LN(s))), s with the residual normed=true,where=ffn
    par_bn (parallel)          y + 4 B(x), x the sublayer's input    parallel=true,where=ffn,norms=false

Scales, also learnt ones, are multiplied into `up`; sizes that differ from layer to layer are filled up with zeros,
which change nothing. Invertible adapters, PHM layers, gates, norms inside an adapter and fusions are refused. Both
kinds of weight file are written, because `load_adapter` reads the `.bin` unless `use_safetensors` is set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from inlay.base.load import Base
from inlay.errors import AdapterError
from inlay.interop import lowrank
from inlay.interop.bottlenecks import PLACES, from_inlay, to_inlay
from inlay.interop.exchange import assemble, imported, model_prefix, open_adapter
from inlay.interop.files import (
    CONFIG,
    Keys,
    as_json,
    as_safetensors,
    as_torch,
    peek,
    plain_name,
    read_json,
    read_tensors,
    write_files,
)
from inlay.interop.flexheads import read_flex_head, write_flex_head
from inlay.interop.settings import number, refuse, short
from inlay.library.adapter import Adapter
from inlay.methods.houlsby import Houlsby
from inlay.methods.lora import Lora

WEIGHTS, PICKLED = "adapter.safetensors", "pytorch_adapter.bin"
HEAD_CONFIG, HEAD, PICKLED_HEAD = "head_config.json", "model_head.safetensors", "pytorch_model_head.bin"
FUSION_CONFIG = "adapter_fusion_config.json"
VERSION = "adapters.1.3.0"
"""The version whose layout is written."""

_LORA_SITES = {"attn.q": "q", "attn.k": "k", "attn.v": "v", "ffn.in": "intermediate_lora", "ffn.out": "output_lora"}
_LORA_NEUTRAL = set(
    "architecture selfattn_lora intermediate_lora output_lora leave_out r alpha dropout attn_matrices init_weights "
    "init_weights_seed composition_mode dtype".split()
)
_LORA_REFUSED = {
    "use_gating": "its gate looks at the whole text",
    "use_dora": "DoRA changes the norm of every column",
    "vera_d": "VeRA shares random matrices between layers",
    "vera_b": "VeRA shares random matrices between layers",
}
_OLD_NAME = re.compile(r"\.(attention|layer)_text_(task|lang)_adapters(?=\.)")
"""The name of `.adapters` in files of the library's first years."""


def recognises(folder: Path) -> bool:
    """Whether a folder looks like one of AdapterHub's."""
    config = peek(Path(folder) / CONFIG)
    return {"config", "model_type"} <= config.keys() or (Path(folder) / FUSION_CONFIG).is_file()


def read(folder: Path, base: Base) -> Adapter:
    """The adapter in a directory of AdapterHub, for this base; an error says what cannot be represented."""
    folder = Path(folder)
    if (folder / FUSION_CONFIG).is_file():
        raise AdapterError(f"{folder} holds an AdapterFusion, which mixes several adapters; Inlay has none")
    config = read_json(folder / CONFIG)
    name, options = _name_and_options(config, base, folder / CONFIG)
    stored = read_tensors(folder, WEIGHTS, PICKLED)
    prefix = f"{model_prefix(base)}."
    tensors = {_OLD_NAME.sub(".adapters", key).removeprefix(prefix): tensor for key, tensor in stored.items()}
    keys = Keys(folder, tensors, base.name)
    if options.get("architecture") == "lora":
        spec, converted = lowrank.to_inlay(_read_lora(keys, name, options, config, base), base.sites)
    else:
        spec, converted = to_inlay(keys, name, options, "version" not in config, base)
    keys.finish()
    head = None
    if any((folder / file).exists() for file in (HEAD_CONFIG, HEAD, PICKLED_HEAD)):
        head_tensors = read_tensors(folder, HEAD, PICKLED_HEAD)
        head = read_flex_head(Keys(folder, head_tensors, base.name), read_json(folder / HEAD_CONFIG), base)
    about = imported("adapters", config.get("version"), config.get("model_name"))
    return assemble(base, spec, converted, head, plain_name(name, folder.resolve().name), about)


def write(adapter: Adapter, base: Base, folder: Path) -> None:
    """Write a directory that `load_adapter` of adapters 1.x loads, with its head."""
    opened = open_adapter(adapter, base)
    _refuse_unknown_base(base)
    method, sites = opened.method, base.sites
    name = plain_name(adapter.name, "inlay")
    if hasattr(nn.ModuleDict(), name):  # there it would be the name of a module
        name += "-adapter"
    if type(method) is Lora:  # a subclass computes something else
        options, tensors = _lora_options(method, opened.tensors, name, base)
    elif type(method) is Houlsby:
        options, tensors = from_inlay(method, opened.tensors, name, sites)
    else:
        raise AdapterError(f"AdapterHub has no {method.name} adapters; only houlsby and lora can be written for it")
    about = {
        "hidden_size": sites.hidden,
        "model_class": f"{type(base.model).__name__.removesuffix('Model')}AdapterModel",
        "model_name": base.name,
        "model_type": sites.arch.model_type,
        "name": name,
        "version": VERSION,
    }
    stored = opened.stored({f"{model_prefix(base)}.{key}": tensor for key, tensor in tensors.items()})
    files = {CONFIG: as_json({"config": options, **about})}
    files |= {WEIGHTS: as_safetensors(stored), PICKLED: as_torch(stored)}
    if opened.head is not None:
        settings, tensors = write_flex_head(opened.head, name)
        stored = opened.stored(tensors)
        files[HEAD_CONFIG] = as_json({"config": settings, **about})
        files |= {HEAD: as_safetensors(stored), PICKLED_HEAD: as_torch(stored)}
    write_files(Path(folder), files)


def _name_and_options(config: Mapping[str, Any], base: Base, path: Path) -> tuple[str, Mapping[str, Any]]:
    """The adapter's name and options; an error if they are for a base of another shape."""
    _refuse_unknown_base(base)
    name, options = config.get("name"), config.get("config")
    if not isinstance(name, str) or not name:
        raise AdapterError(f"{path}: name is {name!r}, not a name")
    if not isinstance(options, Mapping):
        raise AdapterError(f"{path}: config is {options!r}, not options by name")
    expected = {"model_type": base.sites.arch.model_type, "hidden_size": base.sites.hidden}
    for key, value in expected.items():
        if config.get(key, value) != value:
            raise AdapterError(f"{path}: it is for a base with {key}={config[key]!r}; {base.name} has {value!r}")
    architecture = options.get("architecture")
    if architecture not in (None, "lora"):
        raise AdapterError(f"{path}: Inlay has no {architecture} adapters; it reads bottlenecks and LoRA")
    return name, options


def _refuse_unknown_base(base: Base) -> None:
    if base.sites.arch.model_type not in PLACES:
        known = ", ".join(PLACES)
        raise AdapterError(
            f"adapters of AdapterHub are exchanged for {known}; {base.name} is {base.sites.arch.model_type}"
        )


def _read_lora(
    keys: Keys, name: str, options: Mapping[str, Any], config: Mapping[str, Any], base: Base
) -> dict[str, lowrank.Change]:
    path = keys.path / CONFIG
    if options.get("composition_mode", "add") != "add":
        raise AdapterError(f"{path}: composition_mode={options['composition_mode']} multiplies, as (IA)3; LoRA adds")
    refuse(options, _LORA_REFUSED, _LORA_NEUTRAL, path)
    rank, alpha = lowrank.rank_of(options.get("r", 8), path), number(options.get("alpha", 8), "alpha", path)
    if _before_1_1(config.get("version")):
        alpha = rank  # those versions computed this for every alpha
    changes: dict[str, lowrank.Change] = {}
    for leaf, sites in lowrank.leaves(base.sites).items():
        names = [f"{leaf}.loras.{name}.lora_{side}" for side in "AB"]
        if any(key in keys for key in names):
            changes[leaf] = lowrank.take(keys, names, sites, leaf, alpha / rank, rank)
    if not changes:
        raise AdapterError(f"{keys.path} holds no LoRA matrix named {name!r} for a projection of {base.name}")
    return changes


def _lora_options(
    method: Lora, tensors: Mapping[str, Tensor], name: str, base: Base
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    kinds = [kind.strip() for kind in method.sites.split("+")]
    other = next((kind for kind in kinds if kind not in _LORA_SITES), None)
    if other is not None:
        raise AdapterError(f"AdapterHub has no LoRA at {other}; it has {', '.join(_LORA_SITES)}")
    chosen = base.sites.choose_layers(method.layers)
    options = {
        "architecture": "lora",
        "selfattn_lora": any(kind.startswith("attn.") for kind in kinds),
        "intermediate_lora": "ffn.in" in kinds,
        "output_lora": "ffn.out" in kinds,
        "attn_matrices": [_LORA_SITES[kind] for kind in kinds if kind.startswith("attn.")],
        "leave_out": [layer for layer in range(base.sites.layers) if layer not in chosen],
        "r": method.rank,
        "alpha": short(method.alpha),
        "dropout": 0.0,
        "composition_mode": "add",
        "init_weights": "lora",
        "init_weights_seed": None,
        "use_gating": False,
        "use_dora": False,
        "vera_d": None,
        "vera_b": None,
        "dtype": None,
    }
    matrices: dict[str, Tensor] = {}
    for path, change in lowrank.from_inlay(method, tensors, base.sites).items():
        matrices |= {f"{path}.loras.{name}.lora_A": change.down, f"{path}.loras.{name}.lora_B": change.up}
    return options, matrices


def _before_1_1(version: object) -> bool:
    """Whether it is a version of adapters (not of adapter-transformers) that does not divide by the rank."""
    library, _, numbers = str(version or "").partition(".")
    parts = [int(part) for part in numbers.split(".")[:2] if part.isdigit()]
    return library == "adapters" and len(parts) == 2 and parts < [1, 1]
