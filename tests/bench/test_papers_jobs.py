"""bench/papers_jobs.py: which runs of the papers' tables are known, and what is left."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny
from recipes import cooking
from typer.testing import CliRunner

from inlay.cli.main import app
from inlay.sweeps.store import read_rows

BENCH = Path(__file__).parents[2] / "bench"
SCRIPT = BENCH / "papers_jobs.py"
BASE = "sentence-transformers/all-MiniLM-L6-v2"
PAGE = BENCH.parent / "docs" / "reproduction.md"


def plans(study: Any, folder: Path, line: str) -> Any:
    (folder / "jobs.txt").write_text(f"{line}  # a comment\n")
    (job,) = study.read_jobs(folder / "jobs.txt", folder, whole=True)
    return study.planned(job, BASE)


def test_a_line_is_a_job_for_each_of_its_datasets(study, tmp_path):
    (tmp_path / "jobs.txt").write_text("# nothing\nhe-tae tae --only ACL-ARC,SciERC --lines adapter\n")
    first, second = study.read_jobs(tmp_path / "jobs.txt", tmp_path, Path("there"))
    assert first.arguments == ("there/tae", "--only", "ACL-ARC", "--lines", "adapter")
    assert (second.given.only, second.name) == ("SciERC", "he-tae.2")


def test_what_is_known_is_not_run_again(study, tmp_path):
    line = "he-tae tae --only ACL-ARC --lines adapter --grid attention_dropout=false"
    five = plans(study, tmp_path, line)
    assert [plan.known.seed for plan in five] == [0, 1, 2, 3, 4]
    own = {"method": "houlsby:size=256,activation=tanh", "lr": 1e-4, "epochs": 20, "pool": "cls", "head": "tanh2"}
    label = "ACL-ARC.finetune houlsby:size=256,activation=tanh seed=3"
    ended = {study.known("all-MiniLM-L6-v2", label, 3, own): "scores"}
    assert [plan.known.seed for plan in five if plan.known not in study.enough(five, ended)] == [0, 1, 2, 4]
    for other in (line.replace(" --grid attention_dropout=false", ""), line.replace("adapter", "adapter-tapt")):
        assert study.enough(plans(study, tmp_path, other), ended) == {}
    assert study.known("all-mpnet-base-v2", label, 3, own) not in ended


def test_limits_of_rows_and_steps_count(study, tmp_path):
    line = "he-tae tae --only ACL-ARC --lines adapter-64 --grid attention_dropout=false --seeds 1"
    (run,) = plans(study, tmp_path, f"{line} --train-size 64 --max-steps 9")
    own = {"lr": 1e-4, "epochs": 20, "pool": "cls", "head": "tanh2", "train_size": "64", "max_steps": 9}
    label = "ACL-ARC houlsby:size=64,activation=tanh seed=0"  # the command line leaves numbers of rows as text
    assert run.known == study.known(BASE, label, 0, own)
    assert run.known != study.known(BASE, label, 0, own | {"train_size": "6%"})
    assert run.known != study.known(BASE, label, 0, own | {"max_steps": None})


def test_runs_that_two_tables_have_are_the_same(study, tmp_path):
    tuned = "he-glue-1k glue --only CoLA --lines finetune --tune lr=2e-5,6e-5 --seeds 1 --grid attention_dropout=false"
    robust = "he-robustness glue --only CoLA-1k --lines finetune-6e-5 --seeds 1 --grid attention_dropout=false"
    (shared,) = plans(study, tmp_path, robust)
    assert shared.known in {plan.known for plan in plans(study, tmp_path, tuned)}


def test_scores_are_not_enough_for_what_an_adapter_keeps(study, tmp_path):
    kept = plans(study, tmp_path, "adapterbias-l0 glue --only RTE --lines bb-l0,bb-kept --seeds 1")
    assert [plan.asks_scores_only for plan in kept] == [False]


def test_every_line_lacks_something_and_takes_time(study):
    ended = study.read_ended(BENCH / "results" / "papers.jsonl")
    jobs = study.read_jobs(BENCH / "papers.txt", Path())
    for job in jobs:
        own = study.planned(job, BASE)
        assert all(plan.seconds > 0 for plan in own)
    for job in study.read_jobs(BENCH / "papers.txt", Path(), whole=True):
        own = study.planned(job, BASE)
        assert len(study.enough(own, ended)) < len(own), job
    assert max(Counter(job.store for job in jobs).values()) == 1


def test_the_page_says_what_is_left():
    listed = subprocess.run([sys.executable, BENCH / "papers.py", "list"], capture_output=True, text=True, check=True)
    left = re.findall(r"^ *([\d,]+) of .* runs, +([\d.]+) minutes: (inlay .*)$", listed.stdout, re.M)
    section = PAGE.read_text().partition("## What was not run")[2].partition("\n## ")[0]
    told = re.findall(r"^\| .* \| ([\d,]+) \| (\d+) \| `(inlay .*)` \|$", section, re.M)
    assert len(left) > 10
    assert [(runs, command) for runs, _, command in told] == [(runs, command) for runs, _, command in left]
    assert [int(minutes) for _, minutes, _ in told] == pytest.approx([float(m) for _, m, _ in left], abs=0.51)


@pytest.mark.full
def test_a_store_goes_on_from_lines(study, tmp_path):
    base, store = tiny.save_text_model(tmp_path / "base"), tmp_path / "s.sqlite"
    mine, data = cooking.write(tmp_path), cooking.serve(tmp_path / "data", cooking.FILES)
    how = ["recipe", "run", mine, data, "--base", base, "--only", "First", "--lines", "eight", "--store", str(store)]
    assert CliRunner().invoke(app, [*how, "--minutes", "0"]).exit_code == 0
    waiting = read_rows(store)
    scores = {"validation": {"accuracy": 0.75}}
    lines = [study.line_of(base, row.label, row.config, row.seed, scores) for row in waiting]
    ended = {study.known(line["base"], line["run"], line["seed"], line): line["scores"] for line in lines[1:]}
    assert len(ended) == len(waiting) - 1 > 0
    assert study.fill(store, ended, base) == len(ended)
    assert [row.state for row in read_rows(store)] == ["waiting", *["done"] * len(ended)]
    done = CliRunner().invoke(app, [*how, "--seeds", "2"])
    assert f"{len(ended)} of them are already done" in done.stdout
    assert "92.0 | 75.0" in done.stdout
