"""The rows that a recipe takes to train and to validate are there."""

from __future__ import annotations

import pytest

from inlay import recipes

ROWS = {"CoLA": 8551, "MRPC": 3668, "RTE": 2490, "SST-2": 67349, "STS-B": 5749}
"""Those to train on that GLUE publishes."""


@pytest.mark.parametrize("name", recipes.names())
def test_no_recipe_takes_more_rows_than_there_are(name: str):
    recipe = recipes.find(name)
    for dataset in recipe.datasets:
        for row in recipe.rows:
            tried = recipe.tried(row, dataset)
            sizes = [tried[key][0] for key in ("train_size", "val_size") if key in tried]
            taken = sum(size for size in sizes if isinstance(size, int))
            assert taken <= ROWS.get(dataset.folders[0] if dataset.folders else dataset.name, taken), dataset.name
