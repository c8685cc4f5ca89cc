"""Whether every machine of a cluster has what a replica needs; asked without loading anything."""

from __future__ import annotations

import os
from typing import Any

from inlay import cluster
from inlay.errors import InlayError, RunError
from inlay.library.library import Library
from inlay.version import __version__


def check_nodes(ray: Any, library: str, base: str | None) -> None:
    """One error names all that is wrong, and where."""
    affinity = cluster.ray("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    ask, names = ray.remote(num_cpus=0)(_problems), Library(library).names()
    asked = {}
    for node in (node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")):
        there = ask.options(scheduling_strategy=affinity(node["NodeID"], soft=False))
        asked[f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"] = there.remote(
            library, base, bool(names), __version__
        )
    found = [f"{where} {problem}" for where, answer in asked.items() for problem in ray.get(answer)]
    if found:
        raise RunError("; ".join(found))


def _problems(library: str, base: str | None, has_names: bool, version: str) -> list[str]:
    """Runs on a machine of the cluster."""
    found = [] if version == __version__ else [f"has Inlay {__version__}, not {version}"]
    if base is not None and os.path.isabs(base) and not os.path.isdir(base):
        found.append(f"does not see the base {base}: put it where all machines do")
    try:
        if has_names and not Library(library).names():
            found.append(f"does not see the library {library}: put it where all machines do")
    except InlayError as error:
        found.append(f"cannot read the library: {error}")
    return found
