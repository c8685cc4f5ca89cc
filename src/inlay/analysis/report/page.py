"""The page: its frame, its style, and the few elements it is made of. All data goes through `esc`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1d1d1b; --soft: #63625d; --line: #dddcd6; --card: #f3f2ee;
  --accent: #1f6fd0; --heat: 31, 111, 208; --miss: 213, 94, 0; --mark: #fff0b8; --c0: #0072b2; --c1: #d55e00;
  --c2: #009e73; --c3: #b8578f; --c4: #b87d00; --c5: #2b8cc4; }
@media (prefers-color-scheme: dark) { :root { --page: #191918; --ink: #ecebe6; --soft: #a5a49c; --line: #3b3a37;
  --card: #242422; --accent: #6aa9f4; --heat: 106, 169, 244; --miss: 240, 147, 90; --mark: #57490f; --c0: #5aaee0;
  --c1: #f0935a; --c2: #4cc9a0; --c3: #e39ac2; --c4: #f0b840; --c5: #8ccbf2; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0 auto; padding: 2rem 1.1rem 4rem; max-width: 58rem; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0 0 .2rem; font-size: 1.75rem; line-height: 1.25; } h1 small { font-size: .6em; font-weight: 400; }
h2 { margin: 2.8rem 0 .6rem; font-size: 1.2rem; } h3 { margin: 1.6rem 0 .4rem; font-size: 1rem; }
p { margin: .5rem 0; } .soft, figcaption, small { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1rem 0 0; } a { color: var(--accent); }
.wide { overflow-x: auto; overflow-wrap: normal; max-height: 80vh; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem 1rem .35rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; } thead th { color: var(--soft); font-size: .87rem; font-weight: 500; vertical-align: bottom; }
.n { text-align: right; } td.n { white-space: nowrap; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.facts div { padding: .8rem 1rem; background: var(--card); border-radius: .5rem; }
.facts b { display: block; font-size: 1.5rem; line-height: 1.3; }
dl { display: grid; grid-template-columns: minmax(5.5rem, max-content) 1fr; gap: .3rem 1.2rem; margin: .6rem 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: .4rem 1.4rem; }
figure { margin: .6rem 0; } svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); }
.matrix { font-size: .84rem; border-collapse: separate; border-spacing: 1px; }
.matrix th, .matrix td { padding: .2rem .35rem; border: 0; text-align: center; min-width: 1.9rem; }
.matrix td { background: rgba(var(--heat), var(--a, 0)); } .matrix td.m { background: rgba(var(--miss), var(--a, 0)); }
.matrix tbody th { position: sticky; left: 0; background: var(--page); text-align: right; font-weight: 500; z-index: 1;
  max-width: 11rem; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.matrix thead th { position: sticky; top: 0; background: var(--page); z-index: 2; }
.matrix.many, .matrix.many thead th { font-size: .7rem; border-spacing: 0; }
.matrix.many th, .matrix.many td { padding: .05rem .12rem; min-width: 1.15rem; }
.matrix .up { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; max-height: 11rem;
  white-space: nowrap; overflow: hidden; margin: 0 auto; }
.list { padding: 0; list-style: none; } .list li { margin: .7rem 0; padding: .7rem 1rem; background: var(--card);
  border-radius: .5rem; } .list p { margin: 0 0 .3rem; white-space: pre-line; }
.said { display: flex; flex-wrap: wrap; gap: 0 1.4rem; font-size: .92rem; } .said span { color: var(--soft); }
mark { padding: .05em .2em; background: var(--mark); color: inherit; border-radius: .25em; }
pre { white-space: pre-wrap; padding: .8rem 1rem; background: var(--card); border-radius: .5rem; font-size: .84rem; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .6rem; }
  th, td { padding-right: .6rem; } table { font-size: .9rem; } body { padding-top: 1.2rem; } h1 { font-size: 1.4rem; } }
@media print { .wide { max-height: none; overflow: visible; } nav { display: none; } }
"""


@dataclass(frozen=True)
class Section:
    """A part of a page with a title."""

    id: str
    title: str
    body: str


def esc(text: object) -> str:
    """Text as HTML, for elements and attributes; the only way for data into the page."""
    return escape(str(text), quote=True)


def page(title: str, lead: str, sections: Iterable[Section]) -> str:
    """The whole file.

    Args:
        lead: HTML above the sections.
    """
    parts = list(sections)
    links = "".join(f"<a href='#{part.id}'>{esc(part.title)}</a>" for part in parts)
    body = "\n".join(f"<section id='{part.id}'><h2>{esc(part.title)}</h2>\n{part.body}\n</section>" for part in parts)
    head = (
        "<meta charset='utf-8'>\n<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{esc(title)}</title>\n<style>{STYLE}</style>"
    )
    return (
        f"<!doctype html>\n<html lang='en'>\n<head>\n{head}\n</head>\n<body>\n{lead}\n<nav>{links}</nav>\n{body}\n"
        "</body>\n</html>\n"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values."""
    return f"<dl>{''.join(f'<dt>{esc(name)}</dt><dd>{esc(value)}</dd>' for name, value in pairs)}</dl>"


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Large values, each with its name."""
    return f"<div class='facts'>{''.join(f'<div><b>{esc(value)}</b>{esc(name)}</div>' for value, name in pairs)}</div>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[int] = ()) -> str:
    """A table; the columns in `right` hold numbers and are aligned to the right."""
    kinds = [" class='n'" if i in right else "" for i in range(len(columns))]
    head = "".join(f"<th{kind}>{esc(name)}</th>" for kind, name in zip(kinds, columns, strict=True))
    lines = []
    for row in rows:
        cells = zip(kinds, row, strict=True)
        lines.append(f"<tr>{''.join(f'<td{kind}>{esc(cell)}</td>' for kind, cell in cells)}</tr>")
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def code(text: str) -> str:
    """Text to type."""
    return f"<pre><code>{esc(text)}</code></pre>"


def short_facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and short values on one line."""
    return f"<div class='said'>{''.join(f'<div><span>{esc(k)}</span> {esc(v)}</div>' for k, v in pairs)}</div>"


def marked(text: str, span: tuple[int, int] | None) -> str:
    """Text with a span of it marked."""
    if span is None:
        return esc(text)
    start, end = span
    return f"{esc(text[:start])}<mark>{esc(text[start:end])}</mark>{esc(text[end:])}"
