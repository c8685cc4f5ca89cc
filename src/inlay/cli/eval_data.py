"""An adapter, and the rows it is measured on: how `eval`, `analyze` and `report` begin.

Without DATA, these are the rows that the adapter was validated on, if they are still where its card says.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from inlay.cli import options
from inlay.cli.help import argument
from inlay.cli.named_adapters import base_of, kind_of
from inlay.cli.predict_input import as_trained
from inlay.data.columns import choose, in_pairs
from inlay.data.folder import files_of
from inlay.data.record import Bad, Skipped, stop
from inlay.data.source import Source, open_splits
from inlay.data.split import take
from inlay.errors import DataError
from inlay.library.card_text import data_name, section, trained_on
from inlay.runs.run import from_config

if TYPE_CHECKING:
    from rich.console import Console

    from inlay.engine.host import Host
    from inlay.library.library import Entry, Library
    from inlay.tasks import Example

_SAMPLE = 200
Data = Annotated[str | None, argument("DATA", "A labelled file or folder.  [default: the adapter's validation rows]")]


class Sample(NamedTuple):
    """Options that say which rows of the data to measure on."""

    split: options.Split = None
    rows: options.Rows = None
    seed: options.Seed = 0


def check(
    store: Library,
    names: Sequence[str],
    base: str | None,
    data: str | None = None,
    split: str | None = None,
    *,
    labelled: bool = True,
    needs_rows: bool = True,
) -> dict[str, Entry]:
    """The adapters by their names; refuses missing adapters, bases, files and columns before torch is imported.

    Args:
        data: as `read_labelled` takes it, for the first of the adapters.
        needs_rows: without data, refuse an adapter whose own rows are gone.
    """
    entries = {name: store.find(name) for name in names}
    first = entries[names[0]]
    base_of(base, list(entries.values()))
    if data is not None:
        check_columns(first, labelled_source(data, split)[1], {}, labelled)
    elif needs_rows:
        _own_file(first, split)
    return entries


def check_columns(entry: Entry, source: Source, named: Mapping[str, str], labelled: bool = True) -> None:
    """Refuse a file without the columns that an adapter's task reads, before torch is imported."""
    if entry.card["task"]:
        known = as_trained(entry.card, source.columns, named)
        sample = list(itertools.islice(source.records(Skipped()), _SAMPLE))
        kind = kind_of(entry.card["task"])
        choose(kind, source.columns, sample, known, source.hints, source.name, labelled=labelled)


def labelled_source(
    data: str, split: str | None = None, format: str | None = None, encoding: str | None = None
) -> tuple[str, Source]:
    """The split to measure on and its rows: the given split, else test, else validation, else train."""
    sources = open_splits(data, format=format, encoding=encoding)
    if split is not None and split not in sources:
        raise DataError(f"{data}: has no split {split!r}, only {', '.join(sources)}")
    splits = [s for s in ("test", "validation", "train") if s in sources]
    # test rows of a benchmark may have no labels: then they lack a column that the others have
    most = max(len(sources[s].columns) for s in splits)
    chosen = split or next(s for s in splits if len(sources[s].columns) == most)
    return chosen, sources[chosen]


def examples_of(
    host: Host,
    name: str,
    entry: Entry,
    source: Source,
    named: Mapping[str, str],
    bad: Bad,
    screen: Console,
    labelled: bool = True,
) -> list[Example]:
    """A file's rows as an adapter's task reads them.

    Args:
        named: the columns that the user named: text, pair, label.
    """
    from inlay.runs.prepare import read_examples

    columns, pairs = as_trained(entry.card, source.columns, named), in_pairs(entry.card.get("columns"))
    examples, note = read_examples(source, host.task(name), columns, bad, labelled, pairs)
    if note:
        screen.print(note, style="dim", soft_wrap=True)
    return examples


