"""Parquet through pyarrow, a few thousand rows at a time. There are no lines: the place is the row's number."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inlay.data.formats.features import label_names, named
from inlay.data.record import Bad, Record, Source
from inlay.errors import DataError

MAGIC = b"PAR1"
_ROWS = 1024


def open_parquet(name: str, path: Path) -> Source:
    """The schema is read now, the rows later."""
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"{name}: parquet needs pyarrow; pip install 'inlay[parquet]', or save as CSV") from None

    def opened() -> Any:
        try:
            return parquet.ParquetFile(path)
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{name}: not a parquet file, or a damaged one: {_brief(error)}") from None

    with opened() as file:
        schema = file.schema_arrow
        columns, labels = tuple(schema.names), _labels(schema.metadata or {})
        if file.metadata.num_rows == 0:
            raise DataError(f"{name}: the file has columns but no rows")

    def read(bad: Bad) -> Iterator[Record]:
        number = 0
        with opened() as file:
            try:
                for batch in file.iter_batches(batch_size=_ROWS):
                    for row in batch.to_pylist():
                        number += 1
                        yield Record(named(row, labels), f"{name} row {number}")
            except (arrow.ArrowException, OSError) as error:
                raise DataError(f"{name} row {number + 1}: the file is damaged from here: {_brief(error)}") from None

    return Source(name, "parquet", columns, {}, (), read)


def _labels(metadata: Mapping[bytes, bytes]) -> dict[str, Sequence[str]]:
    """Names of labels that `datasets` keeps beside the schema."""
    try:
        return label_names(json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
