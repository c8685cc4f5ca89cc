"""Languages by code, for cross-lingual results; those outside the Indo-European family are called distant."""

from __future__ import annotations

from collections.abc import Mapping

from inlay.errors import DataError

INDO_EUROPEAN = frozenset(
    (
        "af als be bg bn br bs ca co cs cy da de el en es fa fo fr fy ga gd gl gu gv hi hr hy is it kmr ku la lb lt "
        "lv mk mr nb ne nl nn no oc or os pa pl ps pt rm ro ru sa sc sd si sk sl sq sr sv tg uk ur yi "
    ).split()
)
DISTANT = frozenset(
    (
        "am ar az bo ceb et eu fi ha he hu id ig ja jv ka kk kn ko ky lo mg ml mn ms mt my qu rw se sm sn so st su "
        "sw ta te th tl tr tt ug uz vi wo xh yo yue zh zu "
    ).split()
)


def means(values: Mapping[str, float], source: str) -> dict[str, float]:
    """The mean over all languages, over those that were not trained on, and over those of other families."""
    if source not in values:
        raise DataError(
            f"no file is in the language that was trained on, {source!r}; found: {', '.join(sorted(values))}"
        )
    groups = {
        "all": list(values),
        "target": [code for code in values if code != source],
        "distant": [code for code in values if code.split("_")[0].split("-")[0] in DISTANT],
    }
    return {name: sum(values[c] for c in codes) / len(codes) for name, codes in groups.items() if codes}


def unknown(codes: Mapping[str, object]) -> list[str]:
    """Codes whose family is not known here; they count as not distant."""
    return sorted(c for c in codes if c.split("_")[0].split("-")[0] not in INDO_EUROPEAN | DISTANT)
