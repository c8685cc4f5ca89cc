"""`inlay analyze alpha | words | shift | sparsity`: what AdapterBias does to which tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from inlay.cli import eval_data, options, output
from inlay.cli.analyze.show import Out, finish
from inlay.cli.help import DATA, METHOD, OUTPUT
from inlay.errors import RunError

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.library.library import Entry


def alpha(
    names: options.Adapters,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA", help="One file or folder for all, or one for each.  [default: their validation rows]"
        ),
    ] = None,
    split: options.Split = None,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    out: Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Show how much AdapterBias shifts tokens in each layer: the mean of |alpha|.

    Examples:
        inlay analyze alpha reviews
        inlay analyze alpha reviews,tone reviews.tsv --rows 200
    """
    screen = output.console(as_json)
    asked, files = _several(names), data or []
    if len(files) not in (0, 1, len(asked)):
        raise RunError(f"{len(files)} files for {len(asked)} adapters: give one for all of them, or one for each")
    for i, name in enumerate(asked):
        eval_data.check([name], library, base, files[i % len(files)] if files else None, split, labelled=False)
    host, entries = _open(asked, library, base)
    from inlay.analysis.alpha import alpha as analysis

    examples = {}
    for i, name in enumerate(asked):
        own = files[i] if len(files) > 1 else files[0] if files else None
        _, examples[name] = eval_data.read_labelled(
            host, name, entries[name], own, screen, split=split, rows=rows, seed=seed, labelled=False
        )
    finish(analysis(host, examples), out, "-".join(asked), screen, as_json)


def words(
    name: options.Adapter,
    data: eval_data.Data = None,
    layers: Annotated[
        Literal["all", "lower", "upper", "each"] | None,
        options.option(
            METHOD,
            "--layers",
            "LAYERS",
            "Sum all layers, the lower or the upper half, or draw each layer.  [default: all, lower and upper]",
        ),
    ] = None,
    over: Annotated[
        Literal["mean", "sum"],
        options.option(METHOD, "--over", "HOW", "Weight a repeated word by its mean or its sum."),
    ] = "mean",
    negative: Annotated[
        Literal["colour", "drop"],
        options.option(
            METHOD, "--negative", "HOW", "Show words with negative weights in another colour, or drop them."
        ),
    ] = "colour",
    least: Annotated[
        int, options.option(METHOD, "--least", "N", "Leave out words that occur fewer than N times.", min=1)
    ] = 1,
    top: Annotated[int, options.option(OUTPUT, "--top", "N", "Words per cloud.", min=1)] = 80,
    font: Annotated[
        Path | None,
        options.option(OUTPUT, "--font", "FILE", "A TrueType font.  [default: DejaVu Sans]", dir_okay=False),
    ] = None,
    split: options.Split = None,
    rows: options.Rows = None,
    seed: options.Seed = 0,
    out: Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Show which words AdapterBias shifts most, as word clouds weighted by alpha.

    Examples:
        inlay analyze words reviews reviews.tsv
        inlay analyze words reviews --layers each --negative drop --least 2
    """
    screen = output.console(as_json)
    eval_data.check([name], library, base, data, split, labelled=False)
    host, _, entry = eval_data.open_adapter(name, library, base)
    from inlay.analysis.words import words as analysis

    _, examples = eval_data.read_labelled(
        host, name, entry, data, screen, split=split, rows=rows, seed=seed, labelled=False
    )
    found = analysis(
        host, name, examples, layers=layers, over=over, negative=negative, least=least, top=top, seed=seed, font=font
    )
    finish(found, out, name, screen, as_json)


def shift(
    names: options.Adapters,
    data: eval_data.Data = None,
    bare: Annotated[bool, options.option(METHOD, "--bare", None, "Also show the base without an adapter.")] = False,
    split: options.Split = None,
    rows: Annotated[int, options.option(DATA, "--texts", "N", "Show N texts, alternating between labels.", min=2)] = 6,
    seed: options.Seed = 0,
    out: Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Show where AdapterBias or BitFit moves tokens in the last layer, by label.

    Examples:
        inlay analyze shift reviews
        inlay analyze shift reviews,reviews-bitfit reviews.tsv --texts 4 --bare
    """
    screen = output.console(as_json)
    asked = _several(names)
    eval_data.check(asked, library, base, data, split)
    host, entries = _open(asked, library, base)
    from inlay.analysis.shift import shift as analysis

    _, examples = eval_data.read_labelled(host, asked[0], entries[asked[0]], data, screen, split=split)
    finish(analysis(host, asked, examples, rows=rows, seed=seed, bare=bare), out, "-".join(asked), screen, as_json)


def sparsity(
    names: options.Adapters,
    out: Out = None,
    base: options.TrainedBase = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Show how many of alpha's weights are left in each layer (adapterbias with its option l0).

    Examples:
        inlay analyze sparsity reviews
        inlay analyze sparsity reviews,tone --json
    """
    screen = output.console(as_json)
    asked = _several(names)
    eval_data.check(asked, library, base, needs_rows=False)
    host, _ = _open(asked, library, base)
    from inlay.analysis.sparsity import sparsity as analysis

    finish(analysis(host, asked), out, "-".join(asked), screen, as_json)


def _several(names: str) -> list[str]:
    found = [name.strip() for name in names.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise RunError(f"{names!r} is not a list of different adapters; expected NAME,NAME without spaces")
    return found


def _open(names: list[str], library: str | None, base: str | None) -> tuple[Host, dict[str, Entry]]:
    """All of them on one host, which is the first one's."""
    entries: dict[str, Entry] = {}
    host: Host | None = None
    for name in names:
        host, _, entries[name] = eval_data.open_adapter(name, library, base, host=host)
    assert host is not None
    return host, entries
