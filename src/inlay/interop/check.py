"""What all exports share: plain weights to start from, rows to try the result on, and errors of the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inlay.bank.planning import longest_row
from inlay.base.load import Base, load_tokenizer
from inlay.base.sites import config_of
from inlay.data.batch import Batch
from inlay.engine.host import Host
from inlay.errors import BaseError, RunError

TEXTS = (
    "The parcel arrived two days late, but everything in it was fine.",
    "no",
    "Congratulations! You have won 2,000 euros: call 0800 123 456 before Friday to claim your prize.",
    "Ana Silva met Bob in Oslo on 3 June, and they talked about the new library by the river until it was dark.",
    "I would not watch this film again.",
    "what is the capital of Peru ?",
)


def plain(base: Base, product: str) -> None:
    """Refuse a base whose weights are not those of its checkpoint, in fp32 and on the CPU."""
    if base.form:
        raise BaseError(f"{base.name} runs in {base.form}; {product} is made from a host without")
    if base.dtype != torch.float32 or base.device.type != "cpu":
        form = f"{str(base.dtype).removeprefix('torch.')} on {base.device}"
        needed = 'Host(..., device="cpu", dtype=torch.float32)'
        raise BaseError(f"{base.name} runs in {form}; {product} is made from {needed}")


def rows_to_check(host: Host) -> Batch:
    """Texts of several lengths, as pairs where the base has token types; any tokens if it has no tokenizer."""
    try:
        batch = host.batch(TEXTS, TEXTS[::-1] if host.base.sites.arch.token_types else None)
    except BaseError:
        return _any_rows(host.base)
    single = host.batch(TEXTS)
    types = [b.types if b.types is not None else np.zeros_like(b.ids) for b in (single, batch)]
    lengths = np.concatenate([single.lengths, batch.lengths])
    return Batch(np.concatenate([single.ids, batch.ids]), lengths, np.concatenate(types))


def padded(batch: Batch) -> dict[str, Tensor]:
    """A batch as a tokenizer gives it: ids, mask and types [rows, longest]."""
    lengths = torch.from_numpy(batch.lengths).unsqueeze(1)
    mask = torch.arange(int(lengths.max())) < lengths
    types = np.zeros_like(batch.ids) if batch.types is None else batch.types
    inputs = {"attention_mask": mask.long()}
    for name, values in (("input_ids", batch.ids), ("token_type_ids", types)):
        inputs[name] = torch.zeros(mask.shape, dtype=torch.long).masked_scatter(mask, torch.from_numpy(values).long())
    return inputs


def largest(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number if that is over 1; infinite if any is not finite."""
    if actual.shape != expected.shape or not torch.isfinite(actual).all():
        return float("inf")
    return (actual - expected).abs().max().item() / max(1.0, expected.abs().max().item())


def save_tokenizer(base: Base, folder: Path) -> None:
    """Write a base's tokenizer, without the truncation and padding that its last call left set."""
    tokenizer = load_tokenizer(base)
    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is not None:
        inner.no_truncation()
        inner.no_padding()
    tokenizer.save_pretrained(folder)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk into errors of Inlay."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from None
    except SafetensorError as error:
        raise RunError(f"cannot write {path}: {error}") from None


def _any_rows(base: Base) -> Batch:
    random = torch.Generator().manual_seed(0)
    words = range(5, int(config_of(base.model).vocab_size))  # none that stands for padding
    lengths = [min(n, longest_row(base) or n) for n in (1, 2, 5, 9, 17)]
    return Batch.of([torch.randint(words.start, words.stop, (n,), generator=random).tolist() for n in lengths])
