"""Few rows per class: Inlay, SetFit and logistic regression on the same encoder, the same draws and the same test rows.

    python bench/few_shot.py draw --data DATA --draws DRAWS
    python bench/few_shot.py run --draws DRAWS --base FOLDER --store results.jsonl --rival inlay
    python bench/few_shot.py run --draws DRAWS --base FOLDER --store results.jsonl --rival logistic
    python bench/few_shot.py run --draws DRAWS --base FOLDER --store results.jsonl --rival setfit --python PYTHON
    python bench/few_shot.py table results.jsonl

DATA holds `glue`, `sms_spam`, `crowdflower`, `tae` and `20newsgroups`, each as its authors published it. FOLDER is a
sentence-transformers folder, such as all-MiniLM-L6-v2's. PYTHON is that of SetFit's environment (few_shot_setfit.py).

The protocol, fixed before any rival had run:

- There are eight datasets: three of two classes, two of three, one each of six, seven and twenty. Means are over those
  that all rivals have run at all sizes. SetFit's defaults take 128 steps at 32 rows per class of two classes, 384 of
  three, 1,920 of six, 2,688 of seven, and 24,320 of twenty, for each of ten draws.
- Labels that are no class are left out: "Can't Decide" of the disasters (16 rows), "Exclude" of the corporate messages
  (39). So are texts with two labels. Of equal texts one is kept. No test text can be drawn.
- The test rows are the published test set (SST-2: dev; ACL-ARC: dev and test, as 139 rows are few), or rows set aside
  once; at most 1,000. Their classes are as frequent as in the data; a draw has equally many rows of each class.
- A draw of 8 rows per class is part of the same draw of 16, and that of the same draw of 32.
- Every rival has its defaults, its default seed included, and sees nothing but the draw.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from few_shot_rows import Job, columns, jobs, read, write

SIZES = (8, 16, 32)
MOST_TEST_ROWS = 1000
Rows = list[tuple[str, str]]
"""(text, label)"""


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").rstrip("\n").split("\n")


def _sst2(data: Path) -> list[Rows]:
    def of(split: str) -> Rows:
        rows = [line.split("\t") for line in _lines(data / f"glue/SST-2/{split}.tsv")[1:]]
        return [(text, {"0": "negative", "1": "positive"}[label]) for text, label in rows]

    return [of("train"), of("dev")]


def _sms(data: Path) -> list[Rows]:
    rows = [line.split("\t", 1) for line in _lines(data / "sms_spam/SMSSpamCollection")]
    return [[(text, label) for label, text in rows]]


def _crowdflower(file: str, label: str, without: str = "") -> Callable[[Path], list[Rows]]:
    def of(data: Path) -> list[Rows]:
        text = (data / "crowdflower" / file).read_bytes().decode("latin-1")
        rows = csv.DictReader(io.StringIO(text, newline=""))
        return [[(row["text"], row[label]) for row in rows if row[label] != without]]

    return of


def _json(train: str, *test: str) -> Callable[[Path], list[Rows]]:
    def of(data: Path) -> list[Rows]:
        both = [read(data / train), [row for file in test for row in read(data / file)]]
        return [[(row["text"], row["label"]) for row in rows] for rows in both]

    return of


ACL, SCI = "tae/citation_intent", "tae/sciie-relation-extraction"
DATASETS: dict[str, Callable[[Path], list[Rows]]] = {
    "sst2": _sst2,
    "sms-spam": _sms,
    "disasters": _crowdflower("socialmedia-disaster-tweets-DFE.csv", "choose_one", "Can't Decide"),
    "airline": _crowdflower("Airline-Sentiment-2-w-AA.csv", "airline_sentiment"),
    "corporate": _crowdflower("Corporate-messaging-DFE.csv", "category", "Exclude"),
    "acl-arc": _json(f"{ACL}/train.txt", f"{ACL}/dev.txt", f"{ACL}/test.txt"),
    "scierc": _json(f"{SCI}/train.txt", f"{SCI}/test.txt"),
    "20newsgroups": _json("20newsgroups/train.jsonl", "20newsgroups/test.jsonl"),
}
"""Name -> its rows: those to draw from, and the published test rows where there are any."""


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def distinct(rows: Iterable[tuple[str, str]]) -> Rows:
    """Every text once, and none that has two labels."""
    found: dict[str, tuple[str, str]] = {}
    labels: dict[str, set[str]] = defaultdict(set)
    for text, label in rows:
        if normal := _normal(text):
            labels[normal].add(label)
            found.setdefault(normal, (text.strip(), label))
    return [row for normal, row in found.items() if len(labels[normal]) == 1]


def split(name: str, parts: Sequence[Rows]) -> tuple[Rows, Rows]:
    """The pool to draw from, and the test rows."""
    test = distinct(parts[-1])
    if len(test) > MOST_TEST_ROWS:
        test = random.Random(f"{name} test").sample(test, MOST_TEST_ROWS)
    taken = {_normal(text) for text, _ in test}
    return [row for row in distinct(parts[0]) if _normal(row[0]) not in taken], test


def drawn(name: str, pool: Rows, draw: int) -> dict[int, Rows]:
    """Size -> the rows of a draw."""
    chance = random.Random(f"{name} {draw}")
    classes: dict[str, Rows] = defaultdict(list)
    for row in pool:
        classes[row[1]].append(row)
    few = {label: len(rows) for label, rows in classes.items() if len(rows) < max(SIZES)}
    if few:
        raise SystemExit(f"{name} has too few rows for {max(SIZES)} per class: {few}")
    chosen = [chance.sample(classes[label], max(SIZES)) for label in sorted(classes)]
    sets = {size: [row for rows in chosen for row in rows[:size]] for size in SIZES}
    for rows in sets.values():
        chance.shuffle(rows)
    return sets


def _draw(given: argparse.Namespace) -> None:
    for name in given.datasets.split(","):
        pool, test = split(name, DATASETS[name](given.data))
        files = {"test": test}
        for draw in range(given.most):
            files |= {f"{size}-{draw}": rows for size, rows in drawn(name, pool, draw).items()}
        for file, rows in files.items():
            write(given.draws / name / f"{file}.jsonl", [{"text": text, "label": label} for text, label in rows])
        classes = Counter(label for _, label in test)
        print(f"{name}: {len(classes)} classes, {len(pool)} rows to draw from, {len(test)} to test on: {dict(classes)}")


def inlay_runs(todo: list[Job], base: str, store: Path) -> None:
    """All draws of a dataset side by side, in one call."""
    import inlay
    from inlay.version import __version__

    host = inlay.Host(base)
    for name, group in _by_dataset(todo).items():
        given = {"text": "text", "label": "label", "task": "classification"}
        runs = [inlay.Run(data=str(job.train), test=str(job.test), **given) for job in group]
        began = time.perf_counter()
        results = inlay.train(host, runs, progress=False)
        each = (time.perf_counter() - began) / len(group)
        print(f"{name}: {len(group)} runs, {each:.2f} s each", flush=True)
        about = {"side_by_side": len(group), "versions": {"inlay": __version__}, "device": str(host.base.device)}
        for job, result in zip(group, results, strict=True):
            if not result.ok:
                print(f"{name} {job.size}-{job.draw}: {result.problem}")
                continue
            line = job.line("inlay", result.metrics["test"]["accuracy"], each, steps=len(result.losses), **about)
            write(store, [line], append=True)


def logistic_runs(todo: list[Job], base: str, store: Path) -> None:
    """Logistic regression on embeddings of the encoder as it is: what SetFit's head sees before any training."""
    import sklearn
    from sklearn.linear_model import LogisticRegression

    about = {"versions": {"scikit-learn": sklearn.__version__}}
    for name, group in _by_dataset(todo).items():
        files = {file: columns(file) for job in group for file in (job.train, job.test)}
        texts = sorted({text for found, _ in files.values() for text in found}, key=len)
        began = time.perf_counter()
        vector = dict(zip(texts, embeddings(texts, base), strict=True))
        each = (time.perf_counter() - began) / len(group)
        for job in group:
            began = time.perf_counter()
            (train, labels), (test, gold) = files[job.train], files[job.test]
            answers = LogisticRegression().fit([vector[t] for t in train], labels).predict([vector[t] for t in test])
            accuracy = sum(a == g for a, g in zip(answers, gold, strict=True)) / len(gold)
            write(store, [job.line("logistic", accuracy, each + time.perf_counter() - began, **about)], append=True)
        print(f"{name}: {len(group)} runs", flush=True)


