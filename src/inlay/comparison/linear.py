"""TF-IDF and a linear model, tuned by Optuna on the validation rows: the baseline that a transformer has to beat.

Words (1-2 in a row), pieces of words (2-5 characters) or both; logistic regression for classes, one against the rest
for more than two and for sets of labels; ridge regression for numbers. A pair of texts is joined to one text.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from inlay import metrics
from inlay.errors import RunError
from inlay.runs.prepare import Prepared
from inlay.sweeps.search import optuna
from inlay.tasks import Answer, Example

KINDS = ("classification", "multilabel", "regression")
GRAMS: dict[str, tuple[str, tuple[int, int]]] = {
    "words 1": ("word", (1, 1)),
    "words 1-2": ("word", (1, 2)),
    "characters 2-4": ("char_wb", (2, 4)),
    "characters 3-5": ("char_wb", (3, 5)),
}
FEATURES = {**{name: (name,) for name in GRAMS}, "words 1-2, characters 3-5": ("words 1-2", "characters 3-5")}
"""The features that can be counted: name -> its parts."""
_MOST = 30_000_000
"""The most numbers in features that are kept: about 400 MB."""


def sklearn(module: str) -> Any:
    """A module of scikit-learn, if it is installed."""
    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError:
        raise RunError(
            "the TF-IDF baseline needs scikit-learn: pip install 'inlay[sweep]', or leave baselines out"
        ) from None


def tune(data: Prepared, trials: int) -> tuple[dict[str, Any], int, Callable[[Sequence[Example]], list[Answer]]]:
    """The setting that is best on validation rows, how many numbers its model has, and the function that answers."""
    package, study = optuna(), _study(data)
    best: tuple[Any, ...] | None = None
    problem = ""
    counted: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a label that all rows have, a solver that would like more steps
        for _ in range(trials):
            trial = study.ask(_space(package, data))
            setting = dict(trial.params)
            try:
                answer, size = fit(data, setting, counted)
            except ValueError as error:  # no word is in min_df rows, or all rows have the same class
                study.tell(trial, state=package.trial.TrialState.FAIL)
                problem = str(error)
                continue
            scores = data.task.score(data.validation.examples, answer(data.validation.examples), data.labels)
            value = scores[data.metric]
            study.tell(trial, value)
            if best is None or metrics.better(data.metric, value, best[0]):
                best = (value, setting, size, answer)
    if best is None:
        raise RunError(f"TF-IDF with a linear model cannot be fitted: {problem}")
    return best[1], best[2], best[3]


def fit(
    data: Prepared, setting: dict[str, Any], counted: dict[tuple[Any, ...], tuple[Any, Any]] | None = None
) -> tuple[Callable[[Sequence[Example]], list[Answer]], int]:
    """A model with this setting: the function that answers, and how many numbers the model has.

    Args:
        counted: features of training rows, kept from one setting to the next.
    """
    counted = {} if counted is None else counted
    key = (setting["features"], setting["min_df"], setting["sublinear"])
    if key not in counted:
        vectorizer = _vectorizer(*key)
        counted[key] = vectorizer, _count_features(vectorizer.fit_transform, data.train.examples)
    vectorizer, features = counted[key]
    while len(counted) > 1 and sum(counts.nnz for _, counts in counted.values()) > _MOST:
        del counted[next(iter(counted))]
    model = _make_model(data, setting["strength"])
    model.fit(features, _targets(data))
    size = (features.shape[1] + 1) * _outputs(data)

    def answer(examples: Sequence[Example]) -> list[Answer]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _answers(data, model.predict(_count_features(vectorizer.transform, examples)))

    return answer, size


def _study(data: Prepared) -> Any:
    package = optuna()
    direction = "minimize" if data.metric in metrics.LOWER_IS_BETTER else "maximize"
    return package.create_study(direction=direction, sampler=package.samplers.TPESampler(seed=data.run.seed))


def _space(package: Any, data: Prepared) -> dict[str, Any]:
    ends = (1e-3, 1e2) if data.task.kind == "regression" else (1e-2, 1e3)
    distributions = package.distributions
    return {
        "features": distributions.CategoricalDistribution(list(FEATURES)),
        "min_df": distributions.IntDistribution(1, 3),
        "sublinear": distributions.CategoricalDistribution([False, True]),
        "strength": distributions.FloatDistribution(*ends, log=True),
    }


def _vectorizer(features: str, min_df: int, sublinear: bool) -> Any:
    vectorizers = []
    for name in FEATURES[features]:
        analyzer, grams = GRAMS[name]
        pattern = {"token_pattern": r"(?u)\b\w+\b"} if analyzer == "word" else {}
        options = {"analyzer": analyzer, "ngram_range": grams, "min_df": min_df, "sublinear_tf": sublinear, **pattern}
        vectorizers.append((name, sklearn("feature_extraction.text").TfidfVectorizer(**options)))
    return sklearn("pipeline").FeatureUnion(vectorizers) if len(vectorizers) > 1 else vectorizers[0][1]


def _count_features(count: Callable[[list[str]], Any], examples: Sequence[Example]) -> Any:
    return count([f"{e.shown()}\n{e.pair or ''}" for e in examples])


def _make_model(data: Prepared, strength: float) -> Any:
    """For numbers the strength is ridge's alpha, for classes the C of logistic regression."""
    if data.task.kind == "regression":
        return sklearn("linear_model").Ridge(alpha=strength)
    balance = "balanced" if data.weights is not None else None
    model = sklearn("linear_model").LogisticRegression(
        C=strength, solver="liblinear", class_weight=balance, max_iter=1000, random_state=data.run.seed
    )
    is_binary = data.task.kind == "classification" and _outputs(data) == 1
    return model if is_binary else sklearn("multiclass").OneVsRestClassifier(model)


def _outputs(data: Prepared) -> int:
    """Linear functions in the model: two classes need one."""
    if data.task.kind == "classification":
        classes = len({e.target for e in data.train.examples})
        return classes if classes > 2 else 1
    return len(data.labels) if data.task.kind == "multilabel" else 1


def _targets(data: Prepared) -> Any:
    targets = [e.target for e in data.train.examples]
    if data.task.kind == "multilabel":
        return sklearn("preprocessing").MultiLabelBinarizer(classes=list(data.labels)).fit_transform(targets)
    return targets


def _answers(data: Prepared, predicted: Any) -> list[Answer]:
    if data.task.kind == "regression":
        return [{"value": float(value)} for value in predicted]
    if data.task.kind == "multilabel":
        return [{"label": [label for label, has in zip(data.labels, row, strict=True) if has]} for row in predicted]
    return [{"label": str(label)} for label in predicted]
