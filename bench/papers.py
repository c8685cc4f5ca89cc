"""The papers' tables, many recipes at a time on one GPU.

    python bench/papers.py data --data FOLDER --out PAPERS             GLUE and TAE as the recipes want them
    python bench/papers.py run --jobs JOBS --out STORES --minutes 8    again and again, until nothing is left
    python bench/papers.py merge --out STORES                          one store for all recipes, all.sqlite

JOBS has a line of arguments of `inlay recipe run` per job: `he-glue-1k PAPERS/glue --only CoLA --lines finetune`. Each
job is a process with a store of its own (STORES/he-glue-1k.3.sqlite, for the third line that names it). Full
fine-tuning steps one run at a time and leaves most of a large GPU idle, so several processes take much less time than
one; NVIDIA's MPS lets their kernels run at the same time. After `merge`, the table itself is

    inlay recipe run he-glue-1k PAPERS/glue --store STORES/all.sqlite --minutes 0 --csv FILE

GLUE's MNLI, QNLI and QQP may come as JSON files of labelled training pairs (FOLDER/glue_subsets). Where a set has no
dev rows, `data` takes 2,000 of these pairs.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import shlex
import shutil
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELD_OUT = 2000
SUBSETS = ("MNLI", "QNLI", "QQP")
SETTINGS = (
    "method",
    "lr",
    "epochs",
    "batch_size",
    "train_size",
    "pool",
    "head",
    "schedule",
    "warmup",
    "pretrain_epochs",
)
SCORES = ("accuracy", "f1", "f1_macro", "f1_micro", "matthews", "spearman")
TAE = {"chemprot": "ChemProt", "citation_intent": "ACL-ARC", "sciie-relation-extraction": "SciERC"}


def make_data(data: Path, out: Path) -> None:
    """Copies of the sets, and files for those that are published in pieces."""
    for name in ("CoLA", "MRPC", "RTE", "SST-2", "STS-B", "QNLI"):
        shutil.copytree(data / "glue" / name, out / "glue" / name, dirs_exist_ok=True)
    for name in SUBSETS:
        pairs = list(json.loads((data / "glue_subsets" / f"{name}.train.json").read_text()).values())
        random.Random(0).shuffle(pairs)
        dev = out / "glue" / name / "dev.tsv"
        columns = ("question", "sentence") if name == "QNLI" else ("sentence1", "sentence2")
        if not dev.exists():
            write_pairs(dev, columns, pairs[:HELD_OUT])
            pairs = pairs[HELD_OUT:]
        write_pairs(out / "glue" / name / "train.tsv", columns, pairs)
    for folder, name in TAE.items():
        shutil.copytree(data / "tae" / folder, out / "tae" / name, dirs_exist_ok=True)
    shutil.copytree(data / "crowdflower", out / "texts", dirs_exist_ok=True)
    shutil.copy(data / "sms_spam" / "SMSSpamCollection", out / "texts")


def write_pairs(path: Path, columns: tuple[str, str], pairs: Sequence[dict[str, str]]) -> None:
    """Two texts and a label per line; the columns are named as in the set's other files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, delimiter="\t")
        lines.writerow([*columns, "label"])
        lines.writerows([pair["text_a"], pair["text_b"], pair["label"]] for pair in pairs)


@dataclass(frozen=True)
class Job:
    """A line of the file, and where its results go."""

    arguments: tuple[str, ...]
    store: Path

    @property
    def name(self) -> str:
        """What its files are called."""
        return self.store.stem


def read_jobs(path: Path, out: Path) -> list[Job]:
    """Jobs in the order of the file; those that should begin first are first."""
    found, seen = [], Counter[str]()
    for line in path.read_text().splitlines():
        arguments = shlex.split(line, comments=True)
        if arguments:
            seen[arguments[0]] += 1
            found.append(Job(tuple(arguments), out / f"{arguments[0]}.{seen[arguments[0]]}.sqlite"))
    return found