def embeddings(texts: Sequence[str], base: str, batch: int = 32) -> list[Any]:
    """Mean over tokens, normalised, cut at the folder's length: what sentence-transformers gives for this folder."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = Path(base)
    kinds = [one["type"].rpartition(".")[2] for one in json.loads((folder / "modules.json").read_text())]
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    if kinds != ["Transformer", "Pooling", "Normalize"] or not pooling["pooling_mode_mean_tokens"]:
        raise SystemExit(f"{base} is not a folder of an encoder with mean pooling and normalisation: {kinds}")
    longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModel.from_pretrained(base).float().eval().to(device)
    found = []
    for i in range(0, len(texts), batch):
        some = {"padding": True, "truncation": True, "max_length": longest, "return_tensors": "pt"}
        inputs = tokenizer(list(texts[i : i + batch]), **some).to(device)
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1)
        found += [*torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1).cpu().numpy()]
    return found


def _by_dataset(todo: list[Job]) -> dict[str, list[Job]]:
    found: dict[str, list[Job]] = defaultdict(list)
    for job in todo:
        found[job.dataset].append(job)
    return found


def _run(given: argparse.Namespace) -> None:
    if given.rival == "setfit":
        script = Path(__file__).with_name("few_shot_setfit.py")
        names = ("draws", "base", "store", "datasets", "sizes", "most")
        options = [str(word) for name in names for word in (f"--{name}", getattr(given, name))]
        sys.exit(subprocess.run([given.python, str(script), *options]).returncode)
    sizes = [int(size) for size in given.sizes.split(",")]
    todo = jobs(given.draws, given.store, given.rival, given.datasets.split(","), sizes, given.most)
    {"inlay": inlay_runs, "logistic": logistic_runs}[given.rival](todo, given.base, given.store)


RIVALS = ("inlay", "setfit", "logistic")


class Scores:
    """The store's accuracies, in percent: by rival, then (dataset, size, draw)."""

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self.of: dict[str, dict[tuple[str, int, int], float]] = defaultdict(dict)
        self.seconds: dict[str, list[float]] = defaultdict(list)
        rows: dict[tuple[str, int, int], str] = {}
        for line in lines:
            key = line["dataset"], line["size"], line["draw"]
            if rows.setdefault(key, line["rows"]) != line["rows"]:
                raise SystemExit(f"{line['rival']} had other rows than its rivals in {key}")
            self.of[line["rival"]][key] = 100 * line["accuracy"]
            self.seconds[line["rival"]].append(line["seconds"])
        self.rivals = [rival for rival in RIVALS if rival in self.of]

    def draws(self, rivals: Sequence[str], cells: Sequence[tuple[str, int]]) -> list[list[float]]:
        """For each rival and each draw that all of them have in all cells, the mean over the cells."""
        numbers = sorted({draw for rival in rivals for *_, draw in self.of[rival]})
        whole = [d for d in numbers if all((*cell, d) in self.of[rival] for rival in rivals for cell in cells)]
        return [[sum(self.of[rival][(*cell, d)] for cell in cells) / len(cells) for d in whole] for rival in rivals]

    def row(self, title: str, cells: Sequence[tuple[str, int]]) -> list[str]:
        """Means over the draws that all rivals have, and the first one's difference to each other one with its paired
        95 % interval over these draws; no line if there are none."""
        from inlay import metrics

        values = self.draws(self.rivals, cells)
        count = len(values[0])
        if count == 0:
            return []
        texts = [f"{sum(own) / count:.1f}" for own in values]
        for other in values[1:]:
            if count == 1:
                texts.append("-")
                continue
            mean, low, high = metrics.paired_interval(values[0], other)
            texts.append(f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]")
        return [f"| {title} | {count} | " + " | ".join(texts) + " |"]


