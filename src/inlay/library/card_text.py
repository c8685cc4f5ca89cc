"""A card in words: what an adapter does, how large and how good it is, how it was trained and how it is used.

Only cards are read here, never tensors, so that thousands of adapters can be listed at once. A card may come from
elsewhere and say anything: a value of the wrong type counts as missing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from inlay.library.defaults import restated
from inlay.untrusted import one_line as one_line

Card = Mapping[str, Any]

_FP32 = 4
"""Bytes of a parameter of a full model, and of the base it is compared with."""
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_DOES = {
    "classification": "Gives {pair} one of {labels} labels",
    "multilabel": "Gives {pair} any of {labels} labels",
    "regression": "Gives {pair} a number",
    "tagging": "Gives every word of a text one of {labels} tags",
    "qa": "Finds the answer to a question in a text",
    "mlm": "Fills masked words in a text",
}


def section(card: Card, key: str) -> Card:
    """A part of a card that has its own fields; empty if the card has no such part."""
    value = card.get(key)
    return value if isinstance(value, Mapping) else {}


def settings(card: Card) -> Card:
    """The settings of the run that trained it, as far as they are not today's defaults."""
    config = section(card, "config")
    if not config:
        return {}
    stated = restated(config)
    # a run with a set length is not few-shot by itself
    return {key: value for key, value in stated.items() if stated.get("epochs") is None or (key, value) not in _USUAL}


def labels(card: Card) -> list[str]:
    """The label names."""
    names = card.get("labels")
    return [str(label) for label in names] if isinstance(names, list | tuple) else []


def metrics(card: Card) -> dict[str, dict[str, float]]:
    """split -> metric -> value."""
    splits = {str(split): scores for split, scores in section(card, "metrics").items() if isinstance(scores, Mapping)}
    numbers = {
        split: {str(name): float(value) for name, value in scores.items() if isinstance(value, int | float)}
        for split, scores in splits.items()
    }
    return {split: scores for split, scores in numbers.items() if scores}


def size(number: float) -> str:
    """`14.2 MB`; a thousand, not 1024, is the step."""
    for unit in _UNITS:
        if number < 999.95 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"


def percent(share: float) -> str:
    """A share of the base in two decimals; one that rounds to nothing is shown as smaller than the last digit."""
    return "< 0.01 %" if 0 < share < 0.00005 else f"{100 * share:.2f} %"