def read_labelled(
    host: Host,
    name: str,
    entry: Entry,
    data: str | None,
    screen: Console,
    sample: Sample,
    labelled: bool = True,
) -> tuple[str, list[Example]]:
    """Where the rows to measure an adapter on come from, in words, and the rows.

    Args:
        data: a file or folder; None for the rows that the adapter was validated on.
        sample: which of its rows, how many at most, and the seed to draw them with, classes in proportion.
        labelled: False for texts alone.
    """
    host.task(name)  # without a task there is nothing to read
    reading = {} if data else _read_as(entry)
    data, split = (data, sample.split) if data else _own_file(entry, sample.split)
    if data is None:
        examples = part_of(entry, own_parts(host, entry), split or "validation")
        done = "trained on" if split == "train" else "held out"
        where = f"rows of {data_name(entry.card)} that were {done}"
    else:
        _, source = labelled_source(data, split, **reading)
        where = "/".join(Path(source.name).parts[-2 if os.path.isdir(data) else -1 :])
        examples = examples_of(host, name, entry, source, {}, stop, screen, labelled)
    return where, drawn(examples, sample)


def _read_as(entry: Entry) -> dict[str, Any]:
    """How an adapter's own files are read."""
    return {key: section(entry.card, "config").get(key) for key in ("format", "encoding")}


def _own_file(entry: Entry, split: str | None) -> tuple[str | None, str | None]:
    """The file or folder of an adapter's own rows, and their split in it; None if they were held out of a file."""
    config = section(entry.card, "config")
    split = split or "validation"
    if file := {"validation": config.get("val"), "test": config.get("test")}.get(split):
        return _existing(entry, str(file)), None
    data = _existing(entry, str(config.get("data") or ""))
    return (data, split) if split in open_splits(data, **_read_as(entry)) and os.path.isdir(data) else (None, split)


def _existing(entry: Entry, data: str) -> str:
    if not data or not all(map(os.path.exists, files_of(data))):
        where = f"was trained on {data}, which no longer exists" if data else "does not say what it was trained on"
        raise DataError(f"{entry.name} {where}; pass DATA, a labelled file or a folder")
    return data


def own_parts(host: Host, entry: Entry) -> dict[str, list[Example]]:
    """Split -> the rows of a training, split once more: the settings and the seed decide all of it.

    There are no validation rows if an adapter, or its members together, learned from all rows.
    """
    from inlay.runs.prepare import prepare

    members = section(entry.card, "ensemble").get("members")
    first = {"fold": f"1/{members}"} if members else {}  # an ensemble has the data hash of its first member
    data = prepare(from_config(trained_on(entry.card), entry.name, **first), host)
    if data.data_hash != entry.card.get("data"):
        raise DataError(f"{data_name(entry.card)} has changed since {entry.name} was trained on it; pass DATA")
    train, validation = data.train.examples, data.validation.examples
    test = {} if data.test is None else {"test": data.test.examples}
    if data.folds or (members and data.validation.content != section(entry.card, "scored_on").get("validation")):
        return test | {"train": train if data.folds else [*train, *validation]}
    return test | {"validation": validation, "train": train}


def part_of(entry: Entry, parts: Mapping[str, list[Example]], split: str) -> list[Example]:
    """The rows of a split; an error if there are none."""
    if split in parts:
        return parts[split]
    if split == "validation":
        raise DataError(f"{entry.name} learned from all its rows, each left out once to score it; pass DATA")
    raise DataError(f"{data_name(entry.card)}: has no split {split!r}, only {', '.join(parts)}")


def drawn(examples: Sequence[Example], sample: Sample) -> list[Example]:
    """These rows, or as many of them as the sample has, classes in proportion."""
    if sample.rows is None or sample.rows >= len(examples):
        return list(examples)
    classes = [e.target for e in examples]
    strata = classes if all(isinstance(target, str) for target in classes) else None
    return [examples[i] for i in take(len(examples), sample.rows, sample.seed, strata)]
