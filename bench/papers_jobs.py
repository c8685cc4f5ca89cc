"""What the jobs of bench/papers.py train: which runs, which of them have ended, and about how long the others take.

A run is known by its dataset, method, settings and seed, which is what bench/results/papers.jsonl has of it. So a study
goes on from that file on any machine: `fill` notes its runs in a new store as done. Their adapters are not in it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTINGS = ("lr", "epochs", "batch_size", "train_size", "pool", "head", "schedule", "warmup", "pretrain_epochs")
LATER = ("attention_dropout", "max_steps", "eval_every")
"""Settings that no run of papers.jsonl had, so that its first lines do not name them."""
SCORES = ("accuracy", "f1", "f1_macro", "f1_micro", "matthews", "spearman")
LIKE = re.compile(r"-(1k|5k|all)$")
"""CoLA-1k is CoLA with another number of rows, which is a setting."""


# --- jobs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A line of the file, or one of its datasets, and where its results go."""

    arguments: tuple[str, ...]
    """Of `inlay recipe run`, after the recipe's name: the folder comes first."""
    recipe: str
    store: Path

    @property
    def name(self) -> str:
        """What its files are called."""
        return self.store.stem

    @property
    def given(self) -> argparse.Namespace:
        """Those arguments that say which runs there are."""
        parser = argparse.ArgumentParser(self.recipe)
        parser.add_argument("folder")
        for option in ("--only", "--lines", "--tune", "--base", "--against"):
            parser.add_argument(option)
        for option in ("--seeds", "--max-steps", "--train-size"):
            parser.add_argument(option, type=int)
        parser.add_argument("--grid", action="append", default=[])
        return parser.parse_args(self.arguments)


def read_jobs(path: Path, out: Path, data: Path = Path(), whole: bool = False) -> list[Job]:
    """Jobs in the order of the file; those that should begin first are first.

    Args:
        data: what the folders of the file are in.
        whole: a line is one job; else each of its datasets is, and they run side by side.
    """
    found, seen = [], Counter[str]()
    for line in path.read_text(encoding="utf-8").splitlines():
        recipe, *arguments = shlex.split(line, comments=True) or [""]
        if recipe:
            arguments[0] = str(data / arguments[0])
            for own in [arguments] if whole else _by_dataset(arguments):
                seen[recipe] += 1
                found.append(Job(tuple(own), recipe, out / f"{recipe}.{seen[recipe]}.sqlite"))
    return found


def _by_dataset(arguments: list[str]) -> Iterator[list[str]]:
    if "--only" not in arguments:
        yield arguments
        return
    at = arguments.index("--only") + 1
    for name in arguments[at].split(","):
        yield [*arguments[:at], name, *arguments[at + 1 :]]


# --- runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What tells a run from all others."""

    base: str
    dataset: str
    method: str
    seed: int
    settings: tuple[Any, ...]


def known(base: str, label: str, seed: int, settings: Mapping[str, Any]) -> Known:
    """A run by its label, `CoLA.finetune-tuned finetune lr=6e-05 seed=2`, and those settings that are not defaults."""
    from inlay.runs.run import Run

    part, method, *_ = label.split()
    values = (settings.get(key, Run.model_fields[key].default) for key in (*SETTINGS, *LATER))
    own = tuple(map(_number, values))
    return Known(Path(base).name, LIKE.sub("", part.split(".")[0]), method, seed, own)


def _number(value: Any) -> Any:
    """A number, where a value is one; `--train-size 64` stays text in a run's settings."""
    with suppress(TypeError, ValueError):
        return float(value)
    return value


def read_ended(path: Path) -> dict[Known, dict[str, Any]]:
    """The runs of a file like papers.jsonl, and their scores."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {known(line["base"], line["run"], line["seed"], line): line["scores"] for line in lines}


def line_of(
    base: str, label: str, settings: Mapping[str, Any], seed: int, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """A run as papers.jsonl has it."""
    own = {key: settings[key] for key in ("method", *SETTINGS, *LATER) if settings.get(key) is not None}
    scores = {split: {key: round(one[key], 5) for key in SCORES if key in one} for split, one in metrics.items()}
    return {"base": Path(base).name, "run": label, **own, "seed": seed, "scores": scores}


def fill(store: Path, ended: Mapping[Known, Mapping[str, Any]], base: str) -> int:
    """Note what has ended as done in a store that has its runs already; how many these are."""
    import inlay
    from inlay.bank.delta import parse
    from inlay.sweeps.store import Store, read_rows

    sites, changes = inlay.Host(base, device="cpu").base.sites, {}
    for row in read_rows(store):
        scores = ended.get(known(base, row.label, row.seed, row.config))
        if scores is None or row.state != "waiting":
            continue
        count = parse(row.config.get("method", "houlsby")).count(sites)
        parameters = {"adapter": count, "share_of_base": count / sites.size}
        value = scores["validation"][row.metric]
        changes[row.id] = {"state": "done", "metrics": scores, "value": value, "parameters": parameters}
    with Store(store) as opened:
        opened.set(changes)
    return len(changes)


# --- plans --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A run that a job has."""

    known: Known
    seconds: float
    """Of the whole machine, roughly."""
    asks_scores_only: bool
    """Not its evaluations on the way, or what its adapter has kept."""


