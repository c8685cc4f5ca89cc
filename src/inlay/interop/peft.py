"""LoRA directories of peft, in and out: `adapter_config.json` and `adapter_model.safetensors` (or `.bin`).

The weights tell what a directory adapts, not `target_modules`; ranks and scales may differ from matrix to matrix.
`modules_to_save` may hold the head of one of transformers' classes. Anything else that changes the outputs (DoRA,
trained biases or embeddings, PiSSA's changed base) is refused. A written directory also has a `model_config.json`,
since peft has no place for label names (and a `config.json` would hide the adapter from transformers' Auto classes). A
head's calibration, and the scale of a regression, are in its weights there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from inlay.base.load import Base
from inlay.base.sites import stores_in_out
from inlay.engine.class_heads import ROWS, SPANS, TOKENS, HeadParts, layouts, model_config, read_head, write_head
from inlay.errors import AdapterError
from inlay.interop import lowrank
from inlay.interop.exchange import assemble, imported, model_prefix, open_adapter
from inlay.interop.files import (
    CONFIG,
    Keys,
    as_json,
    as_safetensors,
    peek,
    plain_name,
    read_json,
    read_tensors,
    write_files,
)
from inlay.interop.settings import number, refuse, short
from inlay.library.adapter import Adapter
from inlay.methods.lora import Lora

WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
MODEL_CONFIG = "model_config.json"
_PREFIX = "base_model.model."
_TASKS = {"SEQ_CLS": ROWS, "TOKEN_CLS": TOKENS, "QUESTION_ANS": SPANS}
_HEADLESS = (None, "FEATURE_EXTRACTION")
_PLAIN_STARTS = (True, False, None, "true", "false", "gaussian", "eva", "orthogonal")
"""Initialisations that leave the base as it is."""
_REFUSED = {
    "use_dora": "DoRA changes the norm of every column",
    "lora_bias": "its matrices have a bias",
    "trainable_token_indices": "it trains embeddings of tokens",
    "layer_replication": "it repeats layers of the base",
    "target_parameters": "it changes parameters that are no projection",
    "use_qalora": "QALoRA pools its input",
    "use_bdlora": "its matrices are block-diagonal",
    "alora_invocation_tokens": "it acts on some tokens only",
    "arrow_config": "it mixes several adapters",
    "kasa_config": "KaSA changes the base",
    "monteclora_config": "MonteCLoRA samples its matrices",
    "velora_config": "VeLoRA is not LoRA",
    "megatron_config": "it is for Megatron",
    "enable_lora": "it adapts parts of a fused projection",
}
_MOST_PATTERNS = 4096
_SLOW = re.compile(r"\)[*+{]|([*+}].*){4}", re.DOTALL)
"""Repeated groups, or many repetitions: these can make an expression very slow, and no path needs them."""
_HARMLESS = set(
    "task_type peft_type auto_mapping peft_version base_model_name_or_path revision inference_mode r target_modules "
    "exclude_modules lora_alpha lora_dropout fan_in_fan_out bias use_rslora modules_to_save init_lora_weights "
    "layers_to_transform layers_pattern rank_pattern alpha_pattern megatron_core loftq_config eva_config corda_config "
    "lora_ga_config qalora_group_size runtime_config ensure_weight_tying".split()
)


def recognises(folder: Path) -> bool:
    """Whether a folder looks like one of peft's."""
    return "peft_type" in peek(Path(folder) / CONFIG)


def read(folder: Path, base: Base) -> Adapter:
    """The adapter in a directory of peft, for this base; an error says what cannot be represented."""
    folder = Path(folder)
    config = read_json(folder / CONFIG)
    _refuse(config, folder / CONFIG)
    tensors = read_tensors(folder, WEIGHTS, PICKLED)
    strange = next((key for key in tensors if not key.startswith(_PREFIX)), None)
    if strange is not None:
        raise AdapterError(f"{folder} holds {strange}; expected names that begin with {_PREFIX}")
    keys = Keys(folder, {key.removeprefix(_PREFIX): tensor for key, tensor in tensors.items()}, base.name)
    spec, converted = lowrank.to_inlay(_read_changes(keys, base, config), base.sites)
    head = _read_head(keys, base, config)
    about = imported("peft", config.get("peft_version"), config.get("base_model_name_or_path"))
    return assemble(base, spec, converted, head, plain_name(folder.resolve().name, "peft"), about)


def write(adapter: Adapter, base: Base, folder: Path) -> None:
    """Write a directory that `PeftModel.from_pretrained` loads onto the class of its head, or onto the base."""
    opened = open_adapter(adapter, base)
    if type(opened.method) is not Lora:  # a subclass computes something else
        raise AdapterError(f"peft has no {opened.method.name} adapters; only lora can be written for it")
    changes = lowrank.from_inlay(opened.method, opened.tensors, base.sites)
    prefix = ""
    settings = _make_settings(changes, base)
    files: dict[str, bytes] = {}
    tensors: dict[str, Tensor] = {}
    if opened.head is not None:
        try:
            layout, head = write_head(opened.head, base)
        except AdapterError as error:
            raise AdapterError(f"{error}; or leave the head out (--without-head)") from None
        prefix = f"{model_prefix(base)}."
        tensors |= head
        settings["task_type"] = next(task for task, auto in _TASKS.items() if auto == layout.auto)
        settings["modules_to_save"] = sorted({_module_to_save(path) for path in (layout.out, layout.dense) if path})
        files[MODEL_CONFIG] = as_json(model_config(opened.head, layout.auto, base))
    for path, change in changes.items():
        tensors |= {f"{prefix}{path}.lora_A.weight": change.down, f"{prefix}{path}.lora_B.weight": change.up}
    stored = opened.stored({_PREFIX + key: tensor for key, tensor in tensors.items()})
    write_files(Path(folder), {CONFIG: as_json(settings), WEIGHTS: as_safetensors(stored), **files})


