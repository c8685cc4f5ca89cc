"""A task of your own: classification with smoothed targets, in one class.

It derives from a task of the package, so it reads the same data and takes the same options; files, command line
(`--task smooth:amount=0.2`), cards and predictions know it by its name.

Run it: python examples/new_task.py
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import inlay
from inlay.base.load import Base
from inlay.config import option
from inlay.tasks import NOTHING
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

    def losses(self, outputs: Tensor, value: Tensor, base: Base) -> Tensor:
        """Cross-entropy with label smoothing. Runs of other sizes are in the same call: NOTHING is not a label."""
        labels = outputs > NOTHING
        mean = (outputs.log_softmax(-1) * labels).sum(-1) / labels.sum(-1).clamp_min(1)
        return (1 - self.amount) * super().losses(outputs, value, base) - self.amount * mean


def main() -> None:
    host = inlay.Host()
    runs = [inlay.Run(data=ROWS, task=task, method="adapterbias", epochs=4) for task in ("smooth:amount=0.3", "smooth")]
    for result in inlay.train(host, runs):
        host.load(result.adapter)
        answer = host.predict([(result.name, "I loved it")], raw=True)[0]
        print(result.adapter.task, result.value, answer["label"], round(answer["score"], 3))


if __name__ == "__main__":
    main()