def _table(given: argparse.Namespace) -> None:
    scores = Scores(line for file in given.stores for line in read(file))
    heads = ["draws", *scores.rivals, *(f"{scores.rivals[0]} - {other}" for other in scores.rivals[1:])]
    cells = {name: [(name, size) for size in SIZES] for name in DATASETS}
    whole = [name for name in DATASETS if scores.row(name, cells[name])]
    lines = ["| dataset, rows per class | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for name in DATASETS:
        for cell in cells[name]:
            lines += scores.row(f"{name}, {cell[1]}", [cell])
        lines += scores.row(f"**{name}, all sizes**", cells[name])
    for size in SIZES:
        lines += scores.row(f"**mean of {len(whole)}, {size}**", [(name, size) for name in whole])
    lines += scores.row(f"**mean of {len(whole)}, all sizes**", [cell for name in whole for cell in cells[name]])
    spent = (f"{rival} {sum(scores.seconds[rival]) / len(scores.seconds[rival]):.2f}" for rival in scores.rivals)
    print("\n".join(lines))
    print(f"\nAccuracy in percent over the draws that all rivals have; differences with paired 95 % intervals over "
          f"draws. Seconds per run: {', '.join(spent)}.")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("draw", help="write the draws and the test rows")
    one.add_argument("--data", type=Path, required=True)
    two = commands.add_parser("run", help="train a rival on the draws that its results lack")
    two.add_argument("--base", required=True, help="a sentence-transformers folder")
    two.add_argument("--store", type=Path, required=True, help="a JSONL file; a run whose line it has is not repeated")
    two.add_argument("--rival", choices=RIVALS, required=True)
    two.add_argument("--sizes", default=",".join(map(str, SIZES)))
    two.add_argument("--python", default="python", help="the Python of SetFit's environment")
    for command, do in ((one, _draw), (two, _run)):
        command.add_argument("--draws", type=Path, required=True, help="a folder of draws")
        command.add_argument("--datasets", default=",".join(DATASETS), help="with commas")
        command.add_argument("--most", type=int, default=10, help="how many draws")
        command.set_defaults(do=do)
    three = commands.add_parser("table", help="accuracies and differences, as Markdown")
    three.add_argument("stores", type=Path, nargs="+")
    three.set_defaults(do=_table)
    given = parser.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
