"""Well-known sets by the names of their folders."""

from __future__ import annotations

import pytest

from inlay import recipes
from inlay.data.benchmarks import metric_of

PUBLISHED = {
    "ChemProt": "chemprot",
    "ACL-ARC": "citation_intent",
    "SciERC": "sciie",
    "Hyperpartisan": "hyperpartisan_news",
    "RCT": "rct-20k",
    "AGNews": "ag",
    "Helpfulness": "amazon",
    "IMDB": "imdb",
}
"""Name in He et al. 2021 -> the folder that Gururangan et al. 2020 publish."""


@pytest.mark.parametrize("dataset", recipes.find("he-tae").datasets, ids=lambda one: one.name)
def test_the_published_folders_of_tae_are_known(dataset):
    folder = PUBLISHED[dataset.name]
    assert folder in [place.lower() for place in dataset.places]
    assert metric_of(f"data/{folder.upper()}") == metric_of(f"data/{folder}/train.jsonl") == dataset.metric
    assert dataset.metric == ("f1_micro" if dataset.name in ("ChemProt", "RCT") else "f1_macro")
