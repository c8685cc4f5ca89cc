"""Languages by code, for cross-lingual results; those outside the Indo-European family are called distant."""

from __future__ import annotations

from collections.abc import Mapping

from inlay.errors import DataError

INDO_EUROPEAN = frozenset(
    (
        "ae af als an as be bg bh bn br bs ca co cs cu cy da de dv el en es fa fo fr fy ga gd gl gu gv hi hr hy is it "
        "kmr ks ku kw la lb li lt lv mk mr nb ne nl nn no oc or os pa pi pl ps pt rm ro ru sa sc sd si sk sl sq sr sv "
        "tg uk ur wa yi "
    ).split()
)
DISTANT = frozenset(
    (
        "aa ab ak am ar av ay az ba bm bo ce ceb ch cr cv dz ee et eu ff fi fj gn ha he ho hu hz id ig ii ik iu ja jv "
        "ka kg ki kj kk kl km kn ko kr kv ky lg ln lo lu mg mh mi ml mn ms mt my na nd ng nr nv ny oj om qu rn rw se "
        "sg sm sn so ss st su sw ta te th ti tk tl tn to tr ts tt tw ty ug uz ve vi wo xh yo yue za zh zu "
    ).split()
)
"""Together all of ISO 639-1 except made-up languages and creoles, whose family is a matter of opinion."""


def means(values: Mapping[str, float], source: str) -> dict[str, float]:
    """The mean over all languages, over those not trained on, and over those of other families."""
    if source not in values:
        raise DataError(f"no file is in the training language, {source!r}; found: {', '.join(sorted(values))}")
    groups = {
        "all": list(values),
        "target": [code for code in values if code != source],
        "distant": [code for code in values if code.split("_")[0].split("-")[0] in DISTANT],
    }
    return {name: sum(values[c] for c in codes) / len(codes) for name, codes in groups.items() if codes}


def unknown(codes: Mapping[str, object]) -> list[str]:
    """Codes whose family is unknown; they do not count as distant."""
    return sorted(c for c in codes if c.split("_")[0].split("-")[0] not in INDO_EUROPEAN | DISTANT)
