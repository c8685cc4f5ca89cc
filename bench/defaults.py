"""The study behind the defaults: open datasets at several sizes, all methods, several draws, one change at a time.

    python bench/defaults.py draw --data FOLDER --out STUDY                  the rows, so that FOLDER may stay behind
    python bench/defaults.py run --data FOLDER --out STUDY --minutes 8       again and again, until nothing is left
    python bench/defaults.py table --out STUDY                               study.csv, study.md, and it is printed
    python bench/defaults.py run --data FOLDER --out STUDY --quick           a few minutes on a CPU: does it work?

FOLDER has the datasets as they are published (`DATASETS` says which files). A draw takes so many rows of a dataset,
with every class, and a run gets all of them: what it holds out is part of its defaults. Scores are accuracies on
`TEST` rows that no draw of the dataset has. STUDY keeps draws and a line for every run that has ended (runs.jsonl), so
a study that was stopped goes on. Runs on equally many rows train side by side.

A setting is the default with one thing changed (`SETTINGS`), for Houlsby adapters all of them, for other methods those
of `OTHERS`; `logistic` is a regression on the frozen base's states, and `tf-idf` (only if it is named, needs
no GPU) the tuned baseline of `inlay compare`.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, str]
TEST = 1000
SIZES = (32, 100, 300, 1000, 4000)
METHODS = ("houlsby", "adapterbias", "lora", "bitfit", "finetune")
LOGISTIC = "logistic"
TFIDF = "tf-idf"
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "usual": {"few_shot": False, "folds": 0},
    "few-shot": {"few_shot": True},
    "few-shot, rows held out": {"few_shot": True, "folds": 0},
    "few-shot, 50 steps": {"few_shot": True, "few_shot_steps": 50, "folds": 0},
    "few-shot, 200 steps": {"few_shot": True, "few_shot_steps": 200, "folds": 0},
    "few-shot, temperature 0.05": {"few_shot": True, "few_shot_temperature": 0.05, "folds": 0},
    "few-shot, temperature 0.3": {"few_shot": True, "few_shot_temperature": 0.3, "folds": 0},
    "few-shot, batch 32": {"few_shot": True, "batch_size": 32, "folds": 0},
    "few-shot, then 100 steps": {"few_shot": True, "max_steps": 100, "folds": 0},
    "few-shot, lr x 0.5": {"few_shot": True, "folds": 0, "lr": 0.25},
    "few-shot, lr x 2": {"few_shot": True, "folds": 0, "lr": 1.0},
    "head fitted, then 200 steps": {"few_shot": True, "few_shot_steps": 1, "max_steps": 200, "folds": 0},
    "200 steps": {"few_shot": False, "steps": 200},
    "800 steps": {"few_shot": False, "steps": 800},
    "lr x 0.3": {"few_shot": False, "lr": 0.3},
    "lr x 3": {"few_shot": False, "lr": 3.0},
    "batch 8": {"few_shot": False, "batch_size": 8},
    "batch 32": {"few_shot": False, "batch_size": 32},
    "keep score": {"few_shot": False, "choose_by": "score"},
    "keep loss": {"few_shot": False, "choose_by": "loss"},
    "keep last": {"few_shot": False, "choose_by": "last"},
}
"""`lr` is a factor of the method's own learning rate; `steps` become epochs."""
OTHERS = ("default", "usual", "few-shot", "few-shot, rows held out", "few-shot, lr x 0.5", "few-shot, lr x 2")
OTHERS += ("lr x 0.3", "lr x 3")


# --- datasets -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dataset:
    """Files below the folder, and how they are read."""

    files: tuple[str, ...]
    """Those of the pool, and if it has one its test file behind them."""
    read: Callable[[Path], list[Row]]
    has_test: bool = False


def delimited(text: str, label: str, pair: str = "", delimiter: str = ",") -> Callable[[Path], list[Row]]:
    def read(path: Path) -> list[Row]:
        quoting = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
        with path.open(encoding="utf-8" if delimiter == "\t" else "latin-1", newline="") as file:
            rows = csv.DictReader(file, delimiter=delimiter, quoting=quoting)
            return [_row(one[text], one[label], one[pair] if pair else "") for one in rows]

    return read


def json_lines(path: Path) -> list[Row]:
    return [_row(one["text"], str(one["label"])) for one in map(json.loads, path.read_text().splitlines())]


def spam(path: Path) -> list[Row]:
    lines = (line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line)
    return [_row(text, label) for label, text in lines]


