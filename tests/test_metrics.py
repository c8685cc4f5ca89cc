"""Every score against its reference on random data, and against numbers worked by hand.

The references (scikit-learn, scipy, seqeval) are optional: without one its comparisons are skipped, while the
hand-worked cases always run.
"""

from __future__ import annotations

import math
import random
import re
import string
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

from inlay import metrics
from inlay.errors import RunError, SpecError
from inlay.registry import tasks

SEEDS = range(40)
ENTITY_TAGS = ["O", *(f"{place}-{kind}" for place in "BIES" for kind in ("PER", "LOC", "A-B"))]


def same(found: float, wanted: float) -> None:
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


# --- classification


def test_classification_by_hand():
    # a: 1 hit, claimed 1, support 2 -> 2/3; b: 1 hit, claimed 2, support 1 -> 2/3; c: 1, 1, 1 -> 1.
    scores = metrics.classification(list("aabc"), list("abbc"), list("abc"))
    assert "f1" not in scores
    same(scores["accuracy"], 3 / 4)
    same(scores["f1_micro"], 3 / 4)
    same(scores["f1_macro"], (2 / 3 + 2 / 3 + 1) / 3)
    same(scores["f1_weighted"], (2 * 2 / 3 + 2 / 3 + 1) / 4)
    # (3*4 - (2*1 + 1*2 + 1*1)) / sqrt((16 - 6) * (16 - 6)) = 7/10
    same(scores["matthews"], 0.7)


def test_binary_f1_is_of_the_last_label_or_of_the_one_named():
    gold, predicted = ["no", "no", "yes", "no"], ["no", "yes", "yes", "no"]
    # yes: 1 hit, claimed 2, support 1 -> 2/3; no: 2 hits, claimed 2, support 3 -> 4/5.
    same(metrics.classification(gold, predicted, ["no", "yes"])["f1"], 2 / 3)
    same(metrics.classification(gold, predicted, ["no", "yes"], positive="no")["f1"], 4 / 5)
    same(metrics.classification(gold, predicted, ["no", "yes", "perhaps"], positive="no")["f1"], 4 / 5)
    with pytest.raises(SpecError, match=r"unknown positive label 'ye'. Did you mean yes\?"):
        metrics.classification(gold, predicted, ["no", "yes"], positive="ye")


@pytest.mark.parametrize(
    ("gold", "predicted", "f1", "macro", "accuracy"),
    [
        ("aaaa", "aaaa", 0.0, 1.0, 1.0),  # the positive class b never occurs
        ("bbbb", "bbbb", 1.0, 1.0, 1.0),
        ("aabb", "aaaa", 0.0, 1 / 3, 0.5),  # constant: a has 2*2/(4+2) = 2/3, b has 0
        ("aaaa", "bbbb", 0.0, 0.0, 0.0),
    ],
)
def test_degenerate_classification(gold, predicted, f1, macro, accuracy):
    scores = metrics.classification(gold, predicted, ["a", "b"])
    assert scores["matthews"] == 0.0
    same(scores["f1"], f1)
    same(scores["f1_macro"], macro)
    same(scores["accuracy"], accuracy)


