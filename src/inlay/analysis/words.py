"""Which words AdapterBias shifts most: a cloud, by alpha summed over layers (Fu et al. 2022, figures 6, 7, B to E), or
one for each layer.

A word's weight in a text is the sum of alpha over layers, as the mean over its tokens; its weight is the mean (or the
sum) over all its occurrences. Special tokens and punctuation are left out; upper and lower case are one word.

**Negative sums:** alpha's sign only has a meaning together with v's. A word's size is the absolute value of its weight,
and its colour shows the sign, so that words shifted either way are seen. `negative="drop"` leaves out those below zero,
like a cloud of the largest weights; the paper does not say what it did.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from inlay import drawing
from inlay.analysis import texts
from inlay.analysis.finding import Finding
from inlay.engine.host import Host
from inlay.errors import DataError, RunError
from inlay.library.card_text import shortened
from inlay.tasks import Example

Layers = Literal["all", "lower", "upper", "each"]
Over = Literal["mean", "sum"]
Negative = Literal["colour", "drop"]
Weights = Mapping[str, tuple[float, int]]
"""Word -> its weight, and how often it occurs."""

_SIZE = (690, 350)
"""The size of a cloud in pixels."""
_FULL = 0.5
"""The share of a cloud that words may cover: in a fuller one, the last words do not fit at their size."""
_WIDE = 0.62
"""A letter's width as a share of the font's size."""
_LONGEST = 30
"""The most letters of a word that are drawn."""
_SMALLEST = 0.3
"""The last word's size as a share of the first word's: the first hundred weights are often close to one another."""
_SIGNS = {1: (r"$\alpha > 0$", drawing.COLOURS[0]), -1: (r"$\alpha < 0$", drawing.COLOURS[1])}


def words(
    host: Host,
    name: str,
    examples: Sequence[Example],
    *,
    layers: Layers | None = None,
    over: Over = "mean",
    negative: Negative = "colour",
    least: int = 1,
    top: int = 80,
    seed: int = 0,
    font: str | Path | None = None,
) -> Finding:
    """A cloud of the words that an adapter shifts most.

    Args:
        layers: the layers that are summed: `all`, the `lower` or the `upper` half of them; None draws these three, and
            `each` draws a cloud per layer.
        over: a word's weight is the mean over its occurrences, or their sum.
        negative: `colour` draws words of negative weight too, in another colour; `drop` leaves them out.
        least: leave out words that occur less often.
        top: how many words a cloud has.
        seed: of the words' places: with the same seed, the same words lie in the same places.
        font: a TrueType file, for scripts that DejaVu Sans does not have.
    """
    chosen = (("layers", layers or "all", Layers), ("over", over, Over), ("negative", negative, Negative))
    for option, value, kind in chosen:
        if value not in get_args(kind):
            raise RunError(f"{option}={value} is not valid: expected {', '.join(get_args(kind))}")
    if least < 1 or top < 1:
        raise RunError(f"least={least}, top={top} is not valid: expected at least 1")
    texts.refuse_without_alpha(host, [name])
    seen = texts.read(host, name, examples)
    if not any(text.words for text in seen):
        raise DataError(f"there is not one word in the {len(seen)} texts that {name} was shown")
    alphas = texts.weights(host, [(name, text) for text in seen])
    clouds: dict[str, Weights] = {}
    for part, span in _spans(host.base.sites.depth, layers).items():
        kept = _choose(_weigh(seen, [alpha[span] for alpha in alphas], over), negative, least, top)
        if not kept and layers != "each":
            raise DataError(_explain_empty(name, _title(part), negative, least))
        clouds |= {part: kept} if kept else {}  # an adapter need not change every layer
    if not clouds:
        raise DataError(_explain_empty(name, "any layer", negative, least))
    rows = [(part, word, *weight) for part, cloud in clouds.items() for word, weight in cloud.items()]
    total = sum(len(text.words) for text in seen)
    summed = "in each layer" if layers == "each" else "summed over layers"
    about = f"words by alpha of {name}, {summed}: {total:,} words of {len(seen):,} texts"
    summary = {_title(part): ", ".join(list(cloud)[:5]) for part, cloud in clouds.items()}
    columns = ("layers", "word", "weight", "count")
    return Finding("words", about, columns, rows, lambda: _draw(name, clouds, seed, font), summary)


_TITLES = {"all": "all layers", "lower": "the lower half", "upper": "the upper half"}


def _title(part: str) -> str:
    return _TITLES.get(part, f"layer {part}")


def _spans(depth: int, layers: Layers | None) -> dict[str, slice]:
    """Panel -> the layers that are summed in it; a middle layer belongs to the upper half."""
    if layers == "each":
        return {str(layer): slice(layer, layer + 1) for layer in range(depth)}
    if depth < 2 and layers in ("lower", "upper"):
        raise RunError(f"layers={layers}: a model of one layer has no halves; leave it out")
    parts = {"all": slice(0, depth), "lower": slice(0, depth // 2), "upper": slice(depth // 2, depth)}
    return parts if layers is None and depth > 1 else {layers or "all": parts[layers or "all"]}


def _weigh(seen: Sequence[texts.Text], alphas: Sequence[torch.Tensor], over: Over) -> Weights:
    weights_of: dict[str, list[float]] = {}
    for text, alpha in zip(seen, alphas, strict=True):
        of_token = alpha.double().sum(0).tolist()
        for word, tokens in text.words:
            weights_of.setdefault(word, []).append(sum(of_token[token] for token in tokens) / len(tokens))
    return {word: (sum(w) / (len(w) if over == "mean" else 1), len(w)) for word, w in weights_of.items()}


def _choose(weights: Weights, negative: Negative, least: int, top: int) -> Weights:
    """The words that are drawn, largest first."""
    kept = {word: (weight, n) for word, (weight, n) in weights.items() if n >= least and weight != 0}
    if negative == "drop":
        kept = {word: item for word, item in kept.items() if item[0] > 0}
    return dict(sorted(kept.items(), key=lambda item: (-abs(item[1][0]), item[0]))[:top])


def _explain_empty(name: str, where: str, negative: Negative, least: int) -> str:
    condition = "is not exactly 0" if negative == "colour" else "is above 0 (negative=drop)"
    frequent = f" of those that occur {least} times" if least > 1 else ""
    return f"{name}: there is no word{frequent} whose alpha over {where} {condition}"


def _draw(name: str, clouds: Mapping[str, Weights], seed: int, font: str | Path | None) -> Any:
    columns = 1 if len(clouds) <= 3 else 2 if len(clouds) <= 8 else 3
    figure, panels = drawing.sheet(-(-len(clouds) // columns), columns, width=4.6, height=2.6)
    for panel in panels.flat[len(clouds) :]:
        panel.remove()
    for panel, (part, cloud) in zip(panels.flat, clouds.items(), strict=False):
        panel.imshow(_cloud(cloud, seed, font), aspect="auto", interpolation="antialiased")
        panel.set_title(f"{name}: {_title(part)}", fontsize=10)
        panel.set_xticks([])
        panel.set_yticks([])
        for side in panel.spines.values():
            side.set_color("#BBBBBB")
    signs = sorted({_sign(weight) for cloud in clouds.values() for weight, _ in cloud.values()}, reverse=True)
    line = drawing.plotting("matplotlib.lines").Line2D
    handles = [line([], [], ls="", marker="o", color=_SIGNS[s][1], label=_SIGNS[s][0]) for s in signs]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _cloud(weights: Weights, seed: int, font: str | Path | None) -> Any:
    """The picture of a cloud, as an array."""
    try:
        make = importlib.import_module("wordcloud").WordCloud
    except ImportError:
        raise RunError("a cloud of words needs wordcloud: pip install 'inlay[plots]'") from None
    usual = Path(drawing.plotting("matplotlib").get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    weights = {shortened(word, _LONGEST): weight for word, weight in weights.items()}
    colour, sizes = {word: _SIGNS[_sign(weight)][1] for word, (weight, _) in weights.items()}, _sizes(weights)
    options = {"background_color": "white", "scale": 2, "margin": 6, "prefer_horizontal": 1.0, "relative_scaling": 1.0}
    options |= {"max_words": len(weights), "max_font_size": _largest(sizes), "min_font_size": 3, "random_state": seed}
    try:
        cloud = make(str(font or usual), *_SIZE, color_func=lambda word, **_: colour[word], **options)
        cloud.generate_from_frequencies(sizes)
    except OSError:
        raise RunError(f"cannot read the font {font}; expected a TrueType file") from None
    return cloud.to_array()


def _sizes(weights: Weights) -> dict[str, float]:
    """The sizes of words: 1 for the first, `_SMALLEST` for the last, between them in proportion to |weight|."""
    magnitudes = {word: abs(weight) for word, (weight, _) in weights.items()}
    low, high = min(magnitudes.values()), max(magnitudes.values())
    return {word: 1 - (1 - _SMALLEST) * (high - m) / (high - low or 1.0) for word, m in magnitudes.items()}


def _largest(sizes: Mapping[str, float]) -> int:
    """The font size of the first word with which all words have room."""
    width, height = _SIZE
    area = sum(_WIDE * len(word) * size**2 for word, size in sizes.items())
    widest = max(_WIDE * len(word) * size for word, size in sizes.items())
    return int(min((_FULL * width * height / area) ** 0.5, 0.95 * width / widest, 0.35 * height))


def _sign(weight: float) -> int:
    return 1 if weight > 0 else -1
