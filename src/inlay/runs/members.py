"""The runs of an ensemble: they differ in their seed, and in the part of the rows that each leaves out."""

from __future__ import annotations

from inlay.errors import RunError
from inlay.runs.run import Run


def members_of(run: Run, count: int, name: str) -> list[Run]:
    """The runs of an ensemble."""
    if count < 2:
        raise RunError(f"ensemble={count} (--ensemble) is not valid: expected 2 or more")
    if run.teacher is not None:
        raise RunError("teacher (--teacher) cannot be combined with an ensemble: it trains one adapter")
    setting = next((name for name in ("fold", "folds", "val_size", "train_size") if getattr(run, name)), None)
    if setting is not None:
        option = setting.replace("_", "-")
        raise RunError(f"{setting} (--{option}) cannot be combined with an ensemble, which has parts of its own")
    changes = ({"name": f"{name}-{i + 1}", "seed": run.seed + i, "fold": f"{i + 1}/{count}"} for i in range(count))
    return [run.model_copy(update=of_member) for of_member in changes]
