"""A recipe of one's own, small enough for a tiny base, and a folder for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training import work

TEXT = """
paper = "Somebody 2020, A Paper"
table = "Table 9"
title = "Two sets"
base = "bert-tiny"
measured = "{measured}"
seeds = 2
report = "{report}"
dev_is_test = {dev_is_test}
notes = ["The paper does not say how warm the oven was."]

[settings]
batch_size = 4
epochs = 1
{more}

[grid]
lr = [1e-3, 1e-2]

[datasets]
First = {{ metric = "accuracy" }}
Second = {{ metric = "f1_macro", folders = ["second-set", "zweite"], settings = {{ batch_size = 6 }} }}
Third = {{ metric = "accuracy" }}

[rows.tuned]
label = "Fine-tuned"
methods = ["finetune:top=1"]
trained = "100%"
settings = {{ lr = 1e-4 }}

[rows.any]
label = "Adapters (4-8)"
methods = ["houlsby:size=4", "houlsby:size=8"]

[rows.eight]
label = "Adapters (8)"
methods = ["houlsby:size=8"]
trained = "1.2K"

[scores]
order = ["First", "Second", "Third"]
tuned = [90.0, 80.0, 10.0]
any = [91.0, 82.0, 20.0]
eight = [92.0, 84.0, 30.0]
"""


def write(folder: Path, **changes: Any) -> str:
    """The recipe as a file."""
    how = {"measured": "secret rows", "report": "best", "dev_is_test": "false", "more": "", **changes}
    path = folder / "mine.toml"
    path.write_text(TEXT.format(**how), encoding="utf-8")
    return str(path)


def serve(folder: Path, files: Mapping[str, int]) -> str:
    """Files of texts, by their names; the number is a seed."""
    for name, seed in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(one) + "\n" for one in work.texts(24, seed)), encoding="utf-8")
    return str(folder)


FILES = {
    "first/train.jsonl": 1,
    "first/dev.jsonl": 2,
    "Zweite/train.jsonl": 3,
    "Zweite/dev.jsonl": 4,
    "Zweite/test.jsonl": 5,
}
