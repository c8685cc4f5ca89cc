"""What `inlay demo` found: one HTML file that needs nothing else, and a summary on the terminal.

Both are made from the demo's JSON document alone. Every text in the file is escaped, even those from this package:
sentences and labels are data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from inlay.cli import output, predict_display
from inlay.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


SIDES = {"adapter": "adapter", "full": "full fine-tuning"}
_WIDTH, _HEIGHT = 300, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 288, 10, 158
_STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1d1d1b; --soft: #63625d; --line: #dddcd6; --card: #f3f2ee;
  --adapter: #1f6fd0; --full: #c2571a; --good: #1a7f37; --bad: #c62828; --mark: #fff0b8; }
@media (prefers-color-scheme: dark) { :root { --page: #191918; --ink: #ecebe6; --soft: #a5a49c; --line: #3b3a37;
  --card: #242422; --adapter: #6aa9f4; --full: #f0935a; --good: #56c271; --bad: #f2716b; --mark: #57490f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.1rem 4rem; max-width: 54rem; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0 0 .3rem; font-size: 1.7rem; } h2 { margin: 2.6rem 0 .6rem; font-size: 1.15rem; }
p { margin: .5rem 0; } .soft, figcaption, td small { color: var(--soft); }
.wide { overflow-x: auto; overflow-wrap: normal; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; } thead th { color: var(--soft); font-size: .87rem; vertical-align: bottom; }
.n { text-align: right; } td.n { white-space: nowrap; } tr > :last-child { padding-right: 0; }
td small { display: block; font-size: .82rem; } td:nth-child(2) { min-width: 8.5rem; }
@media (max-width: 50rem) { thead { display: none; } td:empty { display: none; }
  tr { display: grid; grid-template-columns: 1fr 1fr; gap: .5rem 1rem; padding: .8rem 0;
    border-bottom: 1px solid var(--line); }
  th, td { padding: 0; border: 0; } .n { text-align: left; }
  [data-is]::before { content: attr(data-is); display: block; color: var(--soft); font-size: .82rem; } }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.facts div { padding: .8rem 1rem; background: var(--card); border-radius: .5rem; }
.facts b { display: block; font-size: 1.6rem; line-height: 1.3; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1.2rem; }
figure { margin: 0; } figcaption { font-size: .9rem; } svg { display: block; width: 100%; max-width: 24rem; }
svg text { fill: var(--soft); font-size: 11px; } svg .grid { stroke: var(--line); }
.adapter { color: var(--adapter); } .full { color: var(--full); }
.key { display: inline-block; width: 1.1em; height: .2em; margin: 0 .4em .25em 0; background: currentColor; }
.key + span { color: var(--ink); margin-right: 1.2em; }
.mixed { margin: .8rem 0; padding: .8rem 1rem; background: var(--card); border-radius: .5rem; }
.mixed ul { display: flex; flex-wrap: wrap; gap: .1rem 1.6rem; margin: .4rem 0 0; padding: 0; list-style: none; }
mark { padding: .1em .25em; background: var(--mark); color: inherit; border-radius: .25em; }
mark small { margin-left: .35em; font-size: .72em; color: var(--soft); }
.checks { padding: 0; list-style: none; } .checks li { display: flex; } .checks b { flex: none; width: 3.4em; }
.ok b { color: var(--good); } .fail b { color: var(--bad); }
pre { white-space: pre-wrap; padding: .8rem 1rem; background: var(--card); border-radius: .5rem; font-size: .84rem; }
"""


