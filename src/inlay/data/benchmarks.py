"""How well-known sets are scored, by the name of their folder; GLUE's own folders are in formats/glue.py.

The TAE sets (Gururangan et al. 2020): micro F1 for ChemProt and RCT, macro F1 for the others.
Their authors publish AGNews as `ag`, Helpfulness as `amazon`, ACL-ARC as `citation_intent` and SciERC as `sciie`.
"""

from __future__ import annotations

from pathlib import Path

METRICS = {
    "chemprot": "f1_micro",
    "rct-20k": "f1_micro",
    "rct-sample": "f1_micro",
    "citation_intent": "f1_macro",
    "sciie": "f1_macro",
    "sciie-relation-extraction": "f1_macro",
    "hyperpartisan_news": "f1_macro",
    "ag": "f1_macro",
    "agnews": "f1_macro",
    "amazon": "f1_macro",
    "helpfulness": "f1_macro",
    "imdb": "f1_macro",
}


def metric_of(data: str) -> str | None:
    """The metric of the set that a folder, or a file in it, belongs to."""
    path = Path(data)
    return METRICS.get(path.name.lower()) or METRICS.get(path.parent.name.lower())
