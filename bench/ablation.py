"""How long an ablation of layer spans takes: all spans side by side, against one adapter after the other.

    python bench/ablation.py                                  # MiniLM-L6, 6 layers, 21 spans
    python bench/ablation.py --shape bert-base --device cuda  # 12 layers, 78 spans, random weights

Both run the same rows of random tokens, as long as GLUE's sentences, in batches of at most the same size. The loop
zeroes the tensors of a span, loads that adapter, runs it alone and unloads it. The adapter's numbers are random: time
does not depend on them. Turns alternate; medians count. How far the two ways' logits are apart is printed too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import inlay
from inlay.analysis.layer_removal import Span, outputs_without, spans
from inlay.base.places import SHAPES
from inlay.base.sites import config_of
from inlay.bench.base import DEFAULT_SHAPE, folder_of, host_on
from inlay.bench.rows import draw_lengths, draw_rows
from inlay.engine.evaluate import outputs_of
from inlay.tasks import Row


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--shape", default=DEFAULT_SHAPE, help=f"one of {', '.join((DEFAULT_SHAPE, *SHAPES))}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--method", default="houlsby:size=64")
    parser.add_argument("--rows", type=int, default=872, help="SST-2's dev set has 872")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        host = _host(asked, Path(scratch))
    lengths = draw_lengths("glue", asked.rows, 0)
    rows = [Row(ids) for ids in draw_rows(lengths, config_of(host.base.model).vocab_size, 0)]
    everything = spans(host.base.sites.layers)
    ways = {"side by side": outputs_without, "one by one": one_by_one}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, Any] = {}
    for turn in range(asked.repeats + 1):
        for way, run in ways.items():
            began = time.perf_counter()
            found[way] = run(host, "a", rows, everything)
            if turn:  # the first is for warming up
                seconds[way].append(time.perf_counter() - began)
    apart = max(_apart(*(found[way][span] for way in ways)) for span in everything)
    (whole,) = outputs_of(host, [("a", rows)])
    matters = min(_apart(whole, found["one by one"][span]) for span in everything)
    print(f"{asked.shape}: {len(everything)} spans of {host.base.sites.layers} layers, {asked.method}")
    print(f"{len(rows)} rows, {sum(len(r.ids) for r in rows):,} tokens, {host.base.device}, {host.base.dtype}")
    for way, times in seconds.items():
        shown = f"{min(times):.2f} to {max(times):.2f}"
        print(f"{way:12}  median {statistics.median(times):.2f} s of {len(times)} ({shown})")
    ratio = statistics.median(seconds["one by one"]) / statistics.median(seconds["side by side"])
    print(f"side by side is {ratio:.2f} times as fast; logits differ by at most {apart:.1e}")
    print(f"(removing a span moves some logit by at least {matters:.1e})")


def one_by_one(host: inlay.Host, name: str, rows: Sequence[Row], removed: Sequence[Span]) -> dict[Span, list[Tensor]]:
    """The plain loop: an adapter with some layers at zero (norms stay), loaded and run alone."""
    whole, found = host.adapter(name), {}
    for span in removed:
        inside = tuple(f"layers.{i}." for i in range(span.first, span.last + 1))
        zeroed = {
            n: torch.zeros_like(t) if n.startswith(inside) and not n.endswith((".gamma", ".beta")) else t
            for n, t in whole.tensors.items()
        }
        host.load(replace(whole, tensors=zeroed), "less")
        (found[span],) = outputs_of(host, [("less", rows)])
        host.unload("less")
    return found


def _host(asked: argparse.Namespace, scratch: Path) -> inlay.Host:
    host = host_on(folder_of(asked.shape, None, scratch), asked.device)
    host.add("a", asked.method, labels=2)
    noise = torch.Generator().manual_seed(0)
    tensors = host.read("a")
    host.write("a", {n: t + 0.05 * torch.randn(t.shape, generator=noise).to(t) for n, t in tensors.items()})
    return host


def _apart(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return (torch.stack(list(one)).float() - torch.stack(list(other)).float()).abs().max().item()


if __name__ == "__main__":
    main()
