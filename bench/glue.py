"""Methods compared on GLUE tasks: every method, learning rate and seed, the runs of one method side by side.

    python bench/glue.py run --data GLUE --tasks CoLA,MRPC --methods houlsby:size=64 --out results.jsonl
    python bench/glue.py table results*.jsonl

Every run keeps its best epoch on the development set, whose score is reported (the test sets are not public). The
learning rate of a method on a task is the one with the best mean over seeds. Differences to full fine-tuning are paired
by seed, with a 95 % t-interval.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from inlay import metrics

RATES = {
    "houlsby": (3e-4, 1e-3, 3e-3),
    "adapterbias": (1e-3, 3e-3, 1e-2),
    "bitfit": (1e-3, 3e-3, 1e-2),
    "lora": (5e-4, 1e-3, 3e-3),
    "finetune": (5e-5, 1e-4, 2e-4),
}
METRIC = {"CoLA": "matthews", "MRPC": "accuracy", "RTE": "accuracy", "STS-B": "spearman"}
METHODS = ("houlsby:size=64", "adapterbias", "bitfit", "lora:rank=8", "finetune")


def run(arguments: argparse.Namespace) -> None:
    import inlay

    host = inlay.Host(arguments.base)
    for task in arguments.tasks.split(","):
        for method in arguments.methods.split(";"):
            rates = [float(lr) for lr in arguments.lr.split(",")] if arguments.lr else RATES[method.partition(":")[0]]
            settings = {"epochs": arguments.epochs, "batch_size": arguments.batch_size, "metric": METRIC[task]}
            runs = [
                inlay.Run(data=f"{arguments.data}/{task}", method=method, lr=lr, seed=seed, **settings)
                for lr in rates
                for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
            ]
            began = time.time()
            results = inlay.train(host, runs, slots=arguments.slots)
            with Path(arguments.out).open("a") as file:
                for one, result in zip(runs, results, strict=True):
                    value = result.value if result.ok else None
                    row = {"task": task, "method": method, "lr": one.lr, "seed": one.seed, "value": value}
                    row |= {"best_epoch": result.best_epoch, "problem": result.problem, "metrics": result.metrics}
                    file.write(json.dumps(row) + "\n")
            print(task, method, f"{len(runs)} runs in {time.time() - began:.0f} s", flush=True)


def table(arguments: argparse.Namespace) -> None:
    found: dict[tuple[str, str], dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for file in arguments.files:
        for line in Path(file).read_text().splitlines():
            row = json.loads(line)
            if row["value"] is not None:
                found[row["method"], row["task"]][row["lr"]][row["seed"]] = 100 * row["value"]
    tasks = [task for task in METRIC if any(key[1] == task for key in found)]
    best = {key: max(rates.items(), key=lambda item: _mean(item[1])) for key, rates in found.items()}
    print("| method | " + " | ".join(f"{task} ({METRIC[task]})" for task in tasks) + " | mean |")
    print("|---|" + "---|" * (len(tasks) + 1))
    for method in [m for m in METHODS if any(key[0] == m for key in best)]:
        cells = [_cell(best, method, task) for task in tasks]
        means = [_mean(best[method, task][1]) for task in tasks if (method, task) in best]
        print(f"| `{method}` | " + " | ".join(cells) + f" | {sum(means) / len(means):.1f} |")


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values)


def _cell(best: dict[Any, Any], method: str, task: str) -> str:
    if (method, task) not in best:
        return "-"
    lr, seeds = best[method, task]
    values = metrics.summary(list(seeds.values()))
    cell = f"{values['mean']:.1f} ± {values['std']:.1f} (lr {lr:g}, {len(seeds)} seeds)"
    if method != "finetune" and ("finetune", task) in best:
        base = best["finetune", task][1]
        both = sorted(seeds.keys() & base.keys())
        mean, low, high = metrics.paired_interval([seeds[s] for s in both], [base[s] for s in both])
        cell += f"; {mean:+.1f} [{low:+.1f}, {high:+.1f}]"
    return cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("--data", required=True, help="a folder with GLUE's own folders")
    one.add_argument("--base", default=None)
    one.add_argument("--tasks", default=",".join(METRIC))
    one.add_argument("--methods", default=";".join(METHODS), help="specs with ; between them")
    one.add_argument("--lr", default="", help="learning rates with commas; default: three for every method")
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--first-seed", type=int, default=0)
    one.add_argument("--epochs", type=int, default=10)
    one.add_argument("--batch-size", type=int, default=32)
    one.add_argument("--slots", type=int, default=None)
    one.add_argument("--out", required=True)
    one.set_defaults(do=run)
    two = commands.add_parser("table")
    two.add_argument("files", nargs="+")
    two.set_defaults(do=table)
    arguments = parser.parse_args()
    arguments.do(arguments)


if __name__ == "__main__":
    sys.exit(main())
