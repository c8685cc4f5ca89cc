"""SetFit on the draws of bench/few_shot.py: its default settings, in an environment without Inlay.

    python -m venv setfit && setfit/bin/pip install torch==2.13.0 setfit==1.2.0
    setfit/bin/python bench/few_shot_setfit.py --draws DRAWS --base FOLDER --store results.jsonl --processes 8

SetFit trains as it does by default: one epoch over all pairs ("oversampling"), batches of 16 pairs, a learning rate of
2e-5 for the body, logistic regression as the head, seed 42. Logs and checkpoints are off, which changes no weight. The
encoder is trained in fp32, however its file stores it. Several processes can share a GPU. `--seconds` ends the work in
time; the next call goes on with the runs that the store lacks.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from few_shot_rows import Job, columns, jobs, write

PACKAGES = ("setfit", "sentence-transformers", "transformers", "datasets", "torch", "scikit-learn")
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def train(job: Job, base: str) -> dict[str, Any]:
    """One run: the result for the store."""
    import torch
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    texts, labels = columns(job.train)
    model = SetFitModel.from_pretrained(base)
    model.model_body.float()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "show_progress_bar": False}
        arguments = TrainingArguments(output_dir=folder, **quiet)
        trainer = Trainer(
            model=model, args=arguments, train_dataset=Dataset.from_dict({"text": texts, "label": labels})
        )
        trainer.train()
    tested, gold = columns(job.test)
    answers = model.predict(tested)
    seconds = time.perf_counter() - began
    accuracy = sum(str(a) == g for a, g in zip(answers, gold, strict=True)) / len(gold)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return job.line("setfit", accuracy, seconds, steps=trainer.st_trainer.state.global_step, device=device)


def _begin(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _attempt(work: tuple[Job, str]) -> dict[str, Any]:
    try:
        return train(*work)
    except Exception as error:  # the other runs go on
        job = work[0]
        return {"problem": f"{job.dataset} {job.size}-{job.draw}: {type(error).__name__}: {error}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=Path, required=True, help="the folder that `bench/few_shot.py draw` wrote")
    parser.add_argument("--base", required=True, help="a sentence-transformers folder")
    parser.add_argument(
        "--store", type=Path, required=True, help="a JSONL file; a run whose line it has is not repeated"
    )
    parser.add_argument("--datasets", default="", help="with commas; default: all in the folder")
    parser.add_argument("--sizes", default="8,16,32")
    parser.add_argument("--most", type=int, default=10, help="how many draws")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long, whatever is left")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    os.environ.update(ENVIRONMENT)
    datasets = given.datasets.split(",") if given.datasets else sorted(f.name for f in given.draws.iterdir())
    left = jobs(given.draws, given.store, "setfit", datasets, [int(s) for s in given.sizes.split(",")], given.most)
    about = {"versions": {name: importlib.metadata.version(name) for name in PACKAGES}, "processes": given.processes}
    print(f"{len(left)} runs to do; {about['versions']}", flush=True)
    threads = max(1, (os.cpu_count() or 1) // given.processes)
    problems = 0
    with multiprocessing.get_context("spawn").Pool(given.processes, _begin, (threads,)) as pool:
        results = pool.imap_unordered(_attempt, [(job, given.base) for job in left])
        for i in range(len(left)):
            try:
                line = results.next(max(0.0, min(end - time.monotonic(), 1e6)))
            except multiprocessing.TimeoutError:
                print(f"out of time with {len(left) - i} runs left", flush=True)
                break
            if "problem" in line:
                problems += 1
                print(line["problem"], flush=True)
                continue
            write(given.store, [line | about], append=True)
            print(
                i + 1, *(line[name] for name in ("dataset", "size", "draw", "accuracy", "steps", "seconds")), flush=True
            )
    return int(problems > 0)


if __name__ == "__main__":
    sys.exit(main())