def _row(text: str, label: str, pair: str = "") -> Row:
    return {"text": text, "label": label} | ({"pair": pair} if pair else {})


DATASETS = {
    "sst2": Dataset(
        ("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv"), delimited("sentence", "label", delimiter="\t"), True
    ),
    "sms": Dataset(("sms_spam/SMSSpamCollection",), spam),
    "airline": Dataset(("crowdflower/Airline-Sentiment-2-w-AA.csv",), delimited("text", "airline_sentiment")),
    "corporate": Dataset(("crowdflower/Corporate-messaging-DFE.csv",), delimited("text", "category")),
    "disasters": Dataset(("crowdflower/socialmedia-disaster-tweets-DFE.csv",), delimited("text", "choose_one")),
    "citations": Dataset(("tae/citation_intent/train.txt", "tae/citation_intent/test.txt"), json_lines, True),
    "relations": Dataset(
        ("tae/sciie-relation-extraction/train.txt", "tae/sciie-relation-extraction/test.txt"), json_lines, True
    ),
    "chemprot": Dataset(("tae/chemprot/train.txt", "tae/chemprot/test.txt"), json_lines, True),
}
_RARE = 20
"""Rows that a class needs to be part of the study."""


def pool_and_test(folder: Path, name: str) -> tuple[list[Row], list[Row]]:
    """The rows that draws are taken from, and those that all runs are scored on."""
    dataset = DATASETS[name]
    parts = [dataset.read(folder / file) for file in dataset.files]
    test = parts.pop() if dataset.has_test else []
    rows = [row for part in parts for row in part if row["text"].strip()]
    pool = list({(row["text"], row.get("pair")): row for row in rows}.values())
    counts: dict[str, int] = defaultdict(int)
    for row in pool:
        counts[row["label"]] += 1
    pool = [row for row in pool if counts[row["label"]] >= _RARE]
    known = {row["label"] for row in pool}
    draw = random.Random(f"test rows of {name}")
    draw.shuffle(pool)
    if not test:
        test, pool = pool[:TEST], pool[TEST:]
    texts = {row["text"] for row in pool}
    test = [row for row in test if row["label"] in known and (not dataset.has_test or row["text"] not in texts)]
    draw.shuffle(test)
    return pool, test[:TEST]


def drawn(pool: Sequence[Row], size: int, seed: int) -> list[Row]:
    """Two rows of every class, or what there is room for, and the rest as it comes."""
    rows = list(pool)
    random.Random(f"draw {seed}").shuffle(rows)
    first: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if len(first[row["label"]]) < 2:
            first[row["label"]].append(row)
    must = [row for own in first.values() for row in own][:size]
    chosen = {id(row) for row in must}
    return must + [row for row in rows if id(row) not in chosen][: size - len(must)]


def written(folder: Path, out: Path, name: str, size: int, seed: int) -> tuple[Path, Path] | None:
    """Files with a draw and with the test rows; None if the dataset is too small."""
    train, test = out / "data" / name / f"{size}-{seed}.jsonl", out / "data" / name / "test.jsonl"
    if not train.exists() or not test.exists():
        pool, scored = pool_and_test(folder, name)
        train.parent.mkdir(parents=True, exist_ok=True)
        for path, rows in ((train, drawn(pool, size, seed) if len(pool) >= size else []), (test, scored)):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (train, test) if train.stat().st_size else None


# --- runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One run of the study."""

    dataset: str
    size: int
    method: str
    seed: int
    setting: str

    def run(self, train: Path, test: Path) -> Any:
        import inlay

        given = dict(SETTINGS[self.setting])
        if "lr" in given:
            given["lr"] *= inlay.parse_method(self.method).learning_rate
        if "steps" in given:
            rows = self.size - max(1, round(self.size / 10))
            given["epochs"] = math.ceil(given.pop("steps") / math.ceil(rows / given.get("batch_size", 16)))
        files = {"data": str(train), "test": str(test), "text": "text", "label": "label", "task": "classification"}
        return inlay.Run(**files, method=self.method, seed=self.seed, **given)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """All of them, small ones first."""
    for size in arguments.sizes:
        for dataset in arguments.datasets:
            for seed in range(arguments.seeds):
                yield Case(dataset, size, LOGISTIC, seed, "default")
        for setting in arguments.settings:
            for method in arguments.methods:
                few = ("default",) if method == TFIDF else SETTINGS if method == METHODS[0] else OTHERS
                if _is_twice(size, setting) or setting not in few:
                    continue
                for dataset in arguments.datasets:
                    for seed in range(arguments.seeds):
                        yield Case(dataset, size, method, seed, setting)


