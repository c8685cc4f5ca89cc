"""Datasets of the hub, through `datasets`: numbers of classes become their names."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from inlay.data.folder import SPLITS, split_of
from inlay.data.formats.features import label_names, named
from inlay.data.record import Bad, Record, Source
from inlay.errors import DataError


def open_hub(name: str) -> dict[str, Source]:
    """The splits of `name` or `name:config`."""
    missing = f"there is no file or folder {name!r}, and no hub dataset of this name could be loaded"
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise DataError(f"{missing}: that needs the package datasets; pip install 'inlay[hub]'") from None
    path, _, config = name.partition(":")
    try:
        loaded = datasets.load_dataset(path, config or None)
    except Exception as error:  # anything from no network to a broken repository
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{missing}: {reason}") from None
    parts = dict(loaded) if hasattr(loaded, "keys") else {"train": loaded}
    part_of_split = _splits(list(parts))
    if not part_of_split:
        raise DataError(f"{name}: expected a split train, validation or test; the dataset has {', '.join(parts)}")
    return {split: _source(f"{name} {split}", f"{name} {part}", parts[part]) for split, part in part_of_split.items()}


def _splits(parts: list[str]) -> dict[str, str]:
    """Split -> its name in the dataset; one of exactly that name is preferred to one such as validation_matched."""
    part_of_split: dict[str, str] = {}
    for split in SPLITS:
        names = [part for part in parts if split_of(part) == split]
        if names:
            part_of_split[split] = split if split in names else names[0]
    return part_of_split


def _source(name: str, place: str, part: Any) -> Source:
    features = part.features.to_dict()
    labels = label_names(features)

    def read(bad: Bad) -> Iterator[Record]:
        for number, row in enumerate(part, 1):
            yield Record(named(row, labels), f"{place} row {number}")

    return Source(name, "hub", tuple(features), {}, (), read)
