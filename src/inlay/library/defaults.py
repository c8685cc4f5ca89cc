"""The defaults of the first format: what old files mean where they say nothing.

A default may change, but old files must keep their meaning. Adapter files and cards hold every option (format 2). Those
of format 1 hold only what differs from the defaults below. So do the settings of a run (cards, checkpoints, sweeps) in
every format: their meaning never changes with a default.

Nothing here ever changes. A new option or setting is added with the value that does what was done before.
`tests/library/test_defaults.py` notices one that was forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inlay import config
from inlay.errors import SpecError
from inlay.registry import Registry, methods, tasks

_ALL = {"layers": "all", "mixout": 0.0, "mixout_unit": "neuron"}
_GATES = {"low": -1.5, "high": 1.5, "temperature": 1.0, "gate": 5.0}
METHODS: dict[str, dict[str, Any]] = {
    "adapterbias": {**_ALL, "share": "none", "alpha": True, "l0": 0.0, **_GATES, "gate_lr": 0.0},
    "bitfit": {**_ALL, "sites": "all"},
    "diffprune": {**_ALL, "target": 0.005, "l0": 1.25e-7, **_GATES, "gate_lr": 0.0, "structured": False},
    "finetune": {**_ALL, "top": None},
    "frozen": {**_ALL},
    "houlsby": {
        **_ALL,
        "size": 64,
        "activation": "gelu",
        "init": 0.01,
        "where": "both",
        "share": "none",
        "norms": None,
        "parallel": False,
        "depth": 1,
        "inner_norm": False,
        "normed": False,
    },
    "lora": {**_ALL, "rank": 8, "alpha": 16.0, "sites": "attn.q+attn.v"},
    "norms": {**_ALL},
}
TASKS: dict[str, dict[str, Any]] = {
    "classification": {"max_length": None, "long": "cut", "temperature": 1.0},
    "mlm": {"max_length": None, "share": 0.15},
    "multilabel": {"max_length": None, "long": "cut", "cutoff": 0.5, "temperature": 1.0},
    "qa": {"max_length": None, "stride": 128, "longest": 30, "no_answer": False},
    "regression": {"max_length": None, "long": "cut", "mean": 0.0, "scale": 1.0},
    "tagging": {"max_length": None, "temperature": 1.0},
}
RUN: dict[str, Any] = {
    "name": "",
    "task": None,
    "method": "houlsby",
    "head": "linear",
    "pool": "auto",
    "text": None,
    "pair": None,
    "label": None,
    "format": None,
    "encoding": None,
    "val": None,
    "val_size": None,
    "test": None,
    "train_size": None,
    "stratify": True,
    "lr": None,
    "epochs": 5,
    "max_steps": None,
    "batch_size": 16,
    "max_length": None,
    "long": "cut",
    "warmup": 0.1,
    "weight_decay": 0.0,
    "decay": "difference",
    "clip": 1.0,
    "dropout": True,
    "class_weights": False,
    "eval_every": None,
    "patience": None,
    "metric": None,
    "seed": 0,
    "pretrain_on_text": False,
    "pretrain_epochs": 3,
    "skip_bad_rows": False,
}
"""The first settings of a run. All of them are part of a run's identity in a sweep."""
LATER: dict[str, Any] = {
    "choose_by": "score",
    "few_shot": False,
    "few_shot_steps": None,
    "few_shot_temperature": 0.1,
    "folds": 0,
    "fold": None,
    "teacher": None,
    "unlabelled": None,
    "split_seed": None,
    "test_size": None,
    "pretrain_lr": None,
    "pretrain_batch_size": None,
    "attention_dropout": False,
    "schedule": "linear",
    "head_dropout": None,
}
"""Settings that came later, with the value that does what was done before. They are part of a run's identity only
if they have another value."""
CHANGED: frozenset[str] = frozenset({"epochs", "choose_by", "few_shot", "folds"})
"""Settings whose default is another one today."""
CHANGED_OPTIONS: dict[str, frozenset[str]] = {
    "adapterbias": frozenset({"low", "high", "temperature", "gate"}),
    "diffprune": frozenset({"gate_lr"}),
}
"""The same for options, by the name of their method."""
RATES: dict[str, float] = {"adapterbias": 1e-3, "bitfit": 1e-3}
"""The first learning rates of methods whose own rate is another one today; few-shot runs had half of it."""

