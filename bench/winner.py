"""What choosing among the runs of a sweep is worth: rules for a winner and ensembles, on one set of runs.

    python bench/winner.py draw --data FOLDER --out STUDY                  the rows, so that FOLDER may stay behind
    python bench/winner.py run --data FOLDER --out STUDY --minutes 8       again and again, until nothing is left
    python bench/winner.py table --out STUDY                               winner.md, and it is printed
    python bench/winner.py run --data FOLDER --out STUDY --quick           does it work?

FOLDER is that of bench/defaults.py, whose datasets, draws and test rows these are. Every draw is swept: RATES x WIDTHS
x seeds of one method, all validated on the same rows (`Run.split_seed`). STUDY has a line for every run that has ended
(runs.jsonl) and its probabilities for validation and test rows (probabilities/*.npz, float16), from which every rule
is computed afterwards. A unit is a draw of a dataset: the test accuracy of what a rule takes, minus that of the default
setting (the mean of its seeds), or minus that of all runs. Intervals are paired, over all units.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from defaults import in_groups, written

DATASETS = ("sst2", "sms", "airline", "corporate", "disasters", "citations", "relations")
SIZES = (300, 1000, 4000)
METHOD = "houlsby"
RATES = (0.3, 1.0, 3.0)
"""Of the method's own learning rate."""
WIDTHS = (16, 64)
PICKS = 5


@dataclass(frozen=True)
class Case:
    """One run."""

    dataset: str
    size: int
    draw: int
    rate: float
    width: int
    seed: int

    @property
    def unit(self) -> tuple[str, int, int]:
        return self.dataset, self.size, self.draw

    @property
    def file(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16] + ".npz"

    def run(self, files: tuple[Path, Path], max_steps: int | None) -> Any:
        import inlay

        read = {"data": str(files[0]), "test": str(files[1]), "text": "text", "label": "label"}
        lr = self.rate * inlay.parse_method(METHOD).learning_rate
        method, seeds = f"{METHOD}:size={self.width}", {"seed": self.seed, "split_seed": self.draw}
        return inlay.Run(**read, task="classification", method=method, lr=lr, max_steps=max_steps, folds=0, **seeds)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """All of them: the first draw of every dataset and size, then the second."""
    for draw in range(arguments.first_draw, arguments.first_draw + arguments.draws):
        for size in arguments.sizes:
            for dataset in arguments.datasets:
                for seed in range(arguments.seeds):
                    for rate in RATES:
                        for width in WIDTHS:
                            yield Case(dataset, size, draw, rate, width, seed)


def draw(arguments: argparse.Namespace) -> None:
    wanted = dict.fromkeys(case.unit for case in cases(arguments))
    there = [unit for unit in wanted if written(Path(arguments.data), Path(arguments.out), *unit) is not None]
    print(f"{len(there)} of {len(wanted)} draws; the other datasets are too small", flush=True)


def ended(out: Path) -> dict[Case, dict[str, Any]]:
    file = out / "runs.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {Case(**line["case"]): line for line in lines}


# --- runs ---------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    import inlay

    out = Path(arguments.out)
    (out / "probabilities").mkdir(parents=True, exist_ok=True)
    host = inlay.Host(arguments.base)

    def train(some: Sequence[Case]) -> None:
        found = results(host, arguments, some)
        with (out / "runs.jsonl").open("a") as file:
            for case in some:
                file.write(json.dumps({"case": vars(case), **found[case]}) + "\n")

    done = ended(out)
    in_groups([case for case in cases(arguments) if case not in done], "runs", arguments, train)


def results(host: Any, arguments: argparse.Namespace, some: Sequence[Case]) -> dict[Case, dict[str, Any]]:
    """What runs give, side by side; their probabilities are written before."""
    from inlay.sweeps.trial import Data
    from inlay.training.api import train_prepared

    out, found, prepared = Path(arguments.out), {}, {}
    data: dict[tuple[str, int, int], Any] = defaultdict(lambda: Data(host))
    for i, case in enumerate(some):
        files = written(Path(arguments.data), out, case.dataset, case.size, case.draw)
        if files is None:
            found[case] = {"problem": "the dataset is too small"}
        else:
            prepared[i] = data[case.unit].prepare(case.run(files, arguments.max_steps))
    trained = train_prepared(host, prepared)
    adapters = {i: result.single for i, result in trained.items() if result.ok}
    for i, said in probabilities(host, adapters, prepared).items():
        np.savez_compressed(out / "probabilities" / some[i].file, **said)
    for i, result in trained.items():
        scores = {split: scores["accuracy"] for split, scores in result.metrics.items()}
        found[some[i]] = {**scores, "seconds": round(result.seconds, 2)} if result.ok else {"problem": result.problem}
    return found


