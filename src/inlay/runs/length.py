"""How long a run trains where nobody says: `FEWEST_EPOCHS` passes, or more until it has taken `LEAST_STEPS` steps.

With a hundred rows, five passes are some thirty steps, in which the learning rate rises and falls before anything is
learned. The least number of steps is what a small file can afford on two cores: docs/performance.md has 0.44 s for
a step of 32 texts of 32 tokens (all-MiniLM-L6-v2), so 400 steps of 16 take about one and a half minutes; twice as long
texts, three.
"""

from __future__ import annotations

import math

from inlay.runs.run import Run

FEWEST_EPOCHS = 5
LEAST_STEPS = 400
MOST_EVALUATIONS = 20
"""Of a run with more than `FEWEST_EPOCHS`: more would take longer than the training, and choose by luck."""


def settled(run: Run, rows: int) -> Run:
    """The run with its epochs and, where they are many, its evaluations; what was given stays as it is.

    Args:
        rows: how many there are to train on; a text in several windows counts as often.
    """
    if run.epochs is not None:
        return run
    steps = math.ceil(rows / run.batch_size)
    epochs = max(FEWEST_EPOCHS, math.ceil(LEAST_STEPS / steps))
    if run.max_steps is not None:
        epochs = min(epochs, math.ceil(run.max_steps / steps))
    changes = {"epochs": epochs}
    if run.eval_every is None and epochs > MOST_EVALUATIONS:
        changes["eval_every"] = steps * math.ceil(epochs / MOST_EVALUATIONS)
    return run.model_copy(update=changes)
