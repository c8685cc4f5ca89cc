"""A card's facts, each with a name, for the terminal and for reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from inlay.library import card_text
from inlay.library.card_text import Card, one_line
from inlay.library.cards import Entry

_ASIDE = ("data", "name", "method", "task", "head", "pool", "seed", "teacher")
"""Settings that a page shows elsewhere."""


def what_it_is(entry: Entry) -> Iterator[tuple[str, str]]:
    """What an adapter is made of."""
    card = entry.card
    counts = card_text.section(card, "parameters")
    if names := card_text.labels(card):
        yield "labels", ", ".join(one_line(name) for name in names)
    trained = f": {counts['adapter']:,} trained parameters" if isinstance(counts.get("adapter"), int) else ""
    trained += f", {share(card)} of the base" if trained and share(card) else ""
    trained += f", and {counts['head']:,} in the head" if trained and isinstance(counts.get("head"), int) else ""
    yield "size", f"{card_text.size(entry.size)}{trained}"
    yield "method", one_line(card["method"])
    for member, weight in zip(entry.members, card.get("weights") or (), strict=False):
        times = f", counts {weight} times" if weight != 1 else ""
        yield "member", f"{one_line(member.card.get('ref') or member.name)}, {one_line(member.card['method'])}{times}"
    yield "task", one_line(card["task"])
    if card.get("head"):
        yield "head", f"{card['head']}, {card['pool']} pooling" if card.get("pool") else str(card["head"])
    count = card.get("base_parameters")
    large = f", {count:,} parameters" if isinstance(count, int) else ""
    yield "base", f"{one_line(card_text.base_name(card))}{large} ({card_text.short(card.get('base'))})"
    yield "file", entry.sha256


def training(card: Card) -> Iterator[tuple[str, str]]:
    """How it was made."""
    if data := card_text.trained_on(card).get("data"):
        yield "data", one_line(data)
    if card.get("data"):
        yield "its hash", one_line(card["data"])
    if columns := {k: v for k, v in card_text.section(card, "columns").items() if v}:
        yield "columns", ", ".join(f"{role} from {one_line(name)}" for role, name in columns.items())
    config = {k: v for k, v in card_text.settings(card).items() if k not in _ASIDE}
    if card_text.section(card, "config"):
        other = "else" if config else ""
        changed = ", ".join(f"{key} {one_line(value)}" for key, value in config.items())
        yield "settings", f"{changed}; " * bool(changed) + f"everything {other} by default".replace("  ", " ")
    if teacher := card_text.section(card, "teacher").get("ref"):
        yield "teacher", one_line(teacher)
    yield "seed", str(card.get("seed", ""))
    best = card_text.section(card, "best")
    if isinstance(best.get("step"), int) and isinstance(best.get("epoch"), int | float):
        epoch = f" (epoch {best['epoch']:.1f})" if best["epoch"] else ""  # none where a head is fitted
        kept = "kept" if card_text.settings(card).get("choose_by") == "last" else "best"
        yield kept, f"after {best['step']:,} {'step' if best['step'] == 1 else 'steps'}{epoch}"
    took = f" in {card_text.clock(card['seconds'])}" if isinstance(card.get("seconds"), int | float) else ""
    yield "made", f"{when(card, '%Y-%m-%d %H:%M')}{took}, with Inlay {one_line(card.get('inlay', '?'))}"
    if command := card_text.train_command(card):
        yield "again", command


def lineage(entry: Entry, versions: Mapping[int, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """What it was made from, and the other versions of its name.

    Args:
        versions: all there are, ascending, with their aliases.
    """
    if len(versions) > 1:
        shown = {v: " ".join([str(v), *(f"@{alias}" for alias in names)]) for v, names in versions.items()}
        yield "versions", ", ".join(f"[{text}]" if v == entry.version else text for v, text in shown.items())
    if entry.parents:
        yield "from", ", ".join(one_line(parent) for parent in entry.parents)
    if entry.card.get("source"):
        yield "source", one_line(entry.card["source"])


def share(card: Card) -> str:
    """Its share of the base, for people; empty if the card does not say."""
    return "" if (value := card_text.share(card)) is None else card_text.percent(value)


def when(card: Card, form: str) -> str:
    """When it was made, in local time; empty if the card does not say."""
    try:
        return datetime.fromisoformat(str(card.get("created"))).astimezone().strftime(form)
    except (ValueError, OSError, OverflowError):
        return ""
