"""`inlay analyze ablation | landscape | rsa`: what an adapter does in which layer, and how it got there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from inlay.cli import eval_data, option_checks, options, output
from inlay.cli.analyze import show
from inlay.cli.help import DATA, METHOD
from inlay.errors import LibraryError

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.library.library import Entry

Metric = Annotated[
    str | None,
    METHOD.option("METRIC", "The metric.  [default: the one that picked the checkpoint]", check=option_checks.metric),
]


def ablate(
    name: options.Adapter,
    data: eval_data.Data = None,
    metric: Metric = None,
    with_norms: Annotated[bool, METHOD.flag("--with-norms", "Remove trained norms too.")] = False,
    split: options.Split = None,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    out: show.Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Show the metric after removing the adapters from each span of layers.

    Examples:
        inlay analyze ablation tickets
        inlay analyze ablation tickets@2 tickets.csv --rows 100 --with-norms
    """
    screen = output.console(as_json)
    eval_data.check([name], library, base, data, split)
    host, _, entry = eval_data.open_adapter(name, library, base)
    where, examples = eval_data.read_labelled(host, name, entry, data, screen, split=split, rows=rows, seed=seed)
    from inlay.analysis.ablation import ablation

    found = ablation(host, name, examples, metric=metric, with_norms=with_norms, where=where)
    show.finish(found, out, name, screen, as_json)


def walk(
    names: options.Adapters,
    data: eval_data.Data = None,
    points: Annotated[int, METHOD.option("N", "Points on the line.", min=2)] = 20,
    metric: Metric = None,
    split: options.Split = None,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    out: show.Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Show the loss along the line from initial to trained parameters, and beyond.

    Examples:
        inlay analyze landscape tickets
        inlay analyze landscape tickets,tickets-tuned tickets.csv --points 40
    """
    screen = output.console(as_json)
    host, asked, entry = _open(names, library, base, data, split)
    where, examples = eval_data.read_labelled(host, asked[0], entry, data, screen, split=split, rows=rows, seed=seed)
    from inlay.analysis.landscape import landscape

    found = landscape(host, asked, examples, points=points, metric=metric, where=where)
    show.finish(found, out, "-".join(asked), screen, as_json)


def compare(
    names: options.Adapters,
    data: eval_data.Data = None,
    tokens: Annotated[int, DATA.option("N", "Use N tokens, drawn at random.", min=10)] = 5000,
    split: options.Split = None,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    out: show.Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Show how similar an adapter's representations are to the base's, layer by layer.

    Examples:
        inlay analyze rsa tickets
        inlay analyze rsa tickets,tickets-tuned tickets.csv --tokens 500
    """
    screen = output.console(as_json)
    host, asked, entry = _open(names, library, base, data, split, labelled=False)
    where, examples = eval_data.read_labelled(
        host, asked[0], entry, data, screen, split=split, rows=rows, seed=seed, labelled=False
    )
    from inlay.analysis.rsa import rsa

    found = rsa(host, asked, examples, tokens=tokens, seed=seed, where=where)
    show.finish(found, out, "-".join(asked), screen, as_json)


def _open(
    names: str, library: str | None, base: str | None, data: str | None, split: str | None, labelled: bool = True
) -> tuple[Host, list[str], Entry]:
    """Adapters of one base on one host, and the first one's entry."""
    asked = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not asked:
        raise LibraryError("expected the name of an adapter, or several separated by commas")
    eval_data.check(asked, library, base, data, split, labelled=labelled)
    host, _, entry = eval_data.open_adapter(asked[0], library, base)
    for name in asked[1:]:
        eval_data.open_adapter(name, library, host=host)
    return host, asked, entry
