"""Baselines: scikit-learn by hand, the same rows and scores as methods have, tuned by validation, never done twice."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from training import work

import inlay
from inlay.comparison import baselines, linear
from inlay.errors import RunError
from inlay.runs.prepare import Prepared, prepare
from inlay.sweeps.store import Store

pytest.importorskip("sklearn")
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import MultiLabelBinarizer

WORDS = {"features": "words 1-2", "min_df": 2, "sublinear": True, "strength": 3.0}


@pytest.fixture(scope="module")
def host() -> inlay.Host:
    return work.host()


def data(host: inlay.Host, rows: Any = None, **settings: Any) -> Prepared:
    return prepare(work.run(work.texts(60) if rows is None else rows, val_size=20, **settings), host)


def texts(part: Any) -> list[str]:
    return [f"{e.text}\n{e.pair or ''}" for e in part.examples]


def vectorizer(**how: Any) -> Any:
    return TfidfVectorizer(token_pattern=r"(?u)\b\w+\b", ngram_range=(1, 2), min_df=2, sublinear_tf=True, **how)


def logistic(**how: Any) -> Any:
    return LogisticRegression(C=3.0, solver="liblinear", max_iter=1000, random_state=0, **how)


# --- the linear model ---------------------------------------------------------------------------------------------


def test_two_classes_are_a_pipeline_of_scikit_learn(host: inlay.Host):
    found = data(host)
    pipeline = make_pipeline(vectorizer(), logistic()).fit(texts(found.train), [e.target for e in found.train.examples])
    answer, size = linear.fit(found, WORDS)
    answers = [one["label"] for one in answer(found.validation.examples)]
    assert answers == list(pipeline.predict(texts(found.validation)))
    assert size == pipeline[-1].coef_.size + 1
    assert len(set(answers)) == 2


def test_words_and_characters_together(host: inlay.Host):
    found = data(host, work.texts(60, classes=3))
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), min_df=2, sublinear_tf=True)
    pipeline = make_pipeline(make_union(vectorizer(), characters), OneVsRestClassifier(logistic()))
    pipeline.fit(texts(found.train), [e.target for e in found.train.examples])
    answer, size = linear.fit(found, {**WORDS, "features": "words 1-2, characters 3-5"})
    answers = [one["label"] for one in answer(found.validation.examples)]
    assert answers == list(pipeline.predict(texts(found.validation)))
    assert size == sum(one.coef_.size + 1 for one in pipeline[-1].estimators_)


def test_class_weights_are_balanced(host: inlay.Host):
    found = data(host, work.texts(60)[::2] + work.texts(60)[1::8], class_weights=True)
    pipeline = make_pipeline(vectorizer(), logistic(class_weight="balanced"))
    pipeline.fit(texts(found.train), [e.target for e in found.train.examples])
    answer, _ = linear.fit(found, WORDS)
    assert [a["label"] for a in answer(found.train.examples)] == list(pipeline.predict(texts(found.train)))


def test_numbers(host: inlay.Host):
    found = data(host, work.ratings(60))
    pipeline = make_pipeline(vectorizer(), Ridge(alpha=3.0)).fit(
        texts(found.train), [e.target for e in found.train.examples]
    )
    answer, _ = linear.fit(found, WORDS)
    values = [one["value"] for one in answer(found.validation.examples)]
    assert values == pytest.approx(list(pipeline.predict(texts(found.validation))))


def test_sets_of_labels(host: inlay.Host):
    found = data(host, work.topics(60))
    binary = MultiLabelBinarizer(classes=list(found.labels))
    targets = binary.fit_transform([e.target for e in found.train.examples])
    pipeline = make_pipeline(vectorizer(), OneVsRestClassifier(logistic())).fit(texts(found.train), targets)
    answer, _ = linear.fit(found, WORDS)
    expected = binary.inverse_transform(pipeline.predict(texts(found.validation)))
    assert [tuple(one["label"]) for one in answer(found.validation.examples)] == expected
    assert any(expected)


def test_a_pair_is_one_text(host: inlay.Host):
    found = data(host, work.pairs(60), text="a", pair="b")
    pipeline = make_pipeline(vectorizer(), logistic()).fit(texts(found.train), [e.target for e in found.train.examples])
    answer, _ = linear.fit(found, WORDS)
    expected = list(pipeline.predict(texts(found.validation)))
    assert [one["label"] for one in answer(found.validation.examples)] == expected


# --- tuning -------------------------------------------------------------------------------------------------------


def test_the_best_by_validation_is_taken(host: inlay.Host, monkeypatch: pytest.MonkeyPatch):
    found = data(host)
    tried: list[tuple[float, dict[str, Any]]] = []
    real = linear.fit

    def noting(data: Prepared, setting: dict[str, Any], counted: Any = None) -> Any:
        made = real(data, setting, counted)
        score = data.task.score(data.validation.examples, made[0](data.validation.examples), data.labels)
        tried.append((score["accuracy"], setting))
        return made

    monkeypatch.setattr(linear, "fit", noting)
    setting, _, answer = linear.tune(found, 8)
    assert len(tried) == 8
    assert len({value for value, _ in tried}) > 1  # it could have been another
    best = max(value for value, _ in tried)
    assert setting == next(setting for value, setting in tried if value == best)
    assert baselines.measure(found, answer)["validation"]["accuracy"] == best


def test_tuning_follows_from_the_seed(host: inlay.Host):
    found = data(host)
    assert linear.tune(found, 4)[0] == linear.tune(found, 4)[0]
    other = replace(found, run=found.run.model_copy(update={"seed": 1}))
    assert linear.tune(other, 4)[0] != linear.tune(found, 4)[0]


def test_less_may_be_better(host: inlay.Host):
    found = data(host, work.ratings(60), metric="rmse")
    few = baselines.measure(found, linear.tune(found, 1)[2])["validation"]["rmse"]
    many = baselines.measure(found, linear.tune(found, 10)[2])["validation"]["rmse"]
    assert many < few


def test_settings_that_leave_nothing_to_count_are_passed_over(host: inlay.Host, monkeypatch: pytest.MonkeyPatch):
    rows = [{"text": chr(0x4E00 + i), "label": "ab"[i % 2]} for i in range(12)]  # no two share anything
    found = prepare(work.run(rows, val_size=4), host)
    with pytest.raises(ValueError, match="no terms remain"):
        linear.fit(found, WORDS)
    assert linear.tune(found, 8)[0]["min_df"] == 1

    def failing(*_: Any) -> Any:
        raise ValueError("no terms remain")

    monkeypatch.setattr(linear, "fit", failing)
    with pytest.raises(RunError, match="cannot be fitted: no terms remain"):
        linear.tune(found, 2)


# --- the most common answer -----------------------------------------------------------------------------------------


def commonest(found: Prepared) -> baselines.Answering:
    return baselines.commonest(found.task, found.train.examples, found.labels)


def test_the_majority_is_scikit_learns(host: inlay.Host):
    rows = work.texts(60)[::2] + work.texts(60)[1::4]
    found = data(host, rows)
    dummy = DummyClassifier().fit(texts(found.train), [e.target for e in found.train.examples])
    answers = [one["label"] for one in commonest(found)(found.validation.examples)]
    assert answers == list(dummy.predict(texts(found.validation)))


def test_the_mean_of_numbers_and_the_majority_of_labels_and_tags(host: inlay.Host):
    numbers = data(host, work.ratings(60))
    mean = math.fsum(e.target for e in numbers.train.examples) / len(numbers.train.examples)
    assert commonest(numbers)(numbers.validation.examples)[0]["value"] == pytest.approx(mean)
    often = [{"text": f"text {i}", "label": ["x", "y"] if i % 3 else ["x", "z"]} for i in range(30)]
    assert commonest(data(host, often))(data(host, often).train.examples)[0]["label"] == ["x", "y"]
    tags = data(host, work.entities(60))
    first = tags.validation.examples[0]
    assert commonest(tags)([first]) == [{"tags": ["O"] * len(first.words)}]


# --- beside methods -----------------------------------------------------------------------------------------------


def test_a_known_baseline_is_not_made_again(host: inlay.Host, monkeypatch: pytest.MonkeyPatch):
    store, found = Store(None), data(host)
    first, was_known = baselines.run(baselines.TFIDF, found, store, 2)
    assert not was_known
    assert set(first.metrics) == {"validation"}
    assert 0 < first.metrics["validation"]["accuracy"] <= 1
    assert first.seconds > 0
    calls: list[int] = []
    monkeypatch.setattr(linear, "tune", lambda data, trials: calls.append(trials) or ({}, 0, commonest(data)))
    assert baselines.run(baselines.TFIDF, found, store, 2) == (first, True)
    assert calls == []
    other = replace(found, run=found.run.model_copy(update={"seed": 5}))
    assert baselines.run(baselines.TFIDF, other, store, 2)[1] is False
    assert baselines.run(baselines.TFIDF, found, store, 3)[1] is False
    assert calls == [2, 3]


def test_what_has_no_baseline(host: inlay.Host):
    tags, plain = data(host, work.entities(60)), data(host)
    assert "tagging has no TF-IDF baseline" in baselines.missing(baselines.TFIDF, tags)
    assert baselines.missing(baselines.MAJORITY, tags) == ""
    assert baselines.missing(baselines.TFIDF, plain) == baselines.missing(baselines.MAJORITY, plain) == ""


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(linear.importlib, "import_module", missing)
    with pytest.raises(RunError, match=re.escape("pip install 'inlay[sweep]'")):
        linear.sklearn("pipeline")