def test_matthews_reaches_both_ends():
    assert metrics.classification("abab", "abab", "ab")["matthews"] == 1.0
    assert metrics.classification("abab", "baba", "ab")["matthews"] == -1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_classification_equals_scikit_learn(seed):
    reference = pytest.importorskip("sklearn.metrics")
    rng = random.Random(seed)
    labels = list("abcdef")[: rng.randint(2, 6)]
    rows = rng.randint(1, 60)
    gold, predicted = ([rng.choice(labels) for _ in range(rows)] for _ in "gp")
    predicted = [g if rng.random() < 0.5 else p for g, p in zip(gold, predicted, strict=True)]
    scores = metrics.classification(gold, predicted, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(scores["accuracy"], reference.accuracy_score(gold, predicted))
        same(scores["matthews"], reference.matthews_corrcoef(gold, predicted))
        for average in ("macro", "micro", "weighted"):
            same(scores[f"f1_{average}"], reference.f1_score(gold, predicted, average=average, zero_division=0))
        for label in labels:
            wanted = reference.f1_score(gold, predicted, labels=[label], average="macro", zero_division=0)
            same(metrics.classification(gold, predicted, labels, positive=label)["f1"], wanted)


# --- several labels a row


def test_multilabel_by_hand():
    gold: list[set[str]] = [{"x", "y"}, {"y"}, set()]
    predicted: list[set[str]] = [{"x"}, {"y", "z"}, set()]
    # x: 1 hit, 1 claimed, 1 wanted -> 1; y: 1, 1, 2 -> 2/3; z: 0 -> 0; w never occurs -> 0. All: 2, 3, 3 -> 2/3.
    scores = metrics.multilabel(gold, predicted, ["x", "y", "z", "w"])
    same(scores["f1_micro"], 2 / 3)
    same(scores["f1_macro"], (1 + 2 / 3) / 4)
    same(scores["accuracy"], 1 / 3)  # the empty row is right


def test_multilabel_without_any_label():
    assert metrics.multilabel([[], []], [(), ()], ["x"]) == {"f1_micro": 0.0, "f1_macro": 0.0, "accuracy": 1.0}


@pytest.mark.parametrize("seed", SEEDS)
def test_multilabel_equals_scikit_learn(seed):
    reference = pytest.importorskip("sklearn.metrics")
    binarizer = pytest.importorskip("sklearn.preprocessing").MultiLabelBinarizer
    rng = random.Random(seed)
    labels = list("abcdef")[: rng.randint(2, 6)]
    rows = rng.randint(1, 40)
    gold, predicted = ([[label for label in labels if rng.random() < 0.4] for _ in range(rows)] for _ in "gp")
    matrix = binarizer(classes=labels).fit(gold)
    pair = matrix.transform(gold), matrix.transform(predicted)
    scores = metrics.multilabel(gold, predicted, labels)
    same(scores["accuracy"], reference.accuracy_score(*pair))
    same(scores["f1_micro"], reference.f1_score(*pair, average="micro", zero_division=0))
    same(scores["f1_macro"], reference.f1_score(*pair, average="macro", zero_division=0))


# --- numbers


def test_regression_by_hand():
    # Ranks of the gold are 1, 2.5, 2.5, 4 and of the predicted 1, 2, 3, 4: cov 4.5, variances 4.5 and 5.
    scores = metrics.regression([1, 2, 2, 5], [1, 3, 4, 5])
    same(scores["spearman"], 4.5 / math.sqrt(4.5 * 5))
    # Means 2.5 and 3.25: products 40 - 4*2.5*3.25 = 7.5; squares 34 - 4*2.5**2 = 9 and 51 - 4*3.25**2 = 8.75.
    same(scores["pearson"], 7.5 / math.sqrt(9 * 8.75))
    same(scores["rmse"], math.sqrt((0 + 1 + 4 + 0) / 4))
    same(scores["mae"], 3 / 4)


@pytest.mark.parametrize(("gold", "predicted"), [([1, 2, 3], [0.1] * 3), ([0.7] * 3, [3, 1, 2]), ([1], [2])])
def test_a_constant_side_has_no_correlation(gold, predicted):
    scores = metrics.regression(gold, predicted)
    assert scores["spearman"] == scores["pearson"] == 0.0
    assert scores["rmse"] > 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_prediction_that_is_no_number_is_not_hidden(bad):
    scores = metrics.regression([1.0, 2.0, 3.0], [1.0, bad, 3.0])
    assert all(math.isnan(scores[name]) for name in ("spearman", "pearson"))
    assert not any(math.isfinite(scores[name]) for name in ("rmse", "mae"))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_correlation_is_free_of_scale(scale):
    scores = metrics.regression([1 * scale, 2 * scale, 4 * scale], [3 * scale, 5 * scale, 9 * scale])
    same(scores["pearson"], 1.0)
    same(scores["spearman"], 1.0)


@examples(60)
@given(st.lists(st.tuples(st.integers(-6, 6), st.floats(-5, 5).map(lambda x: round(x, 1))), min_size=2, max_size=30))
def test_regression_equals_scipy(pairs):
    stats = pytest.importorskip("scipy.stats")
    reference = pytest.importorskip("sklearn.metrics")
    gold, predicted = [float(g) for g, _ in pairs], [p for _, p in pairs]
    scores = metrics.regression(gold, predicted)
    same(scores["rmse"], reference.root_mean_squared_error(gold, predicted))
    same(scores["mae"], reference.mean_absolute_error(gold, predicted))
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        same(scores["spearman"], stats.spearmanr(gold, predicted).statistic)
        same(scores["pearson"], stats.pearsonr(gold, predicted).statistic)


# --- tags


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-X I-X O B-Y", [("X", 0, 2), ("Y", 3, 4)]),
        ("O I-X I-X O", [("X", 1, 3)]),  # I- without B- starts an entity
        ("B-X I-Y", [("X", 0, 1), ("Y", 1, 2)]),  # another type starts another entity
        ("I-X B-X", [("X", 0, 1), ("X", 1, 2)]),
        ("B-X I-X E-X I-X", [("X", 0, 3), ("X", 3, 4)]),  # nothing goes on after E-
        ("S-X I-X S-X", [("X", 0, 1), ("X", 1, 2), ("X", 2, 3)]),
        ("B-A-B I-A-B", [("A-B", 0, 2)]),
        ("O O", []),
        ("", []),
    ],
)
def test_entities_by_hand(tags, found):
    assert metrics.entities(tags.split()) == found


