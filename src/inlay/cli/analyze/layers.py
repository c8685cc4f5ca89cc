"""`inlay analyze ablation | landscape | rsa`: what an adapter does in which layer, and how it got there."""

from __future__ import annotations

from typing import Annotated

from inlay.cli import option_checks, options
from inlay.cli.analyze.show import Figure
from inlay.cli.eval_data import Data, Sample
from inlay.cli.help import DATA, METHOD
from inlay.cli.named_adapters import split_names
from inlay.cli.option_groups import expand_groups

Metric = Annotated[
    str | None,
    METHOD.option("METRIC", "The metric.  [default: the one that picked the checkpoint]", check=option_checks.metric),
]


@expand_groups(sample=Sample, figure=Figure)
def ablate(
    name: options.Adapter,
    data: Data = None,
    metric: Metric = None,
    with_norms: Annotated[bool, METHOD.flag("--with-norms", "Remove trained norms too.")] = False,
    *,
    sample: Sample,
    figure: Figure,
) -> None:
    """Show the metric after removing the adapters from each span of layers.

    Examples:
        inlay analyze ablation tickets
        inlay analyze ablation tickets@2 tickets.csv --rows 100 --with-norms
    """
    host, where, examples = figure.read([name], data, sample)
    from inlay.analysis.ablation import ablation

    figure.finish(ablation(host, name, examples, metric=metric, with_norms=with_norms, where=where), name)


@expand_groups(sample=Sample, figure=Figure)
def walk(
    names: options.Adapters,
    data: Data = None,
    points: Annotated[int, METHOD.option("N", "Points on the line.", min=2)] = 20,
    metric: Metric = None,
    *,
    sample: Sample,
    figure: Figure,
) -> None:
    """Show the loss along the line from initial to trained parameters, and beyond.

    Examples:
        inlay analyze landscape tickets
        inlay analyze landscape tickets,tickets-tuned tickets.csv --points 40
    """
    refs = split_names(names)
    host, where, examples = figure.read(refs, data, sample)
    from inlay.analysis.landscape import landscape

    figure.finish(landscape(host, refs, examples, points=points, metric=metric, where=where), *refs)


@expand_groups(sample=Sample, figure=Figure)
def compare(
    names: options.Adapters,
    data: Data = None,
    tokens: Annotated[int, DATA.option("N", "Use N tokens, drawn at random.", min=10)] = 5000,
    *,
    sample: Sample,
    figure: Figure,
) -> None:
    """Show how similar an adapter's representations are to the base's, layer by layer.

    Examples:
        inlay analyze rsa tickets
        inlay analyze rsa tickets,tickets-tuned tickets.csv --tokens 500
    """
    refs = split_names(names)
    host, where, examples = figure.read(refs, data, sample, labelled=False)
    from inlay.analysis.rsa import rsa

    figure.finish(rsa(host, refs, examples, tokens=tokens, seed=sample.seed, where=where), *refs)
