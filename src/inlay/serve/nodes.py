"""Checks that every machine of a cluster has what a replica needs, without loading anything."""

from __future__ import annotations

import os
from typing import Any

from inlay import cluster
from inlay.errors import InlayError, RunError
from inlay.library.library import Library
from inlay.version import __version__


def check_nodes(ray: Any, library: str, base: str | None) -> None:
    """One error lists all problems, with their machines."""
    affinity = cluster.ray("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    check, has_names = ray.remote(num_cpus=0)(_problems), bool(Library(library).names())
    answers = {}
    for node in (node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")):
        on_node = check.options(scheduling_strategy=affinity(node["NodeID"], soft=False))
        machine = f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"
        answers[machine] = on_node.remote(library, base, has_names, __version__)
    problems = [f"{machine} {problem}" for machine, answer in answers.items() for problem in ray.get(answer)]
    if problems:
        raise RunError("; ".join(problems))


def _problems(library: str, base: str | None, has_names: bool, version: str) -> list[str]:
    """Runs on a machine of the cluster."""
    problems = [] if version == __version__ else [f"has Inlay {__version__}, not {version}"]
    if base is not None and os.path.isabs(base) and not os.path.isdir(base):
        problems.append(f"does not see the base {base}: put it where all machines do")
    try:
        if has_names and not Library(library).names():
            problems.append(f"does not see the library {library}: put it where all machines do")
    except InlayError as error:
        problems.append(f"cannot read the library: {error}")
    return problems
