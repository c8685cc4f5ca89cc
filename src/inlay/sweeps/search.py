"""Search by Optuna: a trial for every free slot, and a pruner that sees every evaluation.

What is asked next is a function of the seed, the trial's number and what is known of the trials before it: the sampler
is made anew for every question, so nothing of its state has to be kept. The study itself lives in memory, and is told
again from the rows when a sweep goes on.
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inlay import metrics
from inlay.errors import InlayError, RunError, suggest
from inlay.sweeps.grid import Axis, Setting
from inlay.sweeps.random_search import largest
from inlay.sweeps.store import ENDED, Row, Store
from inlay.sweeps.trial import Trial, Trials
from inlay.sweeps.values import Range
from inlay.training.job import Job

PRUNERS = ("median", "hyperband", "none")
_MISSES = 100
"""Questions in a row that bring a setting which is known already."""


def optuna() -> Any:
    """The package, if it is there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package = importlib.import_module("optuna")
    except ImportError:
        raise RunError("a search needs Optuna: pip install 'inlay[sweep]'") from None
    package.logging.set_verbosity(package.logging.ERROR)
    return package


@dataclass
class _Asked:
    """One question's answer: a setting, run with every seed."""

    trial: Any
    """Optuna's."""
    setting: Setting
    reports: dict[int, list[float]] = field(default_factory=dict)
    """Runs by their seed -> values of their evaluations."""
    ended: dict[int, tuple[str, float | None]] = field(default_factory=dict)
    """Runs by their seed -> state and value."""
    reported: int = 0
    pruned: bool = False