@examples(400)
@given(st.lists(st.sampled_from([*ENTITY_TAGS, "B", "I", "E", "S"]), max_size=12))
def test_entities_equal_seqeval(tags):
    reference = pytest.importorskip("seqeval.metrics.sequence_labeling")
    assert metrics.entities(tags) == [(kind, first, last + 1) for kind, first, last in reference.get_entities(tags)]


def test_tagging_by_hand():
    gold = [["B-X", "I-X", "O"], ["B-Y", "O"]]
    predicted = [["B-X", "I-X", "I-X"], ["I-Y", "B-X"]]
    # Words right: 2 of 5. Gold: X(0,2), Y(0,1). Found: X(0,3), Y(0,1), X(1,2). One hit: 1/3, 1/2, 2/5.
    scores = metrics.tagging(gold, predicted)
    same(scores["accuracy"], 2 / 5)
    same(scores["precision"], 1 / 3)
    same(scores["recall"], 1 / 2)
    same(scores["f1"], 2 / 5)


def test_an_entity_ends_with_its_row():
    assert metrics.tagging([["B-X"], ["I-X"]], [["B-X"], ["I-X"]])["f1"] == 1.0
    assert metrics.tagging([["B-X"], ["I-X"]], [["B-X"], ["O"]])["recall"] == 0.5


def test_tags_without_entities_have_accuracy_alone():
    assert metrics.tagging([["NOUN", "O"]], [["NOUN", "VERB"]]) == {"accuracy": 0.5}
    assert metrics.are_entity_tags(["O", "B-X"])
    assert not metrics.are_entity_tags(["O", "B-X", "NOUN"])
    assert not metrics.are_entity_tags(["B"])


def test_no_entity_anywhere():
    assert metrics.tagging([["O", "O"]], [["O", "O"]]) == {"accuracy": 1.0, "f1": 0.0, "precision": 0.0, "recall": 0.0}


@pytest.mark.parametrize("seed", SEEDS)
def test_tagging_equals_seqeval(seed):
    reference = pytest.importorskip("seqeval.metrics")
    rng = random.Random(seed)
    gold = [[rng.choice(ENTITY_TAGS) for _ in range(rng.randint(1, 8))] for _ in range(rng.randint(1, 12))]
    predicted = [[tag if rng.random() < 0.7 else rng.choice(ENTITY_TAGS) for tag in row] for row in gold]
    scores = metrics.tagging(gold, predicted)
    same(scores["accuracy"], reference.accuracy_score(gold, predicted))
    same(scores["f1"], reference.f1_score(gold, predicted, zero_division=0))
    same(scores["precision"], reference.precision_score(gold, predicted, zero_division=0))
    same(scores["recall"], reference.recall_score(gold, predicted, zero_division=0))


# --- answers


def test_normalise_answer():
    assert metrics.normalise_answer(" The  Cat's, a-an \n mat! ") == "cats aan mat"  # punctuation goes before articles
    assert metrics.normalise_answer("An apple a day: THE end.") == "apple day end"
    assert metrics.normalise_answer("Arab\u2013Israeli") == "arab\u2013israeli"  # an en dash is no ASCII punctuation
    assert metrics.normalise_answer("theatre") == "theatre"