def _is_twice(size: int, setting: str) -> bool:
    """Whether a setting is the default under another name, or hopeless: with many rows few-shot is too short."""
    from inlay.runs.few import FEW_SHOT_BELOW

    usual = setting == "usual" and size >= FEW_SHOT_BELOW
    return usual or (setting == "few-shot" and size < FEW_SHOT_BELOW) or ("few-shot" in setting and size > 1000)


def ended(out: Path) -> dict[Case, dict[str, Any]]:
    file = out / "runs.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {Case(**line["case"]): line for line in lines}


def draw(arguments: argparse.Namespace) -> None:
    for name in arguments.datasets:
        sizes = [
            size
            for size in arguments.sizes
            for seed in range(arguments.seeds)
            if written(Path(arguments.data), Path(arguments.out), name, size, seed) is not None
        ]
        print(f"{name}: {len(sizes)} draws", flush=True)


def run(arguments: argparse.Namespace) -> None:
    import inlay

    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    host = inlay.Host(arguments.base)

    def train(some: Sequence[Case]) -> None:
        with (out / "runs.jsonl").open("a") as file:
            for case, result in zip(some, results(host, arguments, some), strict=True):
                file.write(json.dumps({"case": vars(case), **result}) + "\n")

    done = ended(out)
    in_groups([case for case in cases(arguments) if case not in done], "runs", arguments, train)


def in_groups(left: list[Any], called: str, arguments: argparse.Namespace, work: Callable[[list[Any]], None]) -> None:
    """Work on what is left, those of one size together: they take equally many steps. Begin nothing that would end too
    late."""
    began, longest = time.monotonic(), 0.0
    while left and time.monotonic() - began + longest <= 60 * arguments.minutes:
        start = time.monotonic()
        some = [one for one in left if one.size == left[0].size][: arguments.together]
        work(some)
        left = [one for one in left if one not in set(some)]
        took = time.monotonic() - start
        longest = max(longest, took)
        print(f"{len(some)} {called} of {some[0].size} rows: {took:.0f} s", flush=True)
    print(f"{len(left)} {called} left" if left else "nothing is left", flush=True)


def results(host: Any, arguments: argparse.Namespace, some: Sequence[Case]) -> list[dict[str, Any]]:
    """What runs give, side by side."""
    import inlay

    found: dict[int, dict[str, Any]] = {}
    runs: dict[int, Any] = {}
    for i, case in enumerate(some):
        files = written(Path(arguments.data), Path(arguments.out), case.dataset, case.size, case.seed)
        if files is None:
            found[i] = {"problem": "the dataset is too small"}
        elif case.method == LOGISTIC:
            found[i] = {"test": frozen(host, *files)}
        elif case.method == TFIDF:
            found[i] = {"test": words(host, case, *files)}
        else:
            runs[i] = case.run(*files)
    trained = inlay.train(host, list(runs.values()), progress=False) if runs else []
    for i, result in zip(runs, trained, strict=True):
        if not result.ok:
            found[i] = {"problem": result.problem}
            continue
        steps = {"steps": len(result.losses), "kept": result.best_step, "seconds": round(result.seconds, 2)}
        config = {key: result.config.get(key) for key in ("epochs", "few_shot", "few_shot_steps", "folds", "choose_by")}
        scores = {split: scores["accuracy"] for split, scores in result.metrics.items()}
        found[i] = {**scores, **steps, "config": config}
    return [found[i] for i in range(len(some))]


def frozen(host: Any, train: Path, test: Path) -> float:
    """The test accuracy of a regression on the states of the frozen base."""
    import torch

    import inlay
    from inlay.engine.evaluate import outputs_of
    from inlay.heads import logistic
    from inlay.runs.prepare import prepare

    data = prepare(inlay.Run(data=str(train), test=str(test), text="text", label="label", few_shot=True, folds=2), host)
    assert data.test is not None
    host.add(LOGISTIC, "norms", labels=data.labels, head="states")
    parts = [(LOGISTIC, part.rows) for part in (data.train, data.test)]
    states, asked = (torch.stack(list(out)) for out in outputs_of(host, parts))
    host.unload(LOGISTIC)
    head = logistic.fit(states, [row.target for row in data.train.rows], len(data.labels))
    best = (asked @ head["weight"] + head["bias"]).argmax(1).tolist()
    return statistics.mean(data.labels[i] == e.target for i, e in zip(best, data.test.examples, strict=True))