def _refuse(config: Mapping[str, Any], path: Path) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{path}: peft_type is {kind!r}; Inlay reads LORA")
    refuse(config, _REFUSED, _HARMLESS, path)
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{path}: bias={config['bias']} also trains biases of the base; Inlay supports bias=none")
    if config.get("init_lora_weights", True) not in _PLAIN_STARTS:
        start = config["init_lora_weights"]
        raise AdapterError(
            f"{path}: init_lora_weights={start} changes the base's own weights; convert it to plain LoRA"
        )
    task = config.get("task_type")
    if task not in (*_TASKS, *_HEADLESS):
        raise AdapterError(
            f"{path}: task_type={task} has a head that Inlay does not support. Valid: {', '.join(_TASKS)}"
        )


def _read_changes(keys: Keys, base: Base, config: Mapping[str, Any]) -> dict[str, lowrank.Change]:
    changes: dict[str, lowrank.Change] = {}
    for path, sites in lowrank.leaves(base.sites).items():
        for module in (path, f"{model_prefix(base)}.{path}"):
            names = [f"{module}.lora_{side}.weight" for side in "AB"]
            if not any(name in keys for name in names):
                continue
            rank = lowrank.rank_of(_look_up(config, "rank_pattern", module, keys.path, config.get("r")), keys.path)
            alpha = _look_up(config, "alpha_pattern", module, keys.path, config.get("lora_alpha"))
            scale = number(alpha, "lora_alpha", keys.path) / (math.sqrt(rank) if config.get("use_rslora") else rank)
            changes[path] = lowrank.take(keys, names, sites, module, scale, rank)
    if not changes:
        raise AdapterError(f"{keys.path} holds no LoRA matrix for a projection of {base.name}")
    return changes


def _look_up(config: Mapping[str, Any], key: str, path: str, where: Path, otherwise: object) -> object:
    """The value of the first pattern that is the path or its end, as peft looks it up."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, Mapping) or len(patterns) > _MOST_PATTERNS:
        raise AdapterError(f"{where}: {key} is not a table of at most {_MOST_PATTERNS} numbers by pattern")
    for pattern, value in patterns.items():
        if _SLOW.search(pattern):
            raise AdapterError(f"{where}: {key} has the pattern {pattern[:60]!r}, which may take for ever to match")
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error as error:
            raise AdapterError(f"{where}: {key} has the pattern {pattern!r}, which is not valid: {error}") from None
    return otherwise


def _read_head(keys: Keys, base: Base, config: Mapping[str, Any]) -> HeadParts | None:
    auto = _TASKS.get(str(config.get("task_type")))
    mapping = config.get("auto_mapping")
    if auto is None and isinstance(mapping, Mapping):
        class_name = str(mapping.get("base_model_class"))
        auto = next((kind for kind in _TASKS.values() if class_name.endswith(f"For{kind}")), None)
    known = {key for layout in layouts(base) for key in layout.names()}
    tensors = {key: keys.take(key) for key in keys.left() if key in known}
    keys.finish()
    if tensors:
        config = peek(keys.path / MODEL_CONFIG) or peek(keys.path / "config.json")
        return read_head(tensors, auto, base, config, keys.path)
    if auto is not None:
        raise AdapterError(f"{keys.path}: it was trained for {auto}, but its weights have no head")
    return None


def _make_settings(changes: Mapping[str, lowrank.Change], base: Base) -> dict[str, Any]:
    """`adapter_config.json`; ranks differ where a fused projection has several."""
    ranks = {path: change.down.shape[0] for path, change in changes.items()}
    rank = min(ranks.values())
    scale = next(iter(changes.values())).scale
    patterns = {path: wider for path, wider in ranks.items() if wider != rank}
    first = base.model.get_submodule(next(iter(changes)))
    return {
        "peft_type": "LORA",
        "task_type": None,
        "auto_mapping": None,
        "base_model_name_or_path": base.name,
        "revision": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": short(scale * rank),
        "lora_dropout": 0.0,
        "target_modules": _shortest_ends(set(changes), base),
        "rank_pattern": {re.escape(path): wider for path, wider in patterns.items()},
        "alpha_pattern": {re.escape(path): short(scale * wider) for path, wider in patterns.items()},
        "use_rslora": False,
        "use_dora": False,
        "bias": "none",
        "fan_in_fan_out": stores_in_out(first),
        "modules_to_save": None,
        "init_lora_weights": True,
        "layers_to_transform": None,
        "layers_pattern": None,
    }


_HEAD_PATHS = ("classifier.dense", "pooler.dense", "lm_head.dense", "cls.predictions.transform.dense")
"""Modules of heads whose names end like those of projections."""


def _shortest_ends(paths: set[str], base: Base) -> list[str]:
    """The shortest ends of paths that name these projections and nothing else."""
    names = [name for name, _ in base.model.named_modules() if name] + list(_HEAD_PATHS)
    targets: set[str] = set()
    for path in paths:
        words = path.split(".")
        ends = [".".join(words[-n:]) for n in range(1, len(words) + 1)]
        targets.add(next((end for end in ends if _ending_with(end, names) <= paths), path))
    return sorted(targets)


def _ending_with(end: str, names: list[str]) -> set[str]:
    return {name for name in names if name == end or name.endswith(f".{end}")}


def _module_to_save(path: str) -> str:
    """The module of a class that holds a part of its head: the pooler of the encoder, else the topmost."""
    return "pooler" if "pooler" in path.split(".") else path.split(".")[0]