@pytest.mark.parametrize(
    ("gold", "predicted", "f1", "exact"),
    [
        (["The Eiffel Tower"], "eiffel tower!", 1.0, 1.0),
        (["Paris", "Paris, France"], "in Paris France", 4 / 5, 0.0),  # best is 2 common of 3 and 2
        (["b b c"], "b c c", 2 / 3, 0.0),  # as multisets: b and c are common, of 3 and 3
        (["Paris"], "", 0.0, 0.0),
        ([], "", 1.0, 1.0),
        ([""], "", 1.0, 1.0),
        ([], "the .", 1.0, 1.0),  # normalises to nothing
        ([], "Paris", 0.0, 0.0),
        (["."], ".", 0.0, 1.0),  # SQuAD v1.1 itself has such answers, and its script says so
    ],
)
def test_qa_by_hand(gold, predicted, f1, exact):
    scores = metrics.qa([gold], [predicted])
    same(scores["f1"], f1)
    same(scores["exact"], exact)


def test_qa_is_a_mean_over_rows():
    same(metrics.qa([["x"], ["x y"], []], ["x", "x", "no"])["f1"], (1 + 2 / 3 + 0) / 3)
    same(metrics.qa([["x"], ["x y"], []], ["x", "x", "no"])["exact"], 1 / 3)


def _plain_normalise(text: str) -> str:
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(word for word in re.split(r"\s+", re.sub(r"\b(?:a|an|the)\b", " ", kept)) if word)


def _plain_f1(gold: str, predicted: str) -> float:
    """Precision and recall by striking out words, the long way round."""
    wanted, got = _plain_normalise(gold).split(), _plain_normalise(predicted).split()
    left, common = list(wanted), 0
    for word in got:
        if word in left:
            left.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(got), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


_answer = st.lists(st.sampled_from(["the", "A", "cat,", "Cat", "sat", "\u2013", "a.", "I'm", "İ"]), max_size=5).map(
    " ".join
)


@examples(200)
@given(st.lists(_answer.filter(bool), min_size=1, max_size=3), _answer)
def test_qa_equals_the_definition(gold, predicted):
    scores = metrics.qa([gold], [predicted])
    same(scores["f1"], max(_plain_f1(answer, predicted) for answer in gold))
    assert scores["exact"] == max(_plain_normalise(answer) == _plain_normalise(predicted) for answer in gold)


def test_perplexity():
    same(metrics.perplexity(math.log(50)), 50)
    assert metrics.perplexity(700) < math.inf
    assert metrics.perplexity(701) == metrics.perplexity(1e9) == math.inf
    assert math.isnan(metrics.perplexity(math.nan))


# --- which is primary, which is better


def test_tasks_name_what_the_functions_give():
    given_by = {
        "classification": metrics.classification("ab", "ab", "ab"),
        "multilabel": metrics.multilabel(["a"], ["a"], ["a"]),
        "regression": metrics.regression([1, 2], [1, 2]),
        "tagging": metrics.tagging([["B-X"]], [["B-X"]]),
        "qa": metrics.qa([["x"]], ["x"]),
    }
    for task, scores in given_by.items():
        assert set(scores) == set(tasks.find(task).measures)


def test_the_metric_that_decides():
    available = ["accuracy", "f1_macro", "loss"]
    assert metrics.choose(available, None, "classification") == "accuracy"
    assert metrics.choose(available, "loss", "classification") == "loss"
    with pytest.raises(
        SpecError, match=r"unknown metric 'f1_marco' for this classification task. Did you mean f1_macro"
    ):
        metrics.choose(available, "f1_marco", "classification")
    with pytest.raises(SpecError, match=r"unknown metric 'f1' for this tagging task. Valid: accuracy"):
        metrics.choose(["accuracy"], "f1", "tagging")


@pytest.mark.parametrize(
    ("name", "new", "old", "wanted"),
    [
        ("accuracy", 0.6, 0.5, True),
        ("accuracy", 0.5, 0.5, False),
        ("accuracy", 0.4, 0.5, False),
        ("rmse", 0.4, 0.5, True),
        ("loss", 0.6, 0.5, False),
        ("perplexity", 0.0, None, True),
        ("accuracy", math.nan, None, False),
        ("accuracy", math.nan, 0.5, False),
        ("loss", math.nan, 0.5, False),
        ("accuracy", 0.0, math.nan, True),
    ],
)
def test_better(name, new, old, wanted):
    assert metrics.better(name, new, old) is wanted


