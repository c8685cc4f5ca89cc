"""What int8 or fp8 weights cost: adapters trained on the plain base, asked on it and on the same base in that form.

    python bench/weights.py --weights int8 --data sms.tsv GLUE/CoLA --methods "houlsby:size=64;lora" --epochs 3

Both are asked about the rows that were held out, or about a folder's own validation rows. `same` is the share of rows
with the same label; speed is that of these rows, tokenizing excluded, in turns. A form that trains (fp8) also trains
the same adapters itself: `trained` is what these reach on it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import inlay
from inlay.engine.evaluate import by_example
from inlay.engine.predict import run_rows
from inlay.runs.prepare import Split, prepare
from inlay.tasks import Answer

TURNS = 2


def ask(host: inlay.Host, name: str, part: Split) -> tuple[dict[str, float], list[Answer], float]:
    """All metrics, the answers, and rows per second."""
    began = time.perf_counter()
    outputs = run_rows(host, part.rows, [name] * len(part.rows))
    seconds = time.perf_counter() - began
    task, labels = host.task(name), host.labels(name)
    answers = task.answers(*by_example(outputs, part.rows, len(part.examples)), part.examples, labels, host.base)
    return task.score(part.examples, answers, labels), list(answers), len(part.rows) / seconds


def compare(exact: inlay.Host, small: inlay.Host, run: inlay.Run, result: inlay.Result) -> dict[str, Any]:
    """One trained adapter on both bases."""
    part = prepare(run, exact).validation
    for host in (exact, small):
        host.load(result.adapter, "x")
    found: dict[str, list[Any]] = {"plain": [], "small": []}
    for _ in range(TURNS):
        for key, host in (("plain", exact), ("small", small)):
            found[key].append(ask(host, "x", part))
    for host in (exact, small):
        host.unload("x")
    (one, first, _), (two, second, _) = found["plain"][0], found["small"][0]
    same = sum(_said(a) == _said(b) for a, b in zip(first, second, strict=True)) / len(first)
    rates = {f"{key}_rows_per_second": max(rate for _, _, rate in asked) for key, asked in found.items()}
    about = {"data": run.data, "method": result.method, "rows": len(first), "metric": result.metric}
    return {**about, "plain": one[result.metric], "small": two[result.metric], "same": same, **rates}


def _said(answer: Answer) -> str:
    """What an answer says, without its score."""
    plain = {key: value for key, value in answer.items() if key not in ("score", "scores")}
    return json.dumps(plain, default=str, sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True, help="labelled files, or folders with splits")
    parser.add_argument("--weights", default="int8", choices=["int8", "fp8"])
    parser.add_argument("--base", default=None)
    parser.add_argument("--methods", default="houlsby:size=64;lora", help="specs with ; between them")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--train-size", default=None, help="train on so many rows only")
    parser.add_argument("--lr", type=float, default=None, help="of all methods; each its own by default")
    parser.add_argument("--metric", default=None)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    small = inlay.Host(given.base, weights=given.weights)
    exact = inlay.Host(given.base, device=small.base.device)
    print(f"| data | method | rows | metric | plain | {given.weights} | same | trained | rows/s | {given.weights} |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    settings = {name: getattr(given, name) for name in ("epochs", "batch_size", "train_size", "lr", "metric", "seed")}
    for data in given.data:
        runs = [inlay.Run(data=data, method=method, **settings) for method in given.methods.split(";")]
        own = [f"{r.value:.4f}" for r in inlay.train(small, runs)] if small.base.trains else ["-"] * len(runs)
        for run, result, trained in zip(runs, inlay.train(exact, runs), own, strict=True):
            row = compare(exact, small, run, result)
            values = f"{row['plain']:.4f} | {row['small']:.4f} | {row['same']:.2%} | {trained}"
            rates = f"{row['plain_rows_per_second']:.0f} | {row['small_rows_per_second']:.0f}"
            about = f"{data} | `{row['method']}` | {row['rows']} | {row['metric']}"
            print(f"| {about} | {values} | {rates} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
