"""`inlay eval`: how good an adapter is on labelled data, language by language on request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from inlay.cli import eval_data, options, output, preflight
from inlay.cli.help import DATA, argument
from inlay.cli.named_adapters import host_with, open_library
from inlay.cli.train_display import decimals, metric_table
from inlay.data.record import Bad, Skipped, stop_or_skip
from inlay.data.source import Source, open_per_language
from inlay.errors import DataError
from inlay.library.card_text import section

if TYPE_CHECKING:
    from inlay.engine.host import Host
    from inlay.library.cards import Entry


def evaluate(
    name: options.Adapter,
    data: Annotated[str, argument("DATA", "A labelled file or folder.")],
    split: options.Split = None,
    per_language: Annotated[bool, DATA.flag("--per-language", "DATA is a folder with a file per language.")] = False,
    source_language: Annotated[str, DATA.option("CODE", "The language of the training data.")] = "en",
    text: options.Text = None,
    pair: options.Pair = None,
    label: options.Label = None,
    format: options.Format = None,
    encoding: options.Encoding = None,
    skip_bad_rows: options.SkipBadRows = False,
    base: options.TrainedBase = None,
    weights: options.Weights = None,
    library: options.Library = None,
    as_json: output.AsJson = False,
) -> None:
    """Evaluate an adapter on labelled data.

    Examples:
        inlay eval tickets new-tickets.csv
        inlay eval tickets xnli --per-language --json
    """
    preflight.refuse({"--split cannot be combined with --per-language": per_language and split is not None})
    screen, store = output.console(as_json), open_library(library)
    entry = eval_data.check(store, [name], base, needs_rows=False)[name]
    if per_language:
        sources = open_per_language(data, format=format, encoding=encoding)
    else:
        sources = dict([eval_data.labelled_source(data, split, format, encoding)])
    named = {key: value for key, value in (("text", text), ("pair", pair), ("label", label)) if value is not None}
    for source in sources.values():
        eval_data.check_columns(entry, source, named)
    host = host_with(base, weights, store, {name: entry})
    bad: Bad = Skipped() if skip_bad_rows else stop_or_skip
    results = {key: _evaluate(host, name, entry, source, named, bad, screen) for key, source in sources.items()}
    if isinstance(bad, Skipped) and bad.note:
        screen.print(bad.note, style="dim", soft_wrap=True)
    trained_on = [key for key, source in sources.items() if _was_trained_on(entry, source, screen)]
    metric = str(entry.card.get("metric") or host.task(name).primary(None, host.labels(name)))
    if per_language:
        document = _languages(name, results, metric, source_language, screen)
    else:
        document = {"name": name, **next(iter(results.values())), **({"trained_on": True} if trained_on else {})}
        _show(screen, document, metric)
    output.document(document, as_json)


def _evaluate(
    host: Host, name: str, entry: Entry, source: Source, named: dict[str, str], bad: Bad, screen: output.Console
) -> dict[str, Any]:
    from inlay.comparison.baselines import majority
    from inlay.engine.evaluate import measure

    examples = eval_data.examples_of(host, name, entry, source, named, bad, screen)
    metrics, unknown = measure(host, name, examples)
    if unknown:
        labels = ", ".join(sorted(unknown)[:5])
        warning = f"{source.name}: the adapter does not know {len(unknown)} of the labels: {labels}"
        screen.print(warning, style="yellow", soft_wrap=True)
    guess = majority(host.task(name), examples, host.labels(name))
    baseline = {} if guess is None else {"majority": {"label": guess[0], "metrics": guess[1]}}
    return {"rows": len(examples), "metrics": metrics, **baseline}


def _was_trained_on(entry: Entry, source: Source, screen: output.Console) -> bool:
    """Whether the adapter, or a member of it, was trained on these rows; if so, a warning is shown."""
    from inlay.data.digest import is_same

    cards = [entry.card, *(member.card for member in entry.members)]
    seen = any(is_same(source.name, section(card, "files").get("train")) for card in cards)
    if seen:
        warning = f"{entry.name} was trained on {source.name}: expect lower scores on new rows"
        screen.print(warning, style="yellow", soft_wrap=True)
    return seen


def _languages(
    name: str, results: Mapping[str, dict[str, Any]], metric: str, source: str, screen: output.Console
) -> dict[str, Any]:
    from inlay.data.languages import means, unknown

    without = [code for code, result in results.items() if metric not in result["metrics"]]
    if without:
        raise DataError(f"{metric} cannot be computed for {', '.join(without)}: the tags there are of another kind")
    values = {code: result["metrics"][metric] for code, result in results.items()}
    groups = means(values, source)
    guessed = any("majority" in result for result in results.values())
    beside = [m for m in ("f1_macro",) if m != metric and all(m in result["metrics"] for result in results.values())]
    heads = ("rows", metric, *beside, *(["majority"] if guessed else []))
    table = output.table("language", *heads, right=heads)
    for code, value in sorted(values.items(), key=lambda item: (item[0] != source, item[0])):
        majority = [decimals(results[code]["majority"]["metrics"].get(metric, 0.0))] if guessed else []
        others = [decimals(results[code]["metrics"][m]) for m in beside]
        table.add_row(code, f"{results[code]['rows']:,}", decimals(value), *others, *majority)
    screen.print(table)
    shown = ", ".join(f"{group} {decimals(value)}" for group, value in groups.items())
    screen.print(f"\nmeans of {metric}: {shown}")
    if strange := unknown(values):
        screen.print(f"unknown language family, counted as not distant: {', '.join(strange)}", style="dim")
    return {"name": name, "metric": metric, "source_language": source, "languages": dict(results), "means": groups}


def _show(screen: output.Console, document: Mapping[str, Any], metric: str) -> None:
    guess = document.get("majority")
    columns = {"value": document["metrics"], **({"majority": guess["metrics"]} if guess else {})}
    screen.print(f"{document['name']} on {document['rows']:,} rows\n")
    screen.print(metric_table(columns, metric))
    if guess:
        from inlay.comparison.baselines import in_words

        screen.print(f"majority: {in_words(guess['label'])}", style="dim", soft_wrap=True)