class OptunaSearch:
    """Asks Optuna for settings and tells it what came of them."""

    def __init__(self, trials: Trials, store: Store, study: str, count: int, *, seed: int = 0, pruner: str = "median"):
        """
        Args:
            study: the name under which rows belong to this search.
            count: how many settings to try.
        """
        if pruner not in PRUNERS:
            raise RunError(f"unknown pruner {pruner!r}. {suggest(pruner, PRUNERS)}")
        self.trials, self.store, self.name, self.count = trials, store, study, count
        self.seed, self.pruner = seed, pruner
        self.optuna = optuna()
        self.asked: dict[int, _Asked] = {}
        self._waiting: list[Trial] = []
        self._study: Any = None

    def known(self) -> list[Trial]:
        """The trials that an earlier process has asked for."""
        return [self.trials.make(row.setting, row.seed, row.number) for row in self.store.study(self.name)]

    def begin(self, jobs: Sequence[tuple[Trial, Job]], waiting: Sequence[Trial]) -> None:
        """Tell the study all that is known: of runs in a loop, of those that wait, and of rows that have ended."""
        rows = self.store.study(self.name)
        history = {trial.id: job.history for trial, job in jobs if not job.has_ended}
        for number in sorted({row.number for row in rows if row.number is not None}):
            self._retell(number, [row for row in rows if row.number == number], history)
        self._waiting = list(waiting)

    def next(self) -> Trial | None:
        """Another run of the newest setting, or the first one of a new setting; None if there shall be no more."""
        while not self._waiting:
            if len(self.asked) >= self.count or not self._ask():
                return None
        return self._waiting.pop(0)

    def is_hopeless(self, trial: Trial) -> bool:
        """Whether the other seeds of its setting have been given up."""
        return self._of(trial).pruned

    def prune(self, jobs: Sequence[tuple[Trial, Job]]) -> list[Job]:
        """Report the evaluations that all seeds of a setting have made; the runs of hopeless settings."""
        for trial, job in jobs:
            asked = self._of(trial)
            asked.reports[trial.seed] = [entry["metrics"][trial.data.metric] for entry in job.history]
            self._report(asked)
        return [job for trial, job in jobs if self._of(trial).pruned]

    def ended(self, trial: Trial, job: Job) -> None:
        """Tell the study when the last run of a setting has ended."""
        value = job.result["metrics"]["validation"][trial.data.metric] if job.result is not None else None
        asked = self._of(trial)
        asked.ended[trial.seed] = job.state, value
        self._tell(asked)

    def _of(self, trial: Trial) -> _Asked:
        assert trial.number is not None
        return self.asked[trial.number]

    def largest(self) -> Sequence[Job]:
        """The largest setting of every method, as often as there are runs."""
        made = [self.trials.make(setting, self.trials.seeds[0]) for setting in largest(self.trials.space)]
        jobs = [Job(i, trial.label, trial.data) for i, trial in enumerate(made)]
        return jobs * (1 + self.count * len(self.trials.seeds) // len(jobs))

    def _ask(self) -> bool:
        """A new setting, its runs waiting; False if nothing new can be found."""
        known = {self._key(asked.setting) for asked in self.asked.values()}
        for miss in range(_MISSES):
            number = len(self.asked)
            study = self._made_study()
            seed = _mixed(self.seed, number, miss)
            study.sampler = self.optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            trial = study.ask()
            setting = self._suggest(trial)
            if self._key(setting) in known:  # to run it again would give the same
                study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
                continue
            self.asked[number] = _Asked(trial, setting)
            try:
                self._queue(number, setting)
            except InlayError as error:
                raise RunError(f"{self._key(setting)} cannot be run: {error}") from None
            return True
        return False

    def _queue(self, number: int, setting: Setting) -> None:
        """Let a setting's runs wait for slots, but for those that another sweep in this file has made already."""
        made = [self.trials.make(setting, seed, number) for seed in self.trials.seeds]
        self.store.add(made, self.name)
        ended = [row for row in self.store.rows([trial.id for trial in made]) if row.state in ENDED]
        self._take(self.asked[number], ended, {})
        self._waiting = [trial for trial in made if trial.id not in {row.id for row in ended}]

    def _suggest(self, trial: Any) -> Setting:
        space = self.trials.space
        methods = [branch.method for branch in space.branches]
        setting: Setting = {"method": trial.suggest_categorical("method", methods) if len(methods) > 1 else methods[0]}
        for name, axis in self._axes(setting):
            setting[axis.key] = _suggested(trial, name, axis.values)
        return setting

    def _axes(self, setting: Setting) -> list[tuple[str, Axis]]:
        """What else varies, each with its name: an option of two methods may have two meanings."""
        axes, method = self.trials.space.branch(setting).axes, setting["method"]
        return [(f"{method} {axis.key}" if axis.is_option else axis.key, axis) for axis in axes]

    def _distribution(self, values: Any) -> Any:
        kinds = self.optuna.distributions
        if not isinstance(values, Range):
            return kinds.CategoricalDistribution(values)
        if values.whole:
            return kinds.IntDistribution(int(values.low), int(values.high), log=values.log)
        return kinds.FloatDistribution(values.low, values.high, log=values.log)

    def _distributions(self, setting: Setting) -> tuple[dict[str, Any], dict[str, Any]]:
        space = self.trials.space
        params, kinds = {}, {}
        if len(space.branches) > 1:
            params["method"] = setting["method"]
            kinds["method"] = self._distribution(tuple(branch.method for branch in space.branches))
        for name, axis in self._axes(setting):
            params[name], kinds[name] = setting[axis.key], self._distribution(axis.values)
        return params, kinds

    def _made_study(self) -> Any:
        if self._study is None:
            any_trial = self.trials.make(next(self.trials.space.settings()), self.trials.seeds[0])
            lower = any_trial.data.metric in metrics.LOWER_IS_BETTER
            pruners: Mapping[str, Callable[[], Any]] = {
                "median": self.optuna.pruners.MedianPruner,
                "hyperband": self.optuna.pruners.HyperbandPruner,
                "none": self.optuna.pruners.NopPruner,
            }
            self._study = self.optuna.create_study(
                study_name=self.name, direction="minimize" if lower else "maximize", pruner=pruners[self.pruner]()
            )
        return self._study

    def _retell(self, number: int, rows: Sequence[Row], history: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        study, setting = self._made_study(), rows[0].setting
        params, kinds = self._distributions(setting)
        running = self.optuna.trial.TrialState.RUNNING
        study.add_trial(self.optuna.trial.create_trial(state=running, params=params, distributions=kinds))
        asked = self.asked[number] = _Asked(self.optuna.trial.Trial(study, study.trials[-1]._trial_id), setting)
        self._take(asked, rows, history)

    def _take(self, asked: _Asked, rows: Sequence[Row], history: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """What rows, and the histories of runs under way, say of a setting."""
        for row in rows:
            known = row.history if row.state in ENDED else history.get(row.id, ())
            asked.reports[row.seed] = [entry["metrics"][row.metric] for entry in known]
            if row.state in ENDED:
                asked.ended[row.seed] = row.state, row.value
        asked.pruned = any(state == "pruned" for state, _ in asked.ended.values())
        self._report(asked, again=True)
        self._tell(asked)

    def _report(self, asked: _Asked, again: bool = False) -> None:
        """The mean over seeds, of every evaluation that all of them have made.

        Args:
            again: it was judged at the time, by what was known then; by what is known now it might be pruned.
        """
        if len(asked.reports) < len(self.trials.seeds):
            return
        while asked.reported < min(len(values) for values in asked.reports.values()):
            values = [own[asked.reported] for own in asked.reports.values()]
            asked.trial.report(sum(values) / len(values), asked.reported + 1)
            asked.reported += 1
            hopeless = asked.trial.should_prune()  # which also makes notes, if the pruner is hyperband
            asked.pruned = asked.pruned or (hopeless and not again)

    def _tell(self, asked: _Asked) -> None:
        if len(asked.ended) < len(self.trials.seeds):
            return
        states = self.optuna.trial.TrialState
        values = [value for state, value in asked.ended.values() if state == "done" and value is not None]
        if len(values) == len(self.trials.seeds):
            self._made_study().tell(asked.trial, sum(values) / len(values))
        else:
            self._made_study().tell(asked.trial, state=states.PRUNED if asked.pruned else states.FAIL)

    @staticmethod
    def _key(setting: Setting) -> str:
        return ", ".join(f"{key}={value}" for key, value in setting.items())


def _suggested(trial: Any, name: str, values: Any) -> Any:
    if not isinstance(values, Range):
        return trial.suggest_categorical(name, values)
    suggest = trial.suggest_int if values.whole else trial.suggest_float
    return suggest(name, values.low, values.high, log=values.log)


def _mixed(*numbers: int) -> int:
    return random.Random(" ".join(map(str, numbers))).getrandbits(31)
