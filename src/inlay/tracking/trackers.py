"""Logs of a training on a server: Weights & Biases, MLflow. `logs.py` has the rest, and says when they are called.

Each run of a training is a run of its own there, with its settings, never the one global run that those tools offer
first: runs train side by side.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inlay.errors import RunError
from inlay.tracking.logs import Outcome, RunByRun, package, plain


class WandB(RunByRun):
    """One Weights & Biases run per run, in one project. A training that is resumed makes new ones.

    Calls `wandb.init(project=, name=, config=, reinit="create_new", **options)`, and of the run it gives: `log(values,
    step=)`, `summary.update` with final/<split>/<metric> or the problem, and `finish(exit_code=)`, 0 if it is done.

    Args:
        project: the project's name.
        options: more for `wandb.init`, such as entity, group, tags, dir or mode.
    """

    def __init__(self, project: str, **options: Any):
        super().__init__()
        reserved = sorted({"name", "id", "config", "reinit"} & set(options))
        if reserved:
            raise RunError(f"WandB sets {', '.join(reserved)} for every run by itself; leave it out")
        self.project, self.options = project, options
        self._wandb = package("wandb", "wandb")
        version = str(self._wandb.__version__)
        if tuple(map(int, re.findall(r"\d+", version)[:3])) < (0, 19, 10):  # an older one would end the run before
            raise RunError(f"WandB needs wandb 0.19.10 or later, not {version}: pip install --upgrade wandb")

    def _start(self, name: str, config: Mapping[str, Any]) -> Any:
        arguments = {"name": name, "config": plain(config), "reinit": "create_new", **self.options}
        return self._wandb.init(project=self.project, **arguments)

    def _log(self, handle: Any, step: int, values: Mapping[str, float]) -> None:
        handle.log(dict(values), step=step)

    def _end(self, handle: Any, outcome: Outcome, step: int, final: Mapping[str, float], problem: str) -> None:
        facts = {**final, **({"problem": problem} if problem else {})}
        if facts:
            handle.summary.update(facts)
        handle.finish(exit_code=0 if outcome == "done" else 1)


@dataclass
class _Unsent:
    run_id: str
    metrics: list[Any] = field(default_factory=list)
    sent: float = field(default_factory=time.monotonic)


class MLflow(RunByRun):
    """One MLflow run per run, in one experiment, which is made if need be. A training that is resumed makes new ones.

    Calls an `mlflow.MlflowClient`, so that a run that is active elsewhere stays as it is: `get_experiment_by_name`,
    `create_experiment`, `create_run`, `log_batch`, `set_tag` with a problem, and `set_terminated` with FINISHED, FAILED
    or KILLED. Points wait a few seconds and go together, since each call is a request.

    Args:
        experiment: the experiment's name.
        tracking_uri: a server or folder; by default what MLflow is set to (MLFLOW_TRACKING_URI).
        tags: tags for every run.
        every: seconds between requests for one run.
    """

    _STATUS: Mapping[Outcome, str] = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}

    def __init__(
        self,
        experiment: str,
        *,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        every: float = 5.0,
    ):
        super().__init__()
        self.experiment, self.tags, self.every = experiment, dict(tags or {}), every
        client = package("mlflow", "mlflow-skinny").MlflowClient
        self._entities = package("mlflow.entities", "mlflow-skinny")
        try:
            self._client = client(tracking_uri=tracking_uri)
            known = self._client.get_experiment_by_name(experiment)
            self._id = self._client.create_experiment(experiment) if known is None else known.experiment_id
        except Exception as error:
            raise RunError(f"MLflow: cannot open the experiment {experiment!r}: {error}") from error
        if known is not None and known.lifecycle_stage != "active":
            raise RunError(f"MLflow: the experiment {experiment!r} is {known.lifecycle_stage}; restore it first")

    def _start(self, name: str, config: Mapping[str, Any]) -> _Unsent:
        run_id = self._client.create_run(self._id, tags=self.tags, run_name=name).info.run_id
        params = [self._entities.Param(key, str(value)[:500]) for key, value in config.items()]  # servers cut at 500
        self._client.log_batch(run_id, params=params)
        return _Unsent(run_id)

    def _log(self, handle: _Unsent, step: int, values: Mapping[str, float]) -> None:
        now = time.time_ns() // 1_000_000
        handle.metrics += [self._entities.Metric(name, float(v), now, step) for name, v in values.items()]
        if time.monotonic() - handle.sent >= self.every or len(handle.metrics) >= 500:  # a request takes 1000
            self._send(handle)

    def _send(self, handle: _Unsent) -> None:
        self._client.log_batch(handle.run_id, metrics=handle.metrics)
        handle.metrics, handle.sent = [], time.monotonic()

    def _end(self, handle: _Unsent, outcome: Outcome, step: int, final: Mapping[str, float], problem: str) -> None:
        self._log(handle, step, final)
        self._send(handle)
        if problem:
            self._client.set_tag(handle.run_id, "problem", problem[:500])
        self._client.set_terminated(handle.run_id, status=self._STATUS[outcome])