def shortened(text: str, most: int) -> str:
    """The text, cut to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def clock(seconds: float) -> str:
    """`1:05:09` or `5:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def kind(card: Card) -> str:
    """The task's name, without its options."""
    return str(card.get("task") or "").partition(":")[0]


def method_name(card: Card) -> str:
    """The method's name, without its options."""
    return str(card.get("method") or "").partition(":")[0]


def does(card: Card) -> str:
    """What it does, in a sentence without its full stop."""
    if not kind(card):
        return "Has no head: it gives hidden states"
    pair = "two texts" if reads_pairs(card) else "a text"
    sentence = _DOES.get(kind(card), "Answers the task {task}")
    return sentence.format(pair=pair, labels=len(labels(card)), task=kind(card))


def reads_pairs(card: Card) -> bool:
    """Whether it was trained on two texts."""
    return kind(card) == "qa" or bool(section(card, "columns").get("pair"))


def base_name(card: Card) -> str:
    """The base's name if the card has one, else its fingerprint, cut short."""
    return str(card.get("base_name") or short(card.get("base")))


def short(digest: object) -> str:
    """The first twelve digits of a hash, enough for people."""
    return str(digest or "").removeprefix("sha256:")[:12]


def share(card: Card) -> float | None:
    """Its share of the base's parameters."""
    value = section(card, "parameters").get("share_of_base")
    return float(value) if isinstance(value, int | float) else None


def deciding(card: Card) -> tuple[str, str, float] | None:
    """The metric that chose the best state, where it was measured, and its value."""
    metric, scores = str(card.get("metric") or ""), metrics(card)
    split = next((split for split in ("validation", *scores) if metric in scores.get(split, {})), None)
    return None if split is None else (metric, split, scores[split][metric])


def scored(card: Card) -> str:
    """How the validation score is related to the state that was kept."""
    config, folds = settings(card), card.get("folds")
    if section(card, "sweep").get("ensemble") and card.get("members"):
        return "its members were chosen on the validation rows, so the score is slightly optimistic"
    if isinstance(folds, int) and folds:
        return f"{folds} folds gave the validation score, each on rows it had not seen; this adapter saw all of them"
    if config.get("choose_by") == "last" or config.get("epochs") == 0:
        return "the last state was kept; no checkpoint was picked on the validation rows"
    chose = "the loss" if config.get("choose_by") == "loss" else str(card.get("metric"))
    return f"{chose} on the validation rows picked the checkpoint, so the score is slightly optimistic"


def trained_on(card: Card) -> Mapping[str, Any]:
    """The settings that say which rows it has learned from; for an ensemble of a sweep, those of its first member."""
    members = card.get("members")
    if not section(card, "config") and section(card, "sweep") and isinstance(members, list) and members:
        return section(members[0], "config")
    return section(card, "config")


def data_name(card: Card) -> str:
    """What it was trained on, without folders of the machine where that was."""
    data = str(trained_on(card).get("data") or "")
    files = data.split(",")  # several, if each of them has an extension
    joined = all("." in file.replace("\\", "/").rpartition("/")[2] for file in files)
    return ",".join(map(_without_folders, files if joined else [data]))


def _without_folders(data: str) -> str:
    windows = len(data) > 2 and data[1] == ":"
    parts = [part for part in (data.replace("\\", "/") if windows else data).split("/") if part]
    if not (windows or data.startswith(("/", ".", "~")) or len(parts) > 2) or not parts:
        return data  # a file here, or a dataset of the hub
    return "/".join(parts[-2:]) if parts[-1].partition(".")[0] in ("train", "data") else parts[-1]


_ASIDE = ("data", "name")
_USUAL = (("few_shot", False), ("folds", 0))
_CAN_BE_NONE = ("clip",)
"""Settings that `none` turns off; for all others `none` is today's default."""
_FLAGS = {
    ("stratify", False): "--no-stratify",
    ("dropout", False): "--no-dropout",
    ("class_weights", True): "--class-weights",
    ("pretrain_on_text", True): "--pretrain-on-text",
    ("attention_dropout", True): "--attention-dropout",
    ("skip_bad_rows", True): "--skip-bad-rows",
    ("few_shot", True): "--few-shot",
    ("few_shot", False): "--no-few-shot",
}


def train_command(card: Card, data: str | None = None) -> str:
    """The command that trains it again; empty if the card does not say how."""
    config = settings(card)
    if not config.get("data") or str(config["data"]).endswith("rows given as objects"):
        return ""
    words = ["inlay", "train", data or str(config["data"]), "--name", str(config.get("name") or card.get("name"))]
    for key, value in config.items():
        if key in _ASIDE:
            continue
        if isinstance(value, bool):
            words += [_FLAGS[key, value]] if (key, value) in _FLAGS else []
        elif value is not None or key in _CAN_BE_NONE:
            words += [f"--{key.replace('_', '-')}", "none" if value is None else str(value)]
    members = section(card, "ensemble").get("members")
    words += ["--ensemble", str(members)] if isinstance(members, int) else []
    base = str(card.get("base_name") or "")
    return shlex.join([*words, *(["--base", base] if base else [])])


def predict_command(card: Card, ref: str, library: str | None = None) -> str:
    """How to use it on the command line; empty if it gives no answers."""
    if kind(card) in ("", "mlm"):
        return ""
    return f"inlay predict {shlex.quote(ref)} {' --pair '.join(_example(card))}{in_library(library)}"


def _example(card: Card) -> list[str]:
    """An example of its input: a text, or two."""
    if kind(card) == "qa":
        return ['"a question"', '"a text"']
    return ['"a text"', '"another text"'] if reads_pairs(card) else ['"a text"']


def in_library(library: str | None) -> str:
    """What a command needs to find a library that is not the default one."""
    return "" if library is None else f" --library {shlex.quote(library)}"


def library_expression(library: str | None) -> str:
    """The same in Python."""
    return f"inlay.Library({'' if library is None else _quoted(library)})"


def snippet(card: Card, source: str, ref: str) -> str:
    """How to use it in Python; `source` is the expression that gives the adapter."""
    base = str(card.get("base_name") or "")
    lines = ["import inlay", "", f"host = inlay.Host({_quoted(base) if base else ''})"]
    lines += [f"host.load({source}, {_quoted(ref)})"]
    if kind(card) not in ("", "mlm"):
        example = ", ".join(_example(card))
        lines += [f"print(host.predict([({_quoted(ref)}, {f'({example})' if reads_pairs(card) else example})]))"]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class Cost:
    """The size of all tasks of one base, compared with the base."""

    base: str
    tasks: int
    bytes: int
    base_bytes: int | None
    """None if no card says how large the base is."""

    @property
    def line(self) -> str:
        """`12 tasks: 14.2 MB beside one base of 90.9 MB = 1.16x; 12 full models: 12x (1.1 GB)`."""
        plural = "" if self.tasks == 1 else "s"
        begin = f"{self.tasks:,} task{plural}: {size(self.bytes)} beside"
        if not self.base_bytes:
            return f"{begin} their base, of unknown size"
        times = 1 + self.bytes / self.base_bytes
        shown = f"{times:.2f}x" if times >= 1.005 else f"{times:.4f}x"
        full = f"{self.tasks:,} full model{plural}: {self.tasks:,}x ({size(self.tasks * self.base_bytes)})"
        return f"{begin} one base of {size(self.base_bytes)} = {shown}; {full}"


def costs(cards: Iterable[tuple[Card, int]]) -> list[Cost]:
    """The cost of cards, each with its bytes: one for every base, the one with most tasks first.

    A full model is counted in fp32, as the base beside it is: 4 bytes for every parameter.
    """
    groups: dict[str, list[tuple[Card, int]]] = {}
    for card, number in cards:
        groups.setdefault(str(card.get("base") or "").partition("+")[0], []).append((card, number))
    costs_of_bases = []
    for group in groups.values():
        sizes = [card["base_parameters"] for card, _ in group if isinstance(card.get("base_parameters"), int)]
        name = next((base_name(card) for card, _ in group if card.get("base_name")), base_name(group[0][0]))
        whole = _FP32 * max(sizes) if sizes else None
        costs_of_bases.append(Cost(os.path.basename(name) or name, len(group), sum(n for _, n in group), whole))
    return sorted(costs_of_bases, key=lambda cost: -cost.tasks)
