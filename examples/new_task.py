"""A task of your own: classification with smoothed targets, in one class.

It derives from a task of the package, so it reads the same data and takes the same options; files, command line
(`--task smooth:amount=0.2`), cards and predictions know it by its name.

Run it: python examples/new_task.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import inlay
from inlay.base.load import Base
from inlay.config import option
from inlay.tasks import Row
from inlay.tasks.classification import Classification

ROWS = [
    {"text": f"{opening}, {what}", "label": label}
    for opening in ("honestly", "well", "in short", "as I said", "for what it is worth")
    for what, label in (("I loved it", "good"), ("a waste of time", "bad"), ("what a treat", "good"), ("dull", "bad"))
]


@inlay.task("smooth")
@dataclass(frozen=True, kw_only=True)
class Smooth(Classification):
    """Classification that never learns to be entirely sure."""

    amount: float = option(0.1, "how much of a target goes to the other classes")

    def loss(self, outputs: Sequence[Tensor], rows: Sequence[Row], base: Base, weights: Tensor | None = None) -> Tensor:
        """Cross-entropy with label smoothing."""
        logits = torch.stack(list(outputs)).float()
        targets = torch.tensor([row.target for row in rows], device=logits.device)
        return F.cross_entropy(logits, targets, weights, label_smoothing=self.amount)


def main() -> None:
    host = inlay.Host()
    runs = [inlay.Run(data=ROWS, task=task, method="adapterbias", epochs=4) for task in ("smooth:amount=0.3", "smooth")]
    for result in inlay.train(host, runs):
        host.load(result.adapter)
        answer = host.predict([(result.name, "I loved it")], raw=True)[0]
        print(result.adapter.task, result.value, answer["label"], round(answer["score"], 3))


if __name__ == "__main__":
    main()