def probabilities(host: Any, adapters: Mapping[int, Any], prepared: Mapping[int, Any]) -> dict[int, dict[str, Any]]:
    """Calibrated, [rows, labels], and the number of what is right, of validation and test rows of every run."""
    import torch

    from inlay.engine.evaluate import outputs_of

    parts = [(i, split, getattr(prepared[i], split)) for i in adapters for split in ("validation", "test")]
    for i, adapter in adapters.items():
        host.load(adapter, str(i))
    outputs = outputs_of(host, [(str(i), part.rows) for i, _, part in parts])
    temperatures = {i: host.task(str(i)).temperature for i in adapters}
    for i in adapters:
        host.unload(str(i))
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for (i, split, part), logits in zip(parts, outputs, strict=True):
        number = {label: at for at, label in enumerate(prepared[i].labels)}
        p = (torch.stack(list(logits)).float() / temperatures[i]).softmax(-1)
        found[i][split] = p.numpy().astype(np.float16)
        found[i][f"{split}_right"] = np.array([number[e.target] for e in part.examples], np.int16)
    return found


# --- rules --------------------------------------------------------------------------------------------------------


class Unit:
    """The runs of one draw, and what rules can know of them: validation rows, never test rows."""

    def __init__(self, out: Path, own: Sequence[Case]):
        files = [np.load(out / "probabilities" / case.file) for case in own]
        self.cases = list(own)
        p = {split: np.stack([file[split].astype(np.float64) for file in files]) for split in ("validation", "test")}
        right = {split: files[0][f"{split}_right"].astype(int) for split in p}
        self.test, self.test_right = p["test"], right["test"]
        self.hits = p["validation"].argmax(2) == right["validation"]
        """[runs, validation rows]"""
        chances = p["validation"][:, np.arange(len(right["validation"])), right["validation"]]
        self.chances = np.maximum(chances, 1e-4)  # float16 has zeros
        self.losses = -np.log(self.chances)

    def score(self, counts: Any) -> float:
        """The test accuracy, in percent, of runs that count so often."""
        together = np.tensordot(np.asarray(counts, float), self.test, 1)
        return 100 * float((together.argmax(1) == self.test_right).mean())

    def alone(self, number: int) -> float:
        return self.score(np.eye(len(self.cases))[number])

    def all_of(self, chosen: Callable[[Case], bool]) -> list[int]:
        return [i for i, case in enumerate(self.cases) if chosen(case)]

    def settings(self) -> dict[tuple[float, int], list[int]]:
        found: dict[tuple[float, int], list[int]] = defaultdict(list)
        for i, case in enumerate(self.cases):
            found[case.rate, case.width].append(i)
        return found

    def counts(self, numbers: Sequence[int]) -> Any:
        return np.bincount(numbers, minlength=len(self.cases))

    def verdict(self, metric: str, losses: bool = True) -> tuple[list[int], int]:
        """The runs of the setting that the rule of `inlay sweep` takes, and its one run.

        Args:
            losses: whether the rule knows them; else the setting nearest to the defaults wins within the error.
        """
        from inlay.bank.delta import parse
        from inlay.engine.evaluate import PARTS, kept_without
        from inlay.sweeps.grid import read_grid
        from inlay.sweeps.store import Row as Run
        from inlay.sweeps.table import rank
        from inlay.sweeps.winner import decide, distances

        own, rows = parse(METHOD).learning_rate, []
        each = self.losses if metric == "loss" else self.hits
        kept = kept_without(each.shape[1], min(PARTS, each.shape[1]))
        for i, case in enumerate(self.cases):
            setting = {"method": METHOD, "lr": case.rate * own, "size": case.width}
            replicates = [float(each[i, own_rows].mean()) for own_rows in kept]
            loss = float(self.losses[i].mean())
            seen = [{"metrics": {}, "validation_loss": loss}]
            more = {"replicates": replicates, "history": seen, "parameters": {"adapter": case.width}}
            more |= {"loss": loss} if losses else {}
            value = float(each[i].mean())
            rows.append(Run(str(i), i, str(i), setting, case.seed, {}, "done", metric, value, **more))
        space, _ = read_grid({"data": ""}, {"lr": [r * own for r in RATES], "size": list(WIDTHS)})
        ranking = rank(rows, metric, "careful", 1 + max(case.seed for case in self.cases))
        found = decide(ranking, metric, distances(space, ranking), space.keys)
        return [int(row.id) for row in found.entry.runs], int(found.run.id)


