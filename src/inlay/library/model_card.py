"""The model card, README.md: written at export, from an adapter's card alone.

Its first lines are YAML, by which the hub finds it: its base, task and metrics. Strings that YAML could misread are
written as JSON. No licence is guessed. Folders of the machine that trained it are left out.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inlay.library import card_text
from inlay.library.card_text import Card, one_line

_PIPELINES = {
    "classification": "text-classification",
    "multilabel": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "qa": "question-answering",
    "mlm": "fill-mask",
}
_MODELS = {
    "classification": "AutoModelForSequenceClassification",
    "multilabel": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "qa": "AutoModelForQuestionAnswering",
}
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(/[A-Za-z0-9_.-]+)?")
_TAKEN = frozenset("true false yes no on off null y n".split())
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)?")
_HTML = re.compile(r"[<>&]")
_LABELS = 40
"""At most this many labels are named, the first ones."""


def render_model_card(card: Card, *, repo: str | None = None, peer: str | None = None) -> str:
    """A model card in Markdown, with the hub's front matter.

    Args:
        card: what a library knows about the adapter.
        repo: the repo to pull it from; by default it is used from its folder.
        peer: `peft` or `adapterhub`, if the folder is written for one of them.
    """
    lines = ["---", *_yaml(_front(card, peer)), "---", "", f"# {_plain(_name(card))}", ""]
    use = _use(card, repo) if peer is None else _use_in(peer, card)
    for part in (_what(card), use, _metrics(card), _labels(card), _training(card), _limits(card)):
        paragraph = list(part)
        lines += [*paragraph, ""] if paragraph else []
    return "\n".join(lines).rstrip("\n") + "\n"


def _front(card: Card, peer: str | None) -> dict[str, Any]:
    base, tags = card_text.base_name(card), ["inlay", "adapter", card_text.method_name(card), card_text.kind(card)]
    library = {"peft": "peft", "adapterhub": "adapter-transformers"}.get(peer or "", "inlay")
    hub = base if base and _REPO.fullmatch(base) and card.get("base_name") and not os.path.isdir(base) else None
    front: dict[str, Any] = {"base_model": hub, "base_model_relation": "adapter"} if hub else {}
    front |= {"library_name": library}
    front |= {"pipeline_tag": _PIPELINES[card_text.kind(card)]} if card_text.kind(card) in _PIPELINES else {}
    front |= {"tags": list(dict.fromkeys(one_line(tag) for tag in tags if tag))}
    results = [_result(card, split, scores) for split, scores in card_text.metrics(card).items() if scores]
    return front | ({"model-index": [{"name": _name(card), "results": results}]} if results else {})


def _result(card: Card, split: str, scores: Mapping[str, float]) -> dict[str, Any]:
    data = one_line(card_text.data_name(card)) or "unknown"
    return {
        "task": {"type": _PIPELINES.get(card_text.kind(card), one_line(card_text.kind(card)) or "other")},
        "dataset": {"name": data, "type": data, "split": one_line(split)},
        "metrics": [
            {"type": one_line(name), "value": round(value, 6)} for name, value in scores.items() if math.isfinite(value)
        ],
    }


def _what(card: Card) -> Iterator[str]:
    counts = card_text.section(card, "parameters")
    share = card_text.share(card)
    of_base = f", {share:.2%} of its base" if share is not None else ""
    trained = f"{counts['adapter']:,} trained parameters{of_base}; " if isinstance(counts.get("adapter"), int) else ""
    yield (
        f"{_plain(card_text.does(card))}. An adapter for {_base(card)}, which stays as it is: {trained}"
        f"{card_text.size(_int(card.get('bytes')))} with its head. Method {_code(card.get('method'))}, "
        f"Inlay {_plain(card.get('inlay') or '?')}."
    )


def _base(card: Card) -> str:
    name = card_text.base_name(card)
    if card.get("base_name") and _REPO.fullmatch(name) and "/" in name:
        return f"[{name}](https://huggingface.co/{name})"
    return _code(os.path.basename(name) or name)


def _use(card: Card, repo: str | None) -> Iterator[str]:
    name = _name(card)
    get = f"inlay library pull {repo}" if repo else f"inlay library import . --name {shlex.quote(name)}"
    commands = [get, card_text.predict_command(card, name)]
    source = f"inlay.Library().get({json.dumps(name)})" if repo else 'inlay.Adapter.read("adapter.safetensors")'
    yield from ("## Use it", "", *_block([command for command in commands if command]), "")
    yield from _block(card_text.snippet(_without_folders(card), source, name).splitlines(), "python")
    if repo is None:
        yield from ("", "Both in this folder. Any number of other adapters of this base can be loaded beside it.")


def _use_in(peer: str, card: Card) -> Iterator[str]:
    """How to use it in Python with the library that the folder is written for."""
    name, count = card_text.base_name(_without_folders(card)), len(card_text.labels(card)) or 1
    model, base = _MODELS.get(card_text.kind(card), "AutoModel"), json.dumps(name)
    if peer == "peft":
        options = f", num_labels={count}" if model.endswith("Classification") else ""
        lines = ["from peft import PeftModel", f"from transformers import {model}", ""]
        lines += [f"model = {model}.from_pretrained({base}{options})", 'model = PeftModel.from_pretrained(model, ".")']
    else:
        lines = ["from adapters import AutoAdapterModel", "", f"model = AutoAdapterModel.from_pretrained({base})"]
        lines += ['model.load_adapter(".", set_active=True)']
    yield from ("## Use it", "", *_block(lines, "python"))


def _metrics(card: Card) -> Iterator[str]:
    scores = card_text.metrics(card)
    if not scores:
        return
    yield from ("## Metrics", "", f"| | {' | '.join(map(_plain, scores))} |", f"|---|{'---|' * len(scores)}")
    for name in dict.fromkeys(name for values in scores.values() for name in values):
        cells = (f"{values[name]:.4f}" if name in values else "" for values in scores.values())
        yield f"| {_plain(name)} | {' | '.join(cells)} |"
    if card.get("metric") and "validation" in scores:
        sentence = _plain(card_text.scored(card))
        yield from ("", f"{sentence[0].upper()}{sentence[1:]}.")


def _labels(card: Card) -> Iterator[str]:
    names = card_text.labels(card)
    if names and card_text.kind(card) in ("classification", "multilabel", "tagging"):
        rest = f" and {len(names) - _LABELS} more" if len(names) > _LABELS else ""
        yield from ("## Labels", "", ", ".join(_code(name) for name in names[:_LABELS]) + rest)


def _training(card: Card) -> Iterator[str]:
    data = card_text.data_name(card)
    facts = [f"Data: {_code(data)}" if data else "", f"hash {_code(card['data'])}" if card.get("data") else ""]
    columns = card_text.section(card, "columns")
    facts += [", ".join(f"{_plain(role)} from {_code(name)}" for role, name in columns.items() if name)]
    details = [f"seed {_int(card.get('seed'))}"]
    best = card_text.section(card, "best")
    chosen = "" if card_text.settings(card).get("choose_by") == "last" else "best "
    details += [f"{chosen}after {_int(best.get('step'))} steps"] if best else []
    details += [f"{card['seconds']:.0f} s" if isinstance(card.get("seconds"), int | float) else ""]
    yield from ("## How it was trained", "")
    if any(facts):
        yield f"{', '.join(filter(None, facts))}."
    yield f"{', '.join(filter(None, details)).capitalize()}. Settings that are not named are the defaults."
    if command := card_text.train_command(_without_folders(card), data):
        yield from ("", *_block([command]))
    parents = card.get("parents")
    if isinstance(parents, Sequence) and not isinstance(parents, str) and parents:
        yield from ("", f"It descends from {', '.join(_code(parent) for parent in parents)}.")


def _limits(card: Card) -> Iterator[str]:
    yield from ("## Limits", "")
    fingerprint = _code(card_text.short(card.get("base")))
    yield f"- It belongs to this base alone (fingerprint {fingerprint}); another is refused."
    if card_text.metrics(card):
        yield "- The metrics come from rows like its training data. Expect lower scores on other kinds of text."
    if card_text.kind(card) in ("classification", "multilabel", "tagging"):
        yield "- It only knows the labels above, and answers with them whatever the text is."
    yield "- Whatever the base learned from its own data, biases included, is still there."


def _without_folders(card: Card) -> dict[str, Any]:
    """The card with only the last part of every path."""
    name = str(card.get("base_name") or "")
    config = dict(card_text.section(card, "config"))
    config |= {key: os.path.basename(str(config[key])) for key in ("val", "test", "unlabelled") if config.get(key)}
    return {**card, "config": config, "base_name": name if _REPO.fullmatch(name) else os.path.basename(name)}


def _name(card: Card) -> str:
    return one_line(card.get("name") or "adapter")


def _plain(text: object) -> str:
    """Text that Markdown and HTML show unchanged."""
    shown = one_line(text)
    return shown if _PLAIN.fullmatch(shown) else re.sub(r"([\\`*_\[\]|#])", r"\\\1", html.escape(shown, quote=False))


def _code(text: object) -> str:
    """Text as code; characters with a meaning in HTML are escaped, since not every page renders Markdown."""
    shown = one_line(text).replace("`", "'").replace("|", "¦")
    if not _HTML.search(shown):
        return f"`{shown}`" if shown else "` `"
    return f"<code>{''.join(c if c.isalnum() or c == ' ' else f'&#{ord(c)};' for c in shown)}</code>"


def _block(lines: Sequence[str], language: str = "") -> list[str]:
    """Lines to be copied."""
    shown = ["".join(c if c.isprintable() else " " for c in line) for line in lines]
    if any(_HTML.search(line) or "```" in line for line in shown):
        first, *rest = [html.escape(line, quote=False) for line in shown]
        return [f"<pre><code>{first}", *rest, "</code></pre>"]
    return [f"```{language}", *shown, "```"]


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _yaml(value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A mapping of strings, numbers, lists and mappings, in block style."""
    for key, child in value.items():
        if isinstance(child, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml(child, f"{indent}  ")
        elif isinstance(child, list):
            yield f"{indent}{key}:"
            for item in child:
                if isinstance(item, Mapping):
                    first, *rest = _yaml(item, f"{indent}  ")
                    yield from (f"{indent}- {first.strip()}", *rest)
                else:
                    yield f"{indent}- {_scalar(item)}"
        else:
            yield f"{indent}{key}: {_scalar(child)}"


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _TAKEN:
        return value
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
