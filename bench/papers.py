"""The papers' tables, many recipes at a time on one GPU.

    python bench/papers.py data --data FOLDER --out PAPERS          GLUE, TAE and texts as the recipes want them
    python bench/papers.py list                                     what is missing, and about how long it takes; no GPU
    python bench/papers.py run --data PAPERS --out STORES           again and again (--minutes 8), until nothing is left
    python bench/papers.py merge --out STORES                       one store for all recipes, all.sqlite, and all.jsonl

What is run is in bench/papers.txt (`--jobs`): a line of arguments of `inlay recipe run` per table, such as
`he-glue-1k glue --only CoLA,RTE --lines finetune`, its folder below PAPERS. Each dataset of a line is a job: a process
with a store of its own (STORES/he-glue-1k.3.sqlite, the third job of that recipe). Runs that bench/results/papers.jsonl
has (`--known`) are noted in a new store as done. So `list` counts what is left of each line, and `run` trains no more.

Full fine-tuning steps one run at a time and leaves most of a large GPU idle, so several processes take much less time
than one; NVIDIA's MPS lets their kernels run at the same time. After `merge`, the table itself is

    inlay recipe run he-glue-1k PAPERS/glue --store STORES/all.sqlite --minutes 0 --csv FILE

and the lines of all.jsonl belong into bench/results/papers.jsonl.

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
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from papers_jobs import Job, Known, enough, fill, line_of, planned, read_ended, read_jobs

HERE = Path(__file__).parent
BASE = "sentence-transformers/all-MiniLM-L6-v2"
HELD_OUT = 2000
SUBSETS = ("MNLI", "QNLI", "QQP")
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


def show_missing(jobs: Sequence[Job], base: str, ended: Mapping[Known, Any]) -> None:
    """For each line of the file, how many of its runs neither are known nor belong to a line above, and their time."""
    minutes, missing = 0.0, set[Known]()
    for job in jobs:
        plans = planned(job, base)
        done = enough(plans, ended).keys() | missing
        new = [plan for plan in plans if plan.known not in done]
        missing |= {plan.known for plan in new}
        own = sum(plan.seconds for plan in new) / 60
        minutes += own
        command = " ".join(("inlay recipe run", job.recipe, *job.arguments))
        print(f"{len(new):5,} of {len(plans):5,} runs, {own:6.1f} minutes: {command}")
    print(f"{len(missing):,} runs in all, about {minutes:.0f} minutes of one H200 with 12 processes or more")


def run_job(job: Job, base: str, ended: Mapping[Known, Any], until: float) -> None:
    """In a process of its own: `inlay recipe run`, what it prints in a file."""
    from inlay.cli.main import main as inlay
    from inlay.sweeps.store import Store

    log = os.open(job.store.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    own = job.given.base or base
    given = ["inlay", "recipe", "run", job.recipe, *job.arguments, "--store", str(job.store), "--base", own]
    with Store(job.store) as opened:
        is_begun = opened.about("base") is not None
    if not is_begun:
        sys.argv = [*given, "--minutes", "0"]  # puts all runs into the store
        try:
            inlay()
        except SystemExit as end:
            if end.code:
                raise
        fill(job.store, enough(planned(job, own), ended), own)
        with Store(job.store) as opened:
            opened.note("base", own)
    minutes = max(0.0, (until - time.time()) / 60)
    more = ["--save-every", "3600", "--csv", str(job.store.with_suffix(".csv"))]
    sys.argv = [*given, "--minutes", f"{minutes:.2f}", *more]
    inlay()


def run(jobs: Sequence[Job], workers: int, base: str, ended: Mapping[Known, Any], minutes: float) -> None:
    """So many at a time, each until it ends or the time is up."""
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
            process = fork.Process(target=run_job, args=(job, base, ended, until))
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
    lines = {id: line for path in paths for id, line in ended_in(path)}
    text = "".join(
        json.dumps(line) + "\n" for line in sorted(lines.values(), key=lambda one: (one["base"], one["run"]))
    )
    whole.with_suffix(".jsonl").write_text(text)
    print(f"{whole}: {len(lines)} runs")


def ended_in(store: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Id and line of every run of a store that has ended."""
    with closing(sqlite3.connect(store)) as opened:
        noted = opened.execute("select value from about where key = 'base'").fetchone()
        base = json.loads(noted[0]) if noted else BASE
        for id, label, *texts, seed in opened.execute(
            "select id, label, config, metrics, seed from runs where state = 'done'"
        ):
            config, metrics = map(json.loads, texts)
            yield id, line_of(base, label, config, seed, metrics)


def main(given: Sequence[str] | None = None) -> None:
    """Nothing of Inlay is imported before it is needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["data", "list", "run", "merge"])
    parser.add_argument("--data", type=Path, default=Path("PAPERS"))
    parser.add_argument("--jobs", type=Path, default=HERE / "papers.txt")
    parser.add_argument("--out", type=Path, default=Path("STORES"))
    parser.add_argument("--base", default=BASE, help="of the lines that name none")
    parser.add_argument("--known", type=Path, default=HERE / "results" / "papers.jsonl", help="runs that have ended")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=8)
    arguments = parser.parse_args(given)
    if arguments.what == "list":
        lines = read_jobs(arguments.jobs, arguments.out, whole=True)
        show_missing(lines, arguments.base, read_ended(arguments.known))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.what == "data":
        make_data(arguments.data, arguments.out)
    elif arguments.what == "run":
        jobs = read_jobs(arguments.jobs, arguments.out, arguments.data)
        run(jobs, arguments.workers, arguments.base, read_ended(arguments.known), arguments.minutes)
    else:
        merge(arguments.out)


if __name__ == "__main__":
    main()