def write(path: Path, document: Mapping[str, Any], checks: Mapping[str, str]) -> None:
    """Write the page to a file."""
    try:
        path.write_text(page(document, checks), encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None


def page(document: Mapping[str, Any], checks: Mapping[str, str]) -> str:
    """The whole file.

    Args:
        document: what `inlay demo --json` prints.
        checks: a sentence for every check.
    """
    tasks = document["tasks"]
    parts = (
        _opening(document),
        _facts(document),
        f"<h2>Results on test rows</h2>\n{_results(document)}",
        f"<h2>Learning curves</h2>\n{_keys()}\n<div class='charts'>{''.join(map(_chart, tasks))}</div>",
        f"<h2>One mixed batch</h2>\n{_mixed(document['mixed'])}",
        f"<h2>Checks</h2>\n{_checks(document, checks)}",
        f"<h2>Try it yourself</h2>\n{_again(document)}",
    )
    head = (
        "<meta charset='utf-8'>\n<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>Inlay demo</title>\n<style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f"<!doctype html>\n<html lang='en'>\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n"


def show(screen: output.Console, document: Mapping[str, Any], checks: Mapping[str, str]) -> None:
    """A summary on the terminal."""
    tasks, mixed = document["tasks"], document["mixed"]
    screen.print(f"\nOne batch: {len(mixed) // len(tasks)} sentences, each sent to all {len(tasks)} tasks\n")
    predict_display.show(screen, mixed, len(tasks), None)
    columns = ("task", "trained as", "test score", "parameters")
    table = output.table(*columns, right=("parameters",), keep=columns)
    for task in tasks:
        for side, name in SIDES.items():
            test = f"{task['metric']} {task[side]['test']:.3f} ({_right(task, side)})"
            table.add_row(task["name"] if side == "adapter" else "", name, test, f"{task[side]['parameters']:,}")
    screen.print("\nResults on test rows, and the number of parameters trained:\n")
    screen.print(table)
    base, total = document["base"]["parameters"], document["total"]
    screen.print(f"\nSize of all {len(tasks)} tasks together, heads included:")
    screen.print(f"  base and adapters  {total['adapters']:>12,} parameters, {total['adapters'] / base:.2f}x the base")
    screen.print(f"  full models        {total['full']:>12,} parameters, {total['full'] / base:.2f}x\n")
    for check, passed in document["checks"].items():
        screen.print("ok  " if passed else "FAIL", style="green" if passed else "bold red", end="  ")
        screen.print(checks[check])
    screen.print(f"\nDone in {document['seconds']:.0f} s. Report: {document['report']}", soft_wrap=True)
    screen.print(f"Try it: {document['try']}", soft_wrap=True)


def _opening(document: Mapping[str, Any]) -> str:
    names = [f"<b>{escape(task['name'])}</b> ({escape(task['what'])})" for task in document["tasks"]]
    base = f"{escape(document['base']['name'])}, {document['base']['parameters']:,} parameters"
    return (
        "<h1>Inlay demo</h1>\n"
        f"<p>{len(names)} tasks were trained one after another on one frozen base ({base}): {', '.join(names)}. "
        "Each task is an adapter and a head of its own; the base did not change. For comparison, each task was also "
        "trained by fine-tuning every weight of a copy of the base, on the same rows for the same number of epochs. "
        f"Everything took {document['seconds']:.0f} seconds.</p>"
    )


def _facts(document: Mapping[str, Any]) -> str:
    size, total = document["base"]["parameters"], document["total"]
    identical = document["checks"]["first_unchanged"]
    first = escape(document["tasks"][0]["name"])
    facts = (
        (
            f"{total['adapters'] / size:.2f}&times;",
            f"the size of the base holds all {len(document['tasks'])} tasks as adapters",
        ),
        (f"{total['full'] / size:.2f}&times;", "the size of the base, with a fully fine-tuned model per task"),
        ("0 bits" if identical else "some bits", f"of the outputs for {first} changed when other tasks were added"),
    )
    return f"<div class='facts'>{''.join(f'<div><b>{value}</b>{meaning}</div>' for value, meaning in facts)}</div>"


def _results(document: Mapping[str, Any]) -> str:
    heads = "<th>task</th><th>metric</th>" + "".join(
        f"<th class='n'>{name}</th><th class='n'>parameters trained</th>" for name in SIDES.values()
    )
    rows = []
    for task in document["tasks"]:
        rows.append(f"<tr><th>{escape(task['name'])}</th><td>{_measure(task)}</td>{_cells(task)}</tr>")
    total = document["total"]
    sums = (
        f"<td></td><td class='n' data-is='{name}'><b>{total['adapters' if side == 'adapter' else side]:,}</b></td>"
        for side, name in SIDES.items()
    )
    rows.append(f"<tr><th>in all</th><td><small>base and adapters, or full models</small></td>{''.join(sums)}</tr>")
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return (
        f"<div class='wide'>{table}</div>\n<p class='soft'>Rows: training / validation / test. Validation rows chose "
        "the epoch that was kept; test rows chose nothing. There are few of both, so differences of a few points mean "
        "little. More settings were tried for the adapters than for full fine-tuning. "
        "The last line includes the heads.</p>"
    )


def _measure(task: Mapping[str, Any]) -> str:
    rows = task["rows"]
    counts = f"{rows['train']} / {rows['validation']} / {rows['test']} rows"
    name = "F1 of entities" if task["metric"] == "f1" else task["metric"]
    return f"{escape(name)}<small>{counts}</small>"


def _cells(task: Mapping[str, Any]) -> str:
    cells = []
    for side in SIDES:
        result = task[side]
        spent = f"{result['seconds']:.0f} s, kept epoch {result['best_epoch']:g}"
        cells.append(
            f"<td class='n' data-is='{SIDES[side]}'><b>{result['test']:.3f}</b><small>{_right(task, side)}</small></td>"
        )
        cells.append(f"<td class='n' data-is='parameters trained'>{result['parameters']:,}<small>{spent}</small></td>")
    return "".join(cells)


def _right(task: Mapping[str, Any], side: str) -> str:
    """The share that was right. F1 is not this share: it also counts what was found by mistake."""
    result = task[side]
    return f"{result['right']} of {result['of']} {'found' if task['metric'] == 'f1' else 'right'}"


def _keys() -> str:
    keys = "".join(f"<i class='key {side}'></i><span>{name}</span>" for side, name in SIDES.items())
    return f"<p>{keys} <span class='soft'>on validation rows after each epoch; a ring marks the epoch kept</span></p>"


def _chart(task: Mapping[str, Any]) -> str:
    """Both ways of training a task: the metric over epochs, on axes that fit both."""
    points = {side: task[side]["validation"] for side in SIDES}
    values = [value for line in points.values() for _, value in line]
    last = max(epoch for line in points.values() for epoch, _ in line)
    low = min(int(4 * min(values)) / 4, 0.75)

    def x(epoch: float) -> float:
        return (_LEFT + _RIGHT) / 2 if last <= 1 else _LEFT + 8 + (_RIGHT - _LEFT - 16) * (epoch - 1) / (last - 1)

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - low) / (1 - low)

    drawn = []
    for tick in (low + 0.25 * i for i in range(round((1 - low) / 0.25) + 1)):
        drawn.append(f"<line class='grid' x1='{_LEFT}' x2='{_RIGHT}' y1='{y(tick):.1f}' y2='{y(tick):.1f}'/>")
        drawn.append(f"<text x='{_LEFT - 6}' y='{y(tick) + 4:.1f}' text-anchor='end'>{tick:.2f}</text>")
    for epoch in range(1, int(last) + 1):
        drawn.append(f"<text x='{x(epoch):.1f}' y='{_BOTTOM + 16}' text-anchor='middle'>{epoch}</text>")
    drawn.append(f"<text x='{(_LEFT + _RIGHT) / 2}' y='{_BOTTOM + 30}' text-anchor='middle'>epoch</text>")
    for side, line in reversed(points.items()):
        at = [(x(epoch), y(value)) for epoch, value in line]
        drawn.append(_line(side, at, line, task[side]["best_epoch"]))
    name = "F1 of entities" if task["metric"] == "f1" else task["metric"]
    label = escape(f"{task['name']}: {name} over epochs", quote=True)
    svg = f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{label}'>{''.join(drawn)}</svg>"
    return f"<figure><figcaption><b>{escape(task['name'])}</b>, {escape(name)}</figcaption>{svg}</figure>"


def _line(side: str, at: Sequence[tuple[float, float]], line: Sequence[Sequence[float]], best: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dots = []
    for (x, y), (epoch, value) in zip(at, line, strict=True):
        ring = "r='5' fill='var(--page)' stroke='currentColor' stroke-width='2'"
        shape = ring if epoch == best else "r='3' fill='currentColor'"
        title = f"<title>{SIDES[side]}, epoch {epoch:g}: {value:.3f}</title>"
        dots.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' {shape}>{title}</circle>")
    stroke = f"<polyline points='{path}' fill='none' stroke='currentColor' stroke-width='2'/>"
    return f"<g class='{side}'>{stroke}{''.join(dots)}</g>"


def _mixed(mixed: Sequence[Mapping[str, Any]]) -> str:
    """A card for every sentence, with every task's answer."""
    texts = dict.fromkeys(answer["text"] for answer in mixed)
    cards = []
    for text in texts:
        answers = [answer for answer in mixed if answer["text"] == text]
        spans = [span for answer in answers for span in answer.get("spans", ())]
        items = "".join(f"<li><span class='soft'>{escape(a['task'])}</span> {_answer(a)}</li>" for a in answers)
        cards.append(f"<div class='mixed'>{_marked(text, spans)}<ul>{items}</ul></div>")
    summary = f"{len(texts)} sentences, each sent to every task: {len(mixed)} requests in one pass through the base."
    return f"<p>{summary}</p>\n{''.join(cards)}"


def _answer(answer: Mapping[str, Any]) -> str:
    if "spans" in answer:
        scores = ", ".join(f"{escape(span['text'])} {span['score']:.2f}" for span in answer["spans"])
        return scores or "nothing found"
    return f"<b>{escape(answer['label'])}</b> {answer['score']:.2f}"


def _marked(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """The text with its spans marked and named."""
    out, at = [], 0
    for span in sorted(spans, key=lambda span: span["start"]):
        inside = f"{escape(text[span['start'] : span['end']])}<small>{escape(span['label'])}</small>"
        out.append(f"{escape(text[at : span['start']])}<mark>{inside}</mark>")
        at = span["end"]
    return "".join(out) + escape(text[at:])


def _checks(document: Mapping[str, Any], sentences: Mapping[str, str]) -> str:
    rows = []
    for check, passed in document["checks"].items():
        state = "ok" if passed else "fail"
        rows.append(f"<li class='{state}'><b>{state if passed else 'FAIL'}</b> {escape(sentences[check])}</li>")
    same = document["unchanged_after"].items()
    steps = ", ".join(f"{escape(step)}: {'yes' if unchanged else 'no'}" for step, unchanged in same)
    first = document["tasks"][0]
    saved = f"The logits of {escape(first['name'])} for its {first['rows']['test']} test rows were saved"
    return (
        f"<ul class='checks'>{''.join(rows)}</ul>\n<p class='soft'>{saved} "
        f"right after its training and compared bit by bit after every later one. Still identical? After {steps}.</p>"
    )


def _again(document: Mapping[str, Any]) -> str:
    runs = [_run(task[side]["config"]) for task in document["tasks"] for side in SIDES]
    versions = ", ".join(f"{escape(name)} {escape(version)}" for name, version in document["versions"].items())
    first = f"host = inlay.Host({document['base']['name']!r}, device='cpu', dtype=torch.float32)"
    code = "\n".join(("import torch", "import inlay", "", first, *(f"inlay.train(host, {run})" for run in runs)))
    return (
        f"<p>Try the first task on another text:</p>\n<pre>{escape(document['try'])}</pre>\n"
        f"<p>Train everything again, in the folder where the demo ran:</p>\n<pre>{escape(code)}</pre>\n"
        f"<p class='soft'>{versions}; base {escape(document['base']['fingerprint'])}</p>"
    )


def _run(config: Mapping[str, Any]) -> str:
    return f"inlay.Run({', '.join(f'{key}={value!r}' for key, value in config.items())})"