# --- over seeds


def test_summary_by_hand():
    # Mean 2; squares 1 + 0 + 1 over 3 - 1 make a variance of 1.
    assert metrics.summary([1, 2, 3]) == {
        "n": 3,
        "mean": 2,
        "std": 1,
        "sem": pytest.approx(1 / math.sqrt(3)),
        "best": 3,
    }
    assert metrics.summary([1, 2, 3], lower_is_better=True)["best"] == 1
    assert metrics.summary([0.3]) == {"n": 1, "mean": 0.3, "std": 0.0, "sem": 0.0, "best": 0.3}
    assert metrics.summary([0.1] * 3)["std"] == 0.0
    lost = metrics.summary([math.nan, 0.5])
    assert math.isnan(lost["mean"])
    assert lost["best"] == 0.5


def test_paired_interval_by_hand():
    # Differences 1, 2, 3: mean 2, std 1; t of 2 degrees at 95 % is 4.302653 (any table).
    mean, low, high = metrics.paired_interval([2, 4, 6], [1, 2, 3])
    assert mean == 2
    assert high - mean == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)
    assert mean - low == pytest.approx(high - mean)


def test_paired_interval_at_its_ends():
    assert metrics.paired_interval([2, 3], [1, 2]) == (1, 1, 1)
    assert metrics.paired_interval([2], [1]) == (1, -math.inf, math.inf)
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.paired_interval([1, 2], [1, 3], level=95)


@pytest.mark.parametrize("seed", SEEDS)
def test_paired_interval_equals_scipy(seed):
    stats = pytest.importorskip("scipy.stats")
    rng = random.Random(seed)
    n = rng.choice([2, 3, 5, 10, 60, 400])
    a, b = ([rng.gauss(0.8, 0.1) for _ in range(n)] for _ in "ab")
    level = rng.choice([0.05, 0.5, 0.9, 0.95, 0.99, 0.999])
    result = stats.ttest_rel(a, b)
    wanted = result.confidence_interval(level)
    mean, low, high = metrics.paired_interval(a, b, level)
    same(mean, sum(a) / n - sum(b) / n)
    same(low, wanted.low)
    same(high, wanted.high)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 99, 1000, 100_000])
@pytest.mark.parametrize("level", [0.01, 0.5, 0.95, 0.999, 1 - 1e-9])
def test_t_quantile_equals_scipy(freedom, level):
    stats = pytest.importorskip("scipy.stats")
    # The upper tail is taken so that the reference keeps its digits; 1 - level has few of them near 1.
    wanted = stats.t.isf((1 - level) / 2, freedom)
    assert metrics._t_quantile(level, freedom) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("freedom", "density"), [(1, 1 / math.pi), (2, 1 / math.sqrt(8)), (4, 3 / 8)])
def test_t_quantile_near_nothing(freedom, density):
    # So near to 0 the density is flat: level = 2 * t * density. (Scipy's answer for 4 degrees is 0 here.)
    assert metrics._t_quantile(1e-9, freedom) == pytest.approx(1e-9 / 2 / density, rel=1e-9, abs=0)


# --- all of them


@pytest.mark.parametrize(
    "score",
    [
        lambda a, b: metrics.classification(a, b, ["a", "b"]),
        lambda a, b: metrics.multilabel(a, b, ["a"]),
        metrics.regression,
        metrics.tagging,
        metrics.qa,
        metrics.paired_interval,
    ],
)
def test_no_rows_and_uneven_rows(score):
    with pytest.raises(RunError, match="nothing to score"):
        score([], [])
    with pytest.raises(ValueError, match="differ in length: 1 and 0"):
        score(["a"], [])


def test_rows_of_tags_match():
    with pytest.raises(ValueError, match="row 1 has 1 gold tags and 2 predicted"):
        metrics.tagging([["O"], ["O"]], [["O"], ["O", "O"]])
    with pytest.raises(RunError, match="no row has a word"):
        metrics.tagging([[]], [[]])
    with pytest.raises(RunError, match="nothing to score"):
        metrics.summary([])


def test_needs_the_standard_library_alone():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from inlay import metrics; "
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'})"
    )
    source = str(Path(metrics.__file__).parent.parent)
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code, source], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["inlay"]
