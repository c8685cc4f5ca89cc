"""Search by Optuna: a trial for every free slot, and a pruner that sees every evaluation.

The next setting is a function of the seed, the trial's number and what is known of the trials before it: every question
has a new sampler, so no state of it has to be kept. The study itself lives in memory, and is filled again from the rows
when a sweep goes on.
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
_Histories = Mapping[str, Sequence[Mapping[str, Any]]]
"""id of a run -> its evaluations."""
_MISSES = 100
"""After this many known settings in a row a search ends."""


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
class _Suggestion:
    """A setting that Optuna suggests, run with every seed."""

    trial: Any
    """Optuna's own trial."""
    setting: Setting
    reports: dict[int, list[float]] = field(default_factory=dict)
    """Seed of a run -> values of its evaluations."""
    ended: dict[int, tuple[str, float | None]] = field(default_factory=dict)
    """Seed of a run -> state and value."""
    reported: int = 0
    pruned: bool = False


class OptunaSearch:
    """Asks Optuna for settings and tells it their results."""

    def __init__(self, trials: Trials, store: Store, study: str, count: int, *, seed: int = 0, pruner: str = "median"):
        """
        Args:
            study: the name of this search in the store.
            count: how many settings to try.
        """
        if pruner not in PRUNERS:
            raise RunError(f"unknown pruner {pruner!r}. {suggest(pruner, PRUNERS)}")
        self.trials, self.store, self.name, self.count = trials, store, study, count
        self.seed, self.pruner = seed, pruner
        self.optuna = optuna()
        self.suggestions: dict[int, _Suggestion] = {}
        self._waiting: list[Trial] = []
        self._study: Any = None

    def known(self) -> list[Trial]:
        """The trials that an earlier process has asked for."""
        return [self.trials.make(row.setting, row.seed, row.number) for row in self.store.study(self.name)]

    def begin(self, jobs: Sequence[tuple[Trial, Job]], waiting: Sequence[Trial]) -> None:
        """Tell the study all that is known of runs in a loop, waiting trials and rows that have ended."""
        rows = self.store.study(self.name)
        history = {trial.id: job.history for trial, job in jobs if not job.has_ended}
        for number in sorted({row.number for row in rows if row.number is not None}):
            self._retell(number, [row for row in rows if row.number == number], history)
        self._waiting = list(waiting)

    def next(self) -> Trial | None:
        """Another run of the newest setting, or the first one of a new setting; None if there are no more."""
        while not self._waiting:
            if len(self.suggestions) >= self.count or not self._ask():
                return None
        return self._waiting.pop(0)

    def is_hopeless(self, trial: Trial) -> bool:
        """Whether its setting has been pruned."""
        return self._of(trial).pruned

    def prune(self, jobs: Sequence[tuple[Trial, Job]]) -> list[Job]:
        """Report the evaluations that all seeds of a setting have made; the result is the runs of hopeless settings."""
        for trial, job in jobs:
            suggestion = self._of(trial)
            suggestion.reports[trial.seed] = [entry["metrics"][trial.data.metric] for entry in job.history]
            self._report(suggestion)
        return [job for trial, job in jobs if self._of(trial).pruned]

    def ended(self, trial: Trial, job: Job) -> None:
        """Tell the study when the last run of a setting has ended."""
        value = job.result["metrics"]["validation"][trial.data.metric] if job.result is not None else None
        suggestion = self._of(trial)
        suggestion.ended[trial.seed] = job.state, value
        self._tell(suggestion)

    def _of(self, trial: Trial) -> _Suggestion:
        assert trial.number is not None
        return self.suggestions[trial.number]

    def largest(self) -> Sequence[Job]:
        """The largest setting of every method, as often as there are runs."""
        made = [self.trials.make(setting, self.trials.seeds[0]) for setting in largest(self.trials.space)]
        jobs = [Job(i, trial.label, trial.data) for i, trial in enumerate(made)]
        return jobs * (1 + self.count * len(self.trials.seeds) // len(jobs))

    def _ask(self) -> bool:
        """A new setting, its runs waiting; False if nothing new can be found."""
        known = {self._key(suggestion.setting) for suggestion in self.suggestions.values()}
        for miss in range(_MISSES):
            number = len(self.suggestions)
            study = self._made_study()
            seed = _mixed(self.seed, number, miss)
            study.sampler = self.optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            trial = study.ask()
            setting = self._suggest(trial)
            if self._key(setting) in known:  # to run it again would give the same
                study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
                continue
            self.suggestions[number] = _Suggestion(trial, setting)
            try:
                self._queue(number, setting)
            except InlayError as error:
                raise RunError(f"{self._key(setting)} cannot be run: {error}") from None
            return True
        return False

    def _queue(self, number: int, setting: Setting) -> None:
        """Let a setting's runs wait for slots, except those that another sweep in this file has made."""
        made = [self.trials.make(setting, seed, number) for seed in self.trials.seeds]
        self.store.add(made, self.name)
        ended = [row for row in self.store.rows([trial.id for trial in made]) if row.state in ENDED]
        self._take(self.suggestions[number], ended, {})
        self._waiting = [trial for trial in made if trial.id not in {row.id for row in ended}]

    def _suggest(self, trial: Any) -> Setting:
        space = self.trials.space
        methods = [branch.method for branch in space.branches]
        setting: Setting = {"method": trial.suggest_categorical("method", methods) if len(methods) > 1 else methods[0]}
        for name, axis in self._axes(setting):
            setting[axis.key] = _suggested(trial, name, axis.values)
        return setting

    def _axes(self, setting: Setting) -> list[tuple[str, Axis]]:
        """What else varies, each with its name in the study: an option of two methods may have two meanings."""
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

    def _retell(self, number: int, rows: Sequence[Row], history: _Histories) -> None:
        study, setting = self._made_study(), rows[0].setting
        params, kinds = self._distributions(setting)
        running = self.optuna.trial.TrialState.RUNNING
        study.add_trial(self.optuna.trial.create_trial(state=running, params=params, distributions=kinds))
        trial = self.optuna.trial.Trial(study, study.trials[-1]._trial_id)
        suggestion = self.suggestions[number] = _Suggestion(trial, setting)
        self._take(suggestion, rows, history)

    def _take(self, suggestion: _Suggestion, rows: Sequence[Row], history: _Histories) -> None:
        """Tell the study what rows, and the histories of runs under way, say of a setting."""
        for row in rows:
            known = row.history if row.state in ENDED else history.get(row.id, ())
            suggestion.reports[row.seed] = [entry["metrics"][row.metric] for entry in known]
            if row.state in ENDED:
                suggestion.ended[row.seed] = row.state, row.value
        suggestion.pruned = any(state == "pruned" for state, _ in suggestion.ended.values())
        self._report(suggestion, again=True)
        self._tell(suggestion)

    def _report(self, suggestion: _Suggestion, again: bool = False) -> None:
        """The mean over seeds, of every evaluation that all of them have made.

        Args:
            again: the pruner has judged it before, by what was known then; its verdict now might differ and is ignored.
        """
        if len(suggestion.reports) < len(self.trials.seeds):
            return
        while suggestion.reported < min(len(values) for values in suggestion.reports.values()):
            values = [values_of_run[suggestion.reported] for values_of_run in suggestion.reports.values()]
            suggestion.trial.report(sum(values) / len(values), suggestion.reported + 1)
            suggestion.reported += 1
            hopeless = suggestion.trial.should_prune()  # which also makes notes, if the pruner is hyperband
            suggestion.pruned = suggestion.pruned or (hopeless and not again)

    def _tell(self, suggestion: _Suggestion) -> None:
        if len(suggestion.ended) < len(self.trials.seeds):
            return
        states = self.optuna.trial.TrialState
        values = [value for state, value in suggestion.ended.values() if state == "done" and value is not None]
        if len(values) == len(self.trials.seeds):
            self._made_study().tell(suggestion.trial, sum(values) / len(values))
        else:
            self._made_study().tell(suggestion.trial, state=states.PRUNED if suggestion.pruned else states.FAIL)

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
