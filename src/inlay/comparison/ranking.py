"""From scores to a table: averages, the best method, and those that cannot be told apart from it.

Total parameters are counted as in Houlsby et al. (2019), tables 1 and 2, against one base: N tasks with a share s each
need 1 + N·s, and N where nothing of the base is shared. So 9 tasks at 3.6 % are 1.3x, and 9 fine-tunings 9x.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from inlay.comparison import significance
from inlay.comparison.table import Dataset, Line
from inlay.metrics import LOWER_IS_BETTER, sample_std


def total_parameters(share: float, tasks: int, replaces: bool = False) -> float:
    """The parameters of this many tasks, in bases.

    Args:
        share: of the base, trained for one task.
        replaces: whether every task has a whole model of its own, so that the base is not needed.
    """
    return float(tasks) if replaces else 1 + tasks * share


def ranked(lines: Sequence[Line], datasets: Sequence[Dataset]) -> tuple[Line, ...]:
    """Lines with averages and tests against the best, in order."""
    sign = -1.0 if datasets[0].metric in LOWER_IS_BETTER else 1.0
    averaged = []
    for line in lines:
        mean, std = _average(line, [dataset.name for dataset in datasets])
        averaged.append(replace(line, average=mean, average_std=std))
    whole = [line for line in averaged if line.average is not None]
    whole.sort(key=lambda line: (-sign * (line.average or 0.0), line.parameters))
    if not whole:
        return tuple(averaged)
    best, others = whole[0], [line for line in averaged if line is not whole[0] and line.cells]
    differences = [[sign * d for d in _differences(line, best)] for line in others]
    values = significance.holm([significance.sign_flip(of_line) if of_line else 1.0 for of_line in differences])
    judged = {id(best): replace(best, is_best=True)}
    for line, of_line, p in zip(others, differences, values, strict=True):
        can_tell = significance.can_tell(len(of_line), len(others))
        mean = statistics.fmean(of_line) if of_line else None
        judged[id(line)] = replace(line, difference=mean, pairs=len(of_line), p=p if can_tell else None)
    rest = [line for line in averaged if line.average is None]
    return tuple(judged.get(id(line), line) for line in [*whole, *rest])


def _average(line: Line, names: Sequence[str]) -> tuple[float | None, float | None]:
    cells = [line.cells[name] for name in names if name in line.cells]
    if len(cells) < len(names):
        return None, None
    seeds = set.intersection(*(set(cell.values) for cell in cells))
    of_seed = [statistics.fmean(cell.values[seed] for cell in cells) for seed in sorted(seeds)]
    return statistics.fmean(cell.mean for cell in cells), sample_std(of_seed)


def _differences(line: Line, best: Line) -> list[float]:
    """The difference for every pair of dataset and seed that both have."""
    return [
        cell.values[seed] - best.cells[name].values[seed]
        for name, cell in line.cells.items()
        if name in best.cells
        for seed in cell.values
        if seed in best.cells[name].values
    ]
