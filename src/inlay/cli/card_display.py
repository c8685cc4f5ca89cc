"""Cards for people: a table of many, a page of one, and two side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inlay.cli import output
from inlay.cli.train_display import decimals, metric_table
from inlay.library import card_facts, card_text
from inlay.library.card_text import one_line

if TYPE_CHECKING:
    from inlay.library.card_text import Card
    from inlay.library.cards import Entry
    from inlay.library.diff import Diff, Place

_NAMES = 9
"""Width of the names on a page."""
_GAP = 2
_RIGHT = ("labels", "size", "of base")
_METHOD = 32
_DROPPED = ("labels", "when", "of base", "task", "alias")
"""Columns that a list drops where there is no room, in this order."""
_UNKNOWN = "-"


def show_list(
    screen: output.Console,
    entries: Sequence[Entry],
    newest: Sequence[Entry],
    named: Mapping[str, Mapping[str, int]],
    hidden: int = 0,
) -> None:
    """A row for every entry, and what the newest versions of all names cost together.

    Args:
        named: name -> alias -> version; `prod=1` is beside another version if that one has no row of its own.
        hidden: how many older versions have no row.
    """
    shown = {entry.ref for entry in entries}
    rows = [_row(entry) for entry in entries]
    for entry, row in zip(entries, rows, strict=True):
        others = [f"{a}={v}" for a, v in sorted(named.get(entry.name, {}).items()) if f"{entry.name}@{v}" not in shown]
        row["alias"] = " ".join([*entry.aliases, *others])
    columns = [name for name in rows[0] if name != "alias" or any(row[name] for row in rows)]
    widths = {name: max(len(row[name]) for row in [*rows, {name: name}]) for name in columns}
    for name in _DROPPED:  # a narrow terminal shows less, rather than broken lines
        if sum(widths.values()) + _GAP * (len(widths) - 1) > screen.width:
            widths.pop(name, None)
    screen.print(_aligned({name: name for name in widths}, widths), style="bold", soft_wrap=True)
    screen.print("─" * min(screen.width, sum(widths.values()) + _GAP * (len(widths) - 1)))
    screen.print("\n".join(_aligned(row, widths) for row in rows) + "\n", soft_wrap=True)  # a table takes long for many
    costs = card_text.costs((entry.card, size) for entry, size in zip(newest, _stored(newest), strict=True))
    for cost in costs:
        screen.print(f"{cost.base}: {cost.line}" if len(costs) > 1 else cost.line, soft_wrap=True)
    if len(entries) > len(newest):
        screen.print(f"all {len(entries):,} versions: {card_text.size(sum(_stored(entries)))}", soft_wrap=True)
    if hidden:
        older = "1 older version is" if hidden == 1 else f"{hidden:,} older versions are"
        screen.print(f"{older} not shown (--all-versions shows all)", soft_wrap=True)


def _stored(entries: Sequence[Entry]) -> list[int]:
    """The bytes that each entry adds: a file that several share is stored once."""
    seen: set[str] = set()
    sizes = []
    for entry in entries:
        size_of_file = {file.sha256: file.bytes for file in (entry, *entry.members)}
        sizes.append(sum(size for sha256, size in size_of_file.items() if sha256 not in seen))
        seen |= size_of_file.keys()
    return sizes


def _aligned(row: Mapping[str, str], widths: Mapping[str, int]) -> str:
    cells = (row[name].rjust(n) if name in _RIGHT else row[name].ljust(n) for name, n in widths.items())
    return (" " * _GAP).join(cells).rstrip()


def _row(entry: Entry) -> dict[str, str]:
    card, labels = entry.card, len(card_text.labels(entry.card))
    return {
        "adapter": entry.ref,
        "alias": "",
        "method": card_text.shortened(one_line(card["method"]), _METHOD),
        "task": one_line(card_text.kind(card)) or _UNKNOWN,
        "labels": f"{labels:,}" if labels else _UNKNOWN,
        "size": card_text.size(entry.size),
        "of base": card_facts.share(card) or _UNKNOWN,
        "metric": _deciding(card),
        "when": card_facts.when(card, "%Y-%m-%d") or _UNKNOWN,
    }


def _deciding(card: Card) -> str:
    metric = card_text.deciding(card)
    return f"{one_line(metric[0])} {decimals(metric[2])}" if metric else _UNKNOWN


def show_card(screen: output.Console, entry: Entry, versions: Mapping[int, Sequence[str]], library: str | None) -> None:
    """A page about one adapter.

    Args:
        versions: all versions of its name, ascending, with their aliases.
        library: where it is, if that is not the default library.
    """
    card = entry.card
    title = " ".join([entry.ref, *(f"@{alias}" for alias in entry.aliases)])
    screen.print(title, style="bold")
    screen.print(f"{card_text.does(card)}.\n")
    _facts(screen, [*card_facts.what_it_is(entry)])
    if metrics := card_text.metrics(card):
        _metrics(screen, card, metrics)
    _section(screen, "Training")
    _facts(screen, [*card_facts.training(card)])
    lineage = [*card_facts.lineage(entry, versions)]
    if lineage:
        _section(screen, "Lineage")
        _facts(screen, lineage)
    _section(screen, "Use it")
    ref = entry.name if entry.version == max(versions) else entry.ref
    if command := card_text.predict_command(card, ref, library):
        screen.print(f"  $ {command}\n", soft_wrap=True)
    for line in card_text.snippet(
        card, f'{card_text.library_expression(library)}.get("{ref}")', entry.name
    ).splitlines():
        screen.print(f"  {one_line(line)}", soft_wrap=True, style="dim")


def _metrics(screen: output.Console, card: Card, metrics_of_split: dict[str, dict[str, float]]) -> None:
    _section(screen, "Metrics")
    columns = {one_line(split): metrics for split, metrics in metrics_of_split.items()}
    screen.print(metric_table(columns, card.get("metric"), indent="  "))
    if card_text.deciding(card):
        screen.print(f"  * {card_text.scored(card)}", style="dim", soft_wrap=True)


def _section(screen: output.Console, title: str) -> None:
    screen.print(f"\n{title}", style="bold")


def _facts(screen: output.Console, facts: Sequence[tuple[str, str]]) -> None:
    screen.print(output.grid(((f"  {name}", one_line(value)) for name, value in facts), _NAMES, "dim"))


def show_diff(screen: output.Console, a: Entry, b: Entry, diff: Diff) -> None:
    """The fields of the cards that differ, then the weights."""
    _section(screen, "Cards")
    if diff.fields:
        table = output.table("", a.ref, b.ref, "change", keep=("",))
        for path, (left, right) in diff.fields.items():
            table.add_row(f"  {one_line(path)}", _shown(left), _shown(right), _change(left, right))
        screen.print(table)
    else:
        screen.print("  say the same")
    _section(screen, "Weights")
    if diff.same_weights:
        screen.print("  are the same")
        return
    columns = ["", f"|{a.ref}|", f"|{b.ref}|", "difference", "cosine"]
    columns += ["note"] if any(place.note for place in diff.places) else []
    table = output.table(*columns, right=("difference", "cosine"), keep=("",))
    for place in (*diff.places, *([diff.total] if diff.total.difference is not None else [])):
        cells = [f"  {one_line(place.name)}", *_cells(place)]
        table.add_row(*cells[: len(columns)], style="bold" if place is diff.total else None)
    screen.print(table)
    screen.print("  norms; difference: the norm of what was added, relative to the first", style="dim")


def _cells(place: Place) -> list[str]:
    norms = (place.norm_a, place.norm_b)
    difference = (
        "" if place.difference is None else "new" if math.isinf(place.difference) else output.percent(place.difference)
    )
    cosine = "" if place.cosine is None else decimals(place.cosine)
    return [*("-" if n is None else f"{n:.4g}" for n in norms), difference, cosine, place.note]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return one_line(", ".join(map(str, value)) if isinstance(value, list) else value)


def _change(left: Any, right: Any) -> str:
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right)]
    if not all(numbers):
        return ""
    return f"{right - left:+,}" if isinstance(right - left, int) else f"{right - left:+.4g}"
