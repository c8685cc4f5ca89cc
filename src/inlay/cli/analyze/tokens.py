"""`inlay analyze alpha | words | shift | sparsity`: what AdapterBias does to which tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from inlay.cli import eval_data, options, output
from inlay.cli.analyze.show import Figure
from inlay.cli.eval_data import Data, Sample
from inlay.cli.help import DATA, METHOD, OUTPUT, argument
from inlay.cli.named_adapters import host_with, open_library, split_names
from inlay.cli.option_groups import expand_groups
from inlay.errors import RunError

if TYPE_CHECKING:
    from inlay.library.library import Entry


@expand_groups(sample=Sample, figure=Figure)
def alpha(
    names: options.Adapters,
    data: Annotated[
        list[str] | None,
        argument("DATA", "One file or folder for all, or one for each.  [default: their validation rows]"),
    ] = None,
    *,
    sample: Sample,
    figure: Figure,
) -> None:
    """Show how much AdapterBias shifts tokens in each layer: the mean of |alpha|.

    Examples:
        inlay analyze alpha reviews
        inlay analyze alpha reviews,tone reviews.tsv --rows 200
    """
    refs, files = split_names(names), data or []
    if len(files) not in (0, 1, len(refs)):
        raise RunError(f"{len(files)} files for {len(refs)} adapters: give one for all of them, or one for each")
    file_of = {name: files[i % len(files)] if files else None for i, name in enumerate(refs)}
    store = open_library(figure.library)
    entries: dict[str, Entry] = {}
    for name, file in file_of.items():
        entries |= eval_data.check(store, [name], figure.base, file, sample.split, labelled=False)
    host, screen = host_with(figure.base, None, store, entries), output.console(figure.as_json)
    examples = {
        name: eval_data.read_labelled(host, name, entry, file_of[name], screen, sample, labelled=False)[1]
        for name, entry in entries.items()
    }
    from inlay.analysis.alpha import alpha as analysis

    figure.finish(analysis(host, examples), *refs)


@expand_groups(sample=Sample, figure=Figure)
def words(
    name: options.Adapter,
    data: Data = None,
    layers: Annotated[
        Literal["all", "lower", "upper", "each"] | None,
        METHOD.option(
            "LAYERS",
            "Sum all layers, the lower or the upper half, or draw each layer.  [default: all, lower and upper]",
        ),
    ] = None,
    over: Annotated[
        Literal["mean", "sum"], METHOD.option("HOW", "Weight a repeated word by its mean or its sum.")
    ] = "mean",
    negative: Annotated[
        Literal["colour", "drop"],
        METHOD.option("HOW", "Show words with negative weights in another colour, or drop them."),
    ] = "colour",
    least: Annotated[int, METHOD.option("N", "Leave out words that occur fewer than N times.", min=1)] = 1,
    top: Annotated[int, OUTPUT.option("N", "Words per cloud.", min=1)] = 80,
    font: Annotated[
        Path | None, OUTPUT.option("FILE", "A TrueType font.  [default: DejaVu Sans]", dir_okay=False)
    ] = None,
    *,
    sample: Sample,
    figure: Figure,
) -> None:
    """Show which words AdapterBias shifts most, as word clouds weighted by alpha.

    Examples:
        inlay analyze words reviews reviews.tsv
        inlay analyze words reviews --layers each --negative drop --least 2
    """
    host, _, examples = figure.read([name], data, sample, labelled=False)
    from inlay.analysis.words import words as analysis

    clouds = analysis(
        host,
        name,
        examples,
        layers=layers,
        over=over,
        negative=negative,
        least=least,
        top=top,
        seed=sample.seed,
        font=font,
    )
    figure.finish(clouds, name)


@expand_groups(figure=Figure)
def shift(
    names: options.Adapters,
    data: Data = None,
    bare: Annotated[bool, METHOD.flag("--bare", "Also show the base without an adapter.")] = False,
    split: options.Split = None,
    rows: Annotated[int, DATA.option("N", "Show N texts, alternating between labels.", name="--texts", min=2)] = 6,
    seed: options.Seed = 0,
    *,
    figure: Figure,
) -> None:
    """Show where AdapterBias or BitFit moves tokens in the last layer, by label.

    Examples:
        inlay analyze shift reviews
        inlay analyze shift reviews,reviews-bitfit reviews.tsv --texts 4 --bare
    """
    refs = split_names(names)
    host, _, examples = figure.read(refs, data, Sample(split))
    from inlay.analysis.shift import shift as analysis

    figure.finish(analysis(host, refs, examples, rows=rows, seed=seed, bare=bare), *refs)


@expand_groups(figure=Figure)
def sparsity(names: options.Adapters, *, figure: Figure) -> None:
    """Show how many of alpha's weights are left in each layer (adapterbias with its option l0).

    Examples:
        inlay analyze sparsity reviews
        inlay analyze sparsity reviews,tone --json
    """
    refs, store = split_names(names), open_library(figure.library)
    entries = eval_data.check(store, refs, figure.base, needs_rows=False)
    host = host_with(figure.base, None, store, entries)
    from inlay.analysis.sparsity import sparsity as analysis

    figure.finish(analysis(host, refs), *refs)