_TABLES = {methods.kind: METHODS, tasks.kind: TASKS}
_REGISTRIES = {"method": methods, "task": tasks}


def in_full(registry: Registry, spec: str) -> str:
    """A spec with all its options; unchanged if its name is not known here or it cannot be read."""
    try:
        options = _read(registry, spec)
    except SpecError:
        return spec
    return spec if options is None else config.full(options.name, options)


def shortest(registry: Registry, spec: str, first: bool = False) -> str:
    """The shortest spec that means the same today; unchanged if its name is not known here.

    Args:
        first: options that it does not name have the defaults of the first format.
    """
    wanted = _read(registry, spec, first)
    if wanted is None:
        return spec
    short = config.canonical(wanted.name, wanted)
    return short if _read(registry, short) == wanted else config.full(wanted.name, wanted)


def today(written: Mapping[str, Any], key: str) -> str:
    """The spec of an adapter file's or card's method or task, as it is written today; empty if it has none.

    Without `full`, options that it does not name have the defaults of the first format.
    """
    spec, full = str(written.get(key) or ""), written.get("full")
    if not spec:
        return ""
    if isinstance(full, Mapping):
        spec = _both(spec, str(full.get(key) or spec))
    return shortest(_REGISTRIES[key], spec, first=not isinstance(full, Mapping))


def _both(spec: str, full: str) -> str:
    """All options of a full spec, replaced by those that the short form names."""
    name, stated = config.split_spec(spec)
    other, options = config.split_spec(full)
    if name != other:
        raise SpecError(f"it is a {name} by its spec, and a {other} by its options")
    return f"{name}:{','.join(f'{k}={v}' for k, v in merged.items())}" if (merged := {**options, **stated}) else name


def known(registry: Registry, spec: str) -> type[Any] | None:
    """The method or task that a spec names; None if it is not known here."""
    try:
        return registry.find(config.split_spec(spec)[0])
    except SpecError:
        return None


def against_first(registry: Registry, options: Any) -> str:
    """The spec of a method or task with the options that differ from the defaults of the first format."""
    first = _TABLES[registry.kind].get(options.name)
    moot = {key: getattr(options, key) for key in getattr(options, "moot", ())}
    return config.canonical(options.name, options, None if first is None else {**first, **moot})


def settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that must be written down."""
    first = {**RUN, **LATER}
    stated = {**run, "method": lasting(run["method"])}
    return {key: value for key, value in stated.items() if key not in first or value != first[key]}


def restated(written: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that were written down, with those added that keep their meaning under today's defaults.

    Methods are not looked up: a list of thousands of cards needs none of them.
    """
    settings = {key: {**RUN, **LATER}[key] for key in sorted(CHANGED) if key not in written} | dict(written)
    method = settings.get("method", RUN["method"])
    rate = RATES.get(method.split(":")[0].strip()) if isinstance(method, str) else None
    if rate is not None and settings.get("lr") is None:
        settings["lr"] = rate / 2 if settings.get("few_shot") else rate
    if isinstance(method, str) and (silent := _silent(method)):
        name, stated = config.split_spec(method)
        options = {**stated, **{key: config.text_of(METHODS[name][key]) for key in silent}}
        settings["method"] = f"{name}:{','.join(f'{key}={text}' for key, text in options.items())}"
    return settings


def lasting(spec: str) -> str:
    """A method's spec, with options added that keep its meaning if a default of the first format has changed."""
    return against_first(methods, _read(methods, spec)) if _silent(spec) else spec


def _silent(spec: str) -> list[str]:
    """Options that a spec does not name, and whose first default was another one."""
    try:
        name, stated = config.split_spec(spec)
    except SpecError:  # an error when it is run
        return []
    gated = name != "adapterbias" or stated.get("l0", "0") not in ("0", "0.0")
    moot = () if gated else (*_GATES, "gate_lr")  # as AdapterBias.moot has it, which needs torch
    changed = CHANGED_OPTIONS.get(name, frozenset()).difference(moot)
    return [key for key in METHODS.get(name, {}) if key in changed and key not in stated]


def _read(registry: Registry, spec: str, first: bool = False) -> Any:
    """The method or task of a spec; None if its name is not known here."""
    name, stated = config.split_spec(spec)
    cls = known(registry, spec)
    if cls is None:
        return None
    old = _TABLES[registry.kind].get(name, {}) if first else {}
    return config.build(cls, name, {**config.texts(cls, old), **stated})