def run_job(job: Job, base: str | None, known: Path | None, until: float) -> None:
    """In a process of its own: `inlay recipe run`, what it prints in a file."""
    from inlay.cli.main import main as inlay

    if known is not None and not job.store.exists():
        shutil.copy(known, job.store)

    log = os.open(job.store.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    minutes = max(0.0, (until - time.time()) / 60)
    given = ["recipe", "run", *job.arguments, "--store", str(job.store), "--minutes", f"{minutes:.2f}"]
    given += ["--save-every", "3600", "--csv", str(job.store.with_suffix(".csv"))]
    sys.argv = ["inlay", *given, *(["--base", base] if base else [])]
    inlay()


def run(jobs: Sequence[Job], workers: int, base: str | None, known: Path | None, minutes: float) -> None:
    """So many at a time, each until it ends or the time is up.

    Args:
        known: a merged store; what it has is not run again.
    """
    import inlay.cli.recipe  # once, here: children inherit what is imported
    import inlay.recipes.api
    import inlay.recipes.table_beside_paper  # noqa: F401

    began = time.time()
    until = began + 60 * minutes
    fork = multiprocessing.get_context("fork")
    waiting, running = list(jobs), dict[str, tuple[multiprocessing.process.BaseProcess, float]]()
    while running or (waiting and time.time() < until - 20):
        while waiting and len(running) < workers and time.time() < until - 20:
            job = waiting.pop(0)
            process = fork.Process(target=run_job, args=(job, base, known, until))
            process.start()
            running[job.name] = (process, time.time())
        for name, (process, start) in list(running.items()):
            if not process.is_alive():
                del running[name]
                now = time.time()
                print(f"{now - began:6.0f} s  {name}: {now - start:.0f} s, exit {process.exitcode}", flush=True)
        time.sleep(0.1)
    for job in waiting:
        print(f"not begun: {job.name}")


def merge(out: Path) -> None:
    """One store with all runs that have ended, whatever their recipe, and a line for each in all.jsonl."""
    whole = out / "all.sqlite"
    for old in out.glob("all.sqlite*"):
        old.unlink()
    paths = sorted(out.glob("*.*.sqlite"))
    with closing(sqlite3.connect(paths[0])) as first, closing(sqlite3.connect(whole)) as all_runs:
        first.backup(all_runs)
        with all_runs:
            all_runs.execute("delete from runs where state <> 'done'")
        columns = ", ".join(row[1] for row in all_runs.execute("pragma table_info(runs)") if row[1] != "position")
        for path in paths[1:]:
            all_runs.execute("attach ? as other", (str(path),))
            with all_runs:
                at = all_runs.execute("select coalesce(max(position) + 1, 0) from runs").fetchone()[0]
                ended = f"select position + {at}, {columns} from other.runs where state = 'done'"
                all_runs.execute(f"insert or ignore into runs (position, {columns}) {ended}")
                all_runs.execute("insert or ignore into about select key, value from other.about")
            all_runs.execute("detach other")
        lines = list(said_of_runs(all_runs))
    whole.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{whole}: {len(lines)} runs")


def said_of_runs(store: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    """What was run and what came of it, for bench/results."""
    columns = "label, config, seed, metrics"
    for label, config, seed, metrics in store.execute(f"select {columns} from runs order by label, seed"):
        settings = json.loads(config)
        own = {key: settings[key] for key in SETTINGS if settings.get(key) is not None}
        by_split = json.loads(metrics).items()
        scores = {split: {key: round(one[key], 5) for key in SCORES if key in one} for split, one in by_split}
        yield {"run": label, **own, "seed": seed, "scores": scores}


def main(given: Sequence[str] | None = None) -> None:
    """Nothing of Inlay is imported before it is needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["data", "run", "merge"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--jobs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base")
    parser.add_argument("--known", type=Path, help="a merged store, whose runs are not run again")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=8)
    arguments = parser.parse_args(given)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.what == "data":
        make_data(arguments.data, arguments.out)
    elif arguments.what == "run":
        jobs = read_jobs(arguments.jobs, arguments.out)
        run(jobs, arguments.workers, arguments.base, arguments.known, arguments.minutes)
    else:
        merge(arguments.out)


if __name__ == "__main__":
    main()
