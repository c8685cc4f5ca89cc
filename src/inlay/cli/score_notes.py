"""Notes on a score: what the majority gives, whether anything was learned, whether it got worse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inlay import metrics
from inlay.tracking.progress import decimals

if TYPE_CHECKING:
    from inlay.runs.prepare import Prepared
    from inlay.runs.result import Result

NEAR_ZERO = 0.1
"""A Matthews correlation below this is hardly better than a guess."""
_ADVICE = "try more epochs (--epochs) or a higher learning rate (--lr)"
_RARE = "; where some classes are rare, --class-weights, and --metric f1_macro to pick the checkpoint by all classes"
_ADVICE_FEW_SHOT = "more rows help most; --no-few-shot trains in the usual way, which may do better"


def majority(data: Prepared) -> tuple[str, dict[str, float]]:
    """The most frequent answer of the training rows, in words, and how giving it always scores: on test rows, else on
    validation rows. Empty where answers are not classes."""
    from inlay.comparison.baselines import commonest, in_words, label_of, measure

    if data.task.kind not in ("classification", "multilabel", "tagging"):
        return "", {}
    answer = commonest(data.task, data.train.examples, data.labels)
    scores = measure(data, answer)
    (target,) = answer(data.validation.examples[:1])
    return in_words(label_of(target)), scores.get("test", scores["validation"])


def nothing_learned(result: Result, data: Prepared) -> str:
    """A hint if a run is hardly better than a guess that needs no training; else empty."""
    advice = _ADVICE + (_RARE if "f1_macro" in data.task.measures else "")  # questions have no classes
    advice = _ADVICE_FEW_SHOT if data.run.few_shot else advice
    if result.value == 0 and result.metric.startswith(("f1", "matthews")):
        return f"{result.metric} is 0: nothing was learned yet; {advice}"
    for split, scores in result.metrics.items():
        if (matthews := scores.get("matthews", 1.0)) < NEAR_ZERO:
            near = f"the Matthews correlation on the {split} rows is {decimals(matthews)} (guessing gives 0)"
            return f"{near}: hardly anything was learned; {advice}"
    always, guess = majority(data)
    last = list(result.metrics.values())[-1]
    if data.task.kind == "classification" and last["accuracy"] <= guess["accuracy"]:
        return f"accuracy is no better than {always}; {advice}"
    return ""


def worse(result: Result) -> str:
    """A note if a version is worse than the one before on the same rows; else empty."""
    before = result.before
    if before is None or not metrics.better(result.metric, before["value"], before["now"]):
        return ""
    values = f"{result.metric} {decimals(before['now'])}, before {decimals(before['value'])}"
    again = f"inlay library rm {result.name}@{result.version} removes it"
    return f"worse than {result.name}@{before['version']} on the same {before['split']} rows: {values}; {again}"