def planned(job: Job, base: str) -> list[Planned]:
    """What a job trains, from its recipe alone: neither data nor a base are read."""
    from inlay import recipes
    from inlay.recipes.plan import around

    given, recipe = job.given, recipes.find(job.recipe)
    own, layers = given.base or base, BASES[Path(given.base or base).name].layers
    grid = {key: _values(text) for key, _, text in (one.partition("=") for one in given.grid)}
    grid |= {key: (vars(given)[key],) for key in ("max_steps", "train_size") if vars(given)[key]}
    found: dict[Known, Planned] = {}
    for dataset in (one for one in recipe.datasets if _is_named(one.name, given.only)):
        for row in (row for row in recipe.rows if _is_named(row.name, given.lines) and not row.is_baseline):
            paper = dict(recipe.tried(row, dataset)) | grid
            paper["epochs"] = (max(paper["epochs"]),) if given.max_steps else paper["epochs"]
            rates = given.tune.partition("=")[2] if given.tune else ""
            tuned = [{**paper, "lr": _values(rates) if rates else around(paper["lr"])}] if given.tune else []
            methods = [one for one in row.methods if int((re.findall(r"top=(\d+)", one) or [0])[0]) <= layers]
            for tried, method in itertools.product([paper, *tuned], methods):
                for settings in _combinations(tried):
                    seconds = estimate(dataset.name, method, settings, own)
                    for seed in range(given.seeds or recipe.seeds):
                        run = known(own, f"{dataset.name} {method}", seed, settings)
                        scores_only = row.shows == "score" and (run not in found or found[run].asks_scores_only)
                        found[run] = Planned(run, seconds, scores_only)
    return list(found.values())


def enough(plans: Sequence[Planned], ended: Mapping[Known, Any]) -> dict[Known, Any]:
    """The scores of those that have ended, where scores are all that is asked of them."""
    return {plan.known: ended[plan.known] for plan in plans if plan.known in ended and plan.asks_scores_only}


def _is_named(name: str, given: str | None) -> bool:
    return given is None or name in given.split(",")


def _values(text: str) -> tuple[Any, ...]:
    return tuple(json.loads(one) if re.match(r"[\d.-]|true$|false$", one) else one for one in text.split(","))


def _combinations(tried: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*tried.values()):
        yield dict(zip(tried, values, strict=True))


# --- time ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """Of a base."""

    layers: int
    parameters: float


@dataclass(frozen=True)
class Rows:
    """Of a dataset: those it trains on, and their mean length in tokens."""

    count: int
    tokens: float


BASES = {"all-MiniLM-L6-v2": Size(6, 22.7e6), "all-mpnet-base-v2": Size(12, 109.5e6)}
DATA = {
    "CoLA": Rows(8551, 12.8),
    "MRPC": Rows(3668, 53.4),
    "RTE": Rows(2490, 70.6),
    "SST-2": Rows(67349, 13.3),
    "STS-B": Rows(5749, 20.6),
    "ACL-ARC": Rows(1688, 53.8),
    "SciERC": Rows(3219, 46.4),
    "ChemProt": Rows(4169, 70.7),
    "airline": Rows(11712, 29.0),
    "corporate-messaging": Rows(2494, 38.6),
    "disasters": Rows(8701, 32.7),
    "sms-spam": Rows(4459, 25.6),
}
FINE_TUNING = 0.005
"""Seconds of a step of MiniLM on an H200, if twelve processes or more work side by side (docs/log.md)."""
MIXOUT = 0.072
"""The same with mixout, whose steps are not recorded."""
ADAPTER_TOKENS = 842_000
"""That adapters in MiniLM train on in a second."""


def estimate(dataset: str, method: str, settings: Mapping[str, Any], base: str) -> float:
    """Seconds of an H200 that a run takes, evaluations not counted."""
    rows, larger = DATA[LIKE.sub("", dataset)], BASES[Path(base).name].parameters / BASES["all-MiniLM-L6-v2"].parameters
    batch, size = settings.get("batch_size", 16), settings.get("train_size") or rows.count
    steps = settings.get("max_steps") or math.ceil(size / batch) * settings["epochs"]
    tokens = size * rows.tokens * settings["pretrain_epochs"] if settings.get("pretrain_on_text") else 0.0
    if method.startswith("finetune"):
        a_step = MIXOUT if "mixout" in method else FINE_TUNING
        return larger * (steps * a_step + tokens / ADAPTER_TOKENS)
    return larger * (steps * batch * rows.tokens + tokens) / ADAPTER_TOKENS
