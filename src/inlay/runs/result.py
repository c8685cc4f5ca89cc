"""The result of a training."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inlay.errors import RunError
from inlay.library.adapter import Adapter
from inlay.library.ensemble import Ensemble


@dataclass(frozen=True)
class Result:
    """The outcome of one run: the adapter, how good it is, and how it was made."""

    name: str
    method: str
    config: dict[str, Any]
    """The settings that run it again, without the defaults."""
    metric: str
    """The metric that chose the best state."""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """split -> metric -> value, of the adapter as it is served."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """Every evaluation: stage, step, epoch, metrics, mean training loss, and the loss of the validation rows."""
    losses: list[float] = field(default_factory=list, repr=False)
    """The training loss of every step."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """adapter, head, share_of_base."""
    best_epoch: float = 0.0
    best_step: int = 0
    seconds: float = 0.0
    problem: str = ""
    """Why the run failed; empty if it did not."""
    version: int | None = None
    library: str | None = None
    before: dict[str, Any] | None = None
    """The version before, measured on the same rows: version, split, its value there, and now this one's."""
    _adapter: Adapter | Ensemble | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        """Whether the run came to its end."""
        return not self.problem

    @property
    def adapter(self) -> Adapter | Ensemble:
        """The trained adapter, or the ensemble of several."""
        if self._adapter is None:
            raise RunError(f"{self.name} has no adapter: {self.problem or 'it was not kept'}")
        return self._adapter

    @property
    def single(self) -> Adapter:
        """The trained adapter of a run that is no ensemble."""
        if not isinstance(self.adapter, Adapter):
            raise RunError(f"{self.name} is an ensemble of {len(self.adapter.members)} adapters")
        return self.adapter

    @property
    def value(self) -> float:
        """The deciding metric on validation."""
        return self.metrics["validation"][self.metric]

    @property
    def kept(self) -> str:
        """Which state was kept, in words."""
        if isinstance(self._adapter, Ensemble):
            return f"an ensemble of {len(self._adapter.members)}"
        chosen = "" if self.config.get("choose_by") == "last" else "best "
        epoch = f" (epoch {self.best_epoch:.1f})" if self.best_epoch else ""
        return f"{chosen}after {self.best_step:,} {'step' if self.best_step == 1 else 'steps'}{epoch}"

    def document(self) -> dict[str, Any]:
        """What `inlay train --json` prints."""
        failed = {"problem": self.problem} if self.problem else {}
        return {
            "name": self.name,
            "version": self.version,
            "method": self.method,
            "parameters": self.parameters,
            "metrics": self.metrics,
            "metric": self.metric,
            "best_epoch": self.best_epoch,
            "best_step": self.best_step,
            "seconds": round(self.seconds, 2),
            "library": self.library,
            "before": self.before,
            "config": self.config,
            **({"members": len(self._adapter.members)} if isinstance(self._adapter, Ensemble) else {}),
            "history": self.history,
            **failed,
        }

    def _repr_html_(self) -> str:
        """A small table and the learning curve, for notebooks."""
        rows = [("method", self.method), ("parameters", f"{self.parameters.get('adapter', 0):,}")]
        rows += [("problem", self.problem)] if self.problem else []
        for split, values in self.metrics.items():
            rows += [(f"{split} {name}", f"{value:.4f}") for name, value in values.items()]
        rows.append(("best epoch", f"{self.best_epoch:g}"))
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows
        )
        return f"<b>{html.escape(self.name)}</b><table>{cells}</table>{curve(self.losses)}"


def curve(values: Sequence[float], width: int = 320, height: int = 80) -> str:
    """A line through values, as SVG."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = max(1, len(values) // width)
    means = [sum(values[i : i + step]) / len(values[i : i + step]) for i in range(0, len(values), step)]
    points = " ".join(
        f"{width * i / max(1, len(means) - 1):.1f},{height - 4 - (height - 8) * (v - low) / span:.1f}"
        for i, v in enumerate(means)
    )
    line = f"<polyline points='{points}' fill='none' stroke='currentColor' stroke-width='1.5'/>"
    return f"<svg width='{width}' height='{height}' role='img' aria-label='training loss'>{line}</svg>"
