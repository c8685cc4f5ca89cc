"""A figure inside a page: SVG without a background, whose colours follow the page's light or dark mode.

Colours of `inlay.drawing` become the page's variables, black becomes its text colour; text stays text.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import Any

from inlay import drawing

_INK = {"#000000": "var(--soft)", "#b0b0b0": "var(--soft)", "#7f7f7f": "var(--soft)", "#555555": "var(--soft)"}
VARIABLES = {colour.lower(): f"var(--c{i})" for i, colour in enumerate(drawing.COLOURS) if i < 6}


def inline(figure: Any, alt: str) -> str:
    """The `<svg>` of a figure.

    Args:
        alt: a description, for those who do not see the figure.
    """
    figure.patch.set_visible(False)
    for panel in figure.axes:
        panel.patch.set_visible(False)
    target = io.StringIO()
    with drawing.plotting("matplotlib").rc_context({"svg.hashsalt": alt, "svg.fonttype": "none"}):
        figure.savefig(target, format="svg", metadata={"Date": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)  # a page knows what svg is
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda colour: (_INK | VARIABLES).get(colour[0], colour[0]), text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    text = re.sub(r"<svg[^>]*viewBox=\"([^\"]*)\"[^>]*>", _opening(alt), text, count=1)
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def _opening(alt: str) -> Any:
    def tag(match: re.Match[str]) -> str:
        width = float(match[1].split()[2])
        label = escape(alt, quote=True)
        return f'<svg viewBox="{match[1]}" style="max-width: {width * 4 / 3:.0f}px" role="img" aria-label="{label}">'

    return tag
