"""Options of answers, and which of them an adapter can follow. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inlay.errors import InlayError

_WITHOUT_SCORE = "regression"
"""The kind of task whose answers have no score."""


@dataclass(frozen=True)
class AnswerOptions:
    """Options of answers."""

    top_k: int | None = None
    threshold: float | str | None = None
    """The least score of a label; or `uncertainty=0.1`, the most that an ensemble may disagree."""
    raw: bool = False

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise InlayError(f"top_k must be at least 1, not {self.top_k}")
        if isinstance(self.threshold, str):
            if (most := uncertainty(self.threshold)) is None or not most >= 0:
                raise InlayError(f"threshold must be a score or uncertainty=NUMBER, not {self.threshold!r}")
        elif self.threshold is not None and not 0 <= self.threshold <= 1:
            raise InlayError(f"threshold must be between 0 and 1, not {self.threshold}")

    def fits(self, kind: str) -> bool:
        """Whether answers of this kind of task have what the threshold compares."""
        return self.threshold is None or isinstance(self.threshold, str) or kind != _WITHOUT_SCORE

    def check(self, kinds: Mapping[str, str]) -> None:
        """Raise if the threshold fits none of these adapters.

        Args:
            kinds: adapter -> the kind of its task.
        """
        if kinds and not any(self.fits(kind) for kind in kinds.values()):
            without = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
            raise InlayError(f"threshold {self.threshold:g} needs scores, and {without} has none")


def uncertainty(threshold: str) -> float | None:
    """The number in `uncertainty=0.1`; None for any other text."""
    key, _, number = threshold.partition("=")
    try:
        return float(number) if key.strip() == "uncertainty" else None
    except ValueError:
        return None