def words(host: Any, case: Case, train: Path, test: Path) -> float:
    """The test accuracy of TF-IDF with a linear model, tuned on the rows that a run holds out."""
    import inlay
    from inlay.comparison.linear import tune
    from inlay.runs.prepare import prepare

    read = {"data": str(train), "test": str(test), "text": "text", "label": "label", "task": "classification"}
    data = prepare(inlay.Run(**read, seed=case.seed, few_shot=False, folds=0), host)
    assert data.test is not None
    answers = tune(data, 20)[2](data.test.examples)
    return float(data.task.score(data.test.examples, answers, data.labels)["accuracy"])


# --- tables -------------------------------------------------------------------------------------------------------


def table(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out)
    lines = [{**line["case"], **{k: v for k, v in line.items() if k != "case"}} for line in map_lines(out)]
    columns = list(dict.fromkeys(key for line in lines for key in line if key != "config"))
    with (out / "study.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
    text = "\n\n".join(_tables([line for line in lines if "test" in line]))
    (out / "study.md").write_text(text + "\n")
    print(text)


def map_lines(out: Path) -> list[dict[str, Any]]:
    return list(ended(out).values())


def _tables(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table for every size: settings down, methods across; a cell is the mean test accuracy over datasets and draws,
    and the difference to the default with its standard error, paired by dataset and draw."""
    of: dict[tuple[int, str, str], dict[tuple[str, int], float]] = defaultdict(dict)
    for line in lines:
        of[line["size"], line["method"], line["setting"]][line["dataset"], line["seed"]] = 100 * line["test"]
    sizes = sorted({size for size, _, _ in of})
    for size in sizes:
        methods = [m for m in METHODS if any(key[:2] == (size, m) for key in of)]
        rows = [f"### {size:,} rows", "", f"| setting | {' | '.join(methods)} |", f"|---|{'---|' * len(methods)}"]
        for setting in SETTINGS:
            cells = [_cell(of.get((size, m, setting), {}), of.get((size, m, "default"), {}), setting) for m in methods]
            if any(cells):
                rows.append(f"| {setting} | {' | '.join(cells)} |")
        more = " |" * (len(methods) - 1)
        for title, baseline in (("logistic regression, frozen", LOGISTIC), ("TF-IDF, tuned", TFIDF)):
            if known := of.get((size, baseline, "default")):
                rows.append(f"| {title} | {statistics.mean(known.values()):.1f} |{more}")
        yield "\n".join(rows)


def _cell(mine: Mapping[Any, float], default: Mapping[Any, float], setting: str) -> str:
    if not mine:
        return ""
    mean = f"{statistics.mean(mine.values()):.1f}"
    both = [mine[key] - default[key] for key in mine if key in default]
    if setting == "default" or len(both) < 2:
        return mean
    return f"{mean} ({statistics.mean(both):+.1f} ± {statistics.stdev(both) / math.sqrt(len(both)):.1f})"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "run", "table"))
    parser.add_argument("--data", default=".", help="the folder with the datasets")
    parser.add_argument("--out", required=True, help="where the study is kept")
    parser.add_argument("--base", help="default: all-MiniLM-L6-v2")
    parser.add_argument("--datasets", type=_listed, default=list(DATASETS))
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in _listed(text)], default=list(SIZES))
    parser.add_argument("--methods", type=lambda text: text.split(";"), default=list(METHODS), help="separated by ;")
    parser.add_argument("--settings", type=lambda text: text.split(";"), default=list(SETTINGS), help="separated by ;")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--together", type=int, default=64, help="runs side by side")
    parser.add_argument("--minutes", type=float, default=8, help="begin nothing that would end later")
    parser.add_argument("--quick", action="store_true", help="two settings of one method on 32 rows, one draw")
    arguments = parser.parse_args(given)
    if arguments.quick:
        arguments.sizes, arguments.methods, arguments.seeds = [32], ["houlsby"], 1
        arguments.settings = ["default", "few-shot, rows held out"]
    unknown = [s for s in arguments.settings if s not in SETTINGS]
    unknown += [d for d in arguments.datasets if d not in DATASETS]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}")
    {"draw": draw, "run": run, "table": table}[arguments.what](arguments)


def _listed(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    main()
