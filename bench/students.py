"""What an ensemble of five is worth, and what one adapter keeps of it that learns from its answers.

    python bench/defaults.py draw --data FOLDER --out STUDY
    python bench/students.py run --out STUDY --minutes 8       again and again, until nothing is left
    python bench/students.py table --out STUDY

Datasets, draws and test rows are those of bench/defaults.py. For every draw there are SINGLE runs with all defaults
that differ in their seed, an ensemble of MEMBERS (`inlay train --ensemble`), and a student of that ensemble
(`inlay train --teacher`). A unit is a draw of a dataset; what is compared is the test accuracy minus the mean of the
single runs, paired, over all units. STUDY has a line for every unit that has ended (students.jsonl).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from defaults import in_groups, written

DATASETS = ("sst2", "sms", "airline", "corporate", "disasters", "citations", "relations", "chemprot")
SIZES = (300, 1000, 4000)
MEMBERS = 5
SINGLE = 3


@dataclass(frozen=True)
class Unit:
    """A draw of a dataset."""

    dataset: str
    size: int
    draw: int

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.size}-{self.draw}"


def units(arguments: argparse.Namespace) -> Iterator[Unit]:
    for draw in range(arguments.draws):
        for size in arguments.sizes:
            for dataset in arguments.datasets:
                yield Unit(dataset, size, draw)


def ended(out: Path) -> dict[Unit, dict[str, Any]]:
    file = out / "students.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {Unit(**line["unit"]): line for line in lines}


def run(arguments: argparse.Namespace) -> None:
    import inlay

    out = Path(arguments.out)
    host = inlay.Host(arguments.base)

    def train(some: Sequence[Unit]) -> None:
        files = {unit: written(Path(arguments.data), out, unit.dataset, unit.size, unit.draw) for unit in some}
        found = results(host, arguments, {unit: own for unit, own in files.items() if own is not None})
        with (out / "students.jsonl").open("a") as file:
            for unit in some:
                line = found.get(unit, {"problem": "the dataset is too small"})
                file.write(json.dumps({"unit": vars(unit), **line}) + "\n")

    done = ended(out)
    in_groups([unit for unit in units(arguments) if unit not in done], "draws", arguments, train)


def results(host: Any, arguments: argparse.Namespace, files: dict[Unit, Any]) -> dict[Unit, dict[str, Any]]:
    """Test accuracies: of single runs, of the ensemble, and of its student."""
    import inlay
    from inlay.runs.members import members_of

    def of(unit: Unit, kind: str, **more: Any) -> Any:
        train, test = files[unit]
        read = {"data": str(train), "test": str(test), "text": "text", "label": "label", "task": "classification"}
        steps = {} if arguments.max_steps is None else {"max_steps": arguments.max_steps}
        return inlay.Run(**read, name=f"{unit.name}-{kind}", few_shot=False, folds=0, **steps, **more)

    if not files:
        return {}
    alone = {unit: [of(unit, f"alone{seed}", seed=seed) for seed in range(SINGLE)] for unit in files}
    members = {unit: members_of(of(unit, "member"), MEMBERS, f"{unit.name}-member") for unit in files}
    trained = _trained(host, [run for runs in (*alone.values(), *members.values()) for run in runs])
    with tempfile.TemporaryDirectory() as folder:
        library = inlay.Library(folder)
        found = {}
        for unit in files:
            parts = tuple(trained[run.name].adapter for run in members[unit])
            made = inlay.Ensemble(parts, name=unit.name)
            library.put(made, base_name=host.base.name)
            found[unit] = {
                "alone": [trained[run.name].metrics["test"]["accuracy"] for run in alone[unit]],
                "members": [trained[run.name].metrics["test"]["accuracy"] for run in members[unit]],
                "ensemble": _accuracy(host, made, files[unit][1]),
            }
        students = _trained(host, [of(unit, "student", teacher=unit.name) for unit in files], library)
        for unit in files:
            found[unit]["student"] = students[f"{unit.name}-student"].metrics["test"]["accuracy"]
    return found


def _trained(host: Any, runs: Sequence[Any], library: Any = None) -> dict[str, Any]:
    import inlay

    given = {} if library is None else {"library": library}
    found = {result.name: result for result in inlay.train(host, runs, progress=False, **given)}
    for result in found.values():
        if not result.ok:
            raise SystemExit(f"{result.name}: {result.problem}")
        host.unload(result.name)
    return found


def _accuracy(host: Any, made: Any, test: Path) -> float:
    rows = [json.loads(line) for line in test.read_text().splitlines()]
    host.load(made, "together")
    answers = host.predict([("together", row["text"]) for row in rows])
    host.unload("together")
    return statistics.mean(answer["label"] == row["label"] for answer, row in zip(answers, rows, strict=True))


def table(arguments: argparse.Namespace) -> None:
    from inlay import metrics

    lines = [(unit, line) for unit, line in ended(Path(arguments.out)).items() if "student" in line]
    print("| rows | draws | one run | a member | ensemble - one run | student - one run |\n|---|---|---|---|---|---|")
    sizes = sorted({unit.size for unit, _ in lines})
    for title, some in [*((f"{size:,}", [size]) for size in sizes), ("all", sizes)]:
        own = [line for unit, line in lines if unit.size in some]
        one = [100 * statistics.mean(line["alone"]) for line in own]
        member = statistics.mean(100 * statistics.mean(line["members"]) for line in own)
        cells = []
        for kind in ("ensemble", "student"):
            mean, low, high = metrics.paired_interval([100 * line[kind] for line in own], one)
            cells.append(f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]")
        print(f"| {title} | {len(own)} | {statistics.mean(one):.1f} | {member:.1f} | {cells[0]} | {cells[1]} |")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--data", default=".", help="the folder with the datasets, unless rows are drawn already")
    parser.add_argument("--out", required=True, help="where the study is kept")
    parser.add_argument("--base", help="default: all-MiniLM-L6-v2")
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=list(DATASETS))
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")], default=list(SIZES))
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--together", type=int, default=12, help="draws at once, each with eight runs and a student")
    parser.add_argument("--minutes", type=float, default=8, help="begin nothing that would end later")
    parser.add_argument("--max-steps", type=int, help="shorter runs: does it work?")
    arguments = parser.parse_args(given)
    {"run": run, "table": table}[arguments.what](arguments)


if __name__ == "__main__":
    main()