def rules(unit: Unit) -> dict[str, float]:
    """Rule -> the test accuracy of what it takes."""
    from inlay.sweeps.greedy import loss_of_mean, pick

    hits, losses, settings = unit.hits.mean(1), unit.losses.mean(1), unit.settings()
    default = settings[1.0, 64]
    by_score = max(settings.values(), key=lambda own: (hits[own].mean(), -losses[own].mean()))
    by_loss = min(settings.values(), key=lambda own: losses[own].mean())
    careful, one = unit.verdict("accuracy")
    near, one_near = unit.verdict("accuracy", losses=False)
    near_loss, one_near_loss = unit.verdict("loss", losses=False)
    runs = range(len(unit.cases))
    best = max(runs, key=lambda i: (hits[i], -losses[i]))
    judge, count = loss_of_mean(unit.chances), len(unit.cases)
    greedy = {most: pick(count, PICKS, judge, most) for most in (None, PICKS // 2, 1)}
    return {
        "default setting, mean of its seeds": statistics.mean(unit.alone(i) for i in default),
        "any run, mean": statistics.mean(unit.alone(i) for i in runs),
        "best run by score": unit.alone(best),
        "best run by loss": unit.alone(int(losses.argmin())),
        "best mean score, its best seed": unit.alone(max(by_score, key=lambda i: (hits[i], -losses[i]))),
        "best mean loss, its best seed": unit.alone(min(by_loss, key=lambda i: losses[i])),
        "careful (inlay sweep)": unit.alone(one),
        "within the error, nearest to the default": unit.alone(one_near),
        "by loss, within the error, nearest to the default": unit.alone(one_near_loss),
        "careful, its seeds together": unit.score(unit.counts(careful)),
        "within the error, nearest, its seeds together": unit.score(unit.counts(near)),
        "by loss, within the error, nearest, its seeds together": unit.score(unit.counts(near_loss)),
        "default, its seeds together": unit.score(unit.counts(default)),
        f"greedy {PICKS}, at most half (inlay sweep --ensemble)": unit.score(greedy[PICKS // 2]),
        f"greedy {PICKS}, as often as it likes": unit.score(greedy[None]),
        f"greedy {PICKS}, once each": unit.score(greedy[1]),
        f"the {PICKS} lowest losses": unit.score(unit.counts(np.argsort(losses, kind="stable")[:PICKS].tolist())),
        "all runs together": unit.score(np.ones(count)),
    }


def units(out: Path) -> dict[tuple[str, int, int], Unit]:
    """Draws of which every run has ended well."""
    own: dict[tuple[str, int, int], list[Case]] = defaultdict(list)
    for case, line in ended(out).items():
        if "problem" not in line:
            own[case.unit].append(case)
    most = max(map(len, own.values()), default=0)
    return {unit: Unit(out, sorted(some, key=repr)) for unit, some in own.items() if len(some) == most}


def table(arguments: argparse.Namespace) -> None:
    out = Path(arguments.out)
    found = {unit: rules(own) for unit, own in units(out).items()}
    if not found:
        sys.exit(f"no draw in {out} has all its runs")
    text = "\n\n".join(_tables(found))
    (out / "winner.md").write_text(text + "\n")
    (out / "winner.json").write_text(json.dumps([{"unit": unit, **scores} for unit, scores in found.items()], indent=1))
    print(text)


def _tables(found: Mapping[tuple[str, int, int], Mapping[str, float]]) -> Iterator[str]:
    sizes = sorted({size for _, size, _ in found})
    for size in [*([] if len(sizes) == 1 else sizes), None]:
        own = [scores for unit, scores in found.items() if size in (None, unit[1])]
        title = f"### {'All' if size is None else f'{size:,} rows'}: {len(own)} draws"
        lines = [title, "", "| rule | test accuracy | over the default | over any run |", "|---|---|---|---|"]
        for rule in own[0]:
            against = [_interval(own, rule, base) for base in list(own[0])[:2]]
            lines.append(f"| {rule} | {statistics.mean(one[rule] for one in own):.2f} | {' | '.join(against)} |")
        yield "\n".join(lines)


def _interval(own: Sequence[Mapping[str, float]], rule: str, base: str) -> str:
    from inlay.metrics import paired_interval

    if rule == base:
        return ""
    mean, low, high = paired_interval([one[rule] for one in own], [one[base] for one in own])
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})" if len(own) > 1 else f"{mean:+.2f}"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "run", "table"))
    parser.add_argument("--data", default=".", help="the folder with the datasets")
    parser.add_argument("--out", required=True, help="where the study is kept")
    parser.add_argument("--base", help="default: all-MiniLM-L6-v2")
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=list(DATASETS))
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")], default=list(SIZES))
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--first-draw", type=int, default=0, help="to continue with draws that no rule was chosen on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--together", type=int, default=72, help="runs side by side")
    parser.add_argument("--minutes", type=float, default=8, help="begin nothing that would end later")
    parser.add_argument("--max-steps", type=int, help="default: that of a run")
    parser.add_argument("--quick", action="store_true", help="40 steps on 300 rows, one seed less")
    arguments = parser.parse_args(given)
    if arguments.quick:
        arguments.sizes, arguments.seeds, arguments.max_steps = [300], 2, 40
    {"draw": draw, "run": run, "table": table}[arguments.what](arguments)


if __name__ == "__main__":
    main()
