"""How long one text takes through `inlay predict`, against what no program on this base can avoid.

    python bench/startup.py [--rounds 7]

The floor is a process that imports torch and transformers, reads the base and its tokenizer, and answers the same text
with the bare base: only the classes that it needs, no Auto classes that look for more. Floor and command run in turns,
so a busy machine slows both. Wall time and CPU time (user and system, of all threads) are medians with the fastest and
the slowest; the ratio is that of each round's two times, its median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

TEXT = "the second box came broken, and nobody answers"
FLOOR = """
import os, sys
os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error")
import torch
from transformers import BertModel, BertTokenizerFast
model = BertModel.from_pretrained(sys.argv[1]).eval()
tokenizer = BertTokenizerFast.from_pretrained(sys.argv[1])
with torch.inference_mode():
    model(**tokenizer([sys.argv[2]], return_tensors="pt"))
"""
TRAIN = """
import sys, inlay
host = inlay.Host(sys.argv[1])
host.add("tone", "houlsby:size=64", labels=["bad", "good"])
inlay.Library(sys.argv[2]).put(host.adapter("tone"), base_name=sys.argv[1])
"""


def measured(command: Sequence[str], **environment: str) -> tuple[float, float]:
    """Seconds of wall and of CPU time."""
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    wall, after = time.perf_counter() - began, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    from inlay.base.places import DEFAULT, locate

    base = locate(DEFAULT)[0]
    with tempfile.TemporaryDirectory() as library:
        subprocess.run([sys.executable, "-c", TRAIN, base, library], check=True)
        ours = [sys.executable, "-m", "inlay.cli.main", "predict", "tone", TEXT, "--library", library]
        floor = [sys.executable, "-c", FLOOR, base, TEXT]
        for command in (floor, ours):  # files and caches are warm from here on
            measured(command)
        found = [(measured(floor), measured(ours)) for _ in range(rounds)]
    for which, kind in enumerate(("wall", "CPU")):
        for name, side in (("floor", 0), ("predict", 1)):
            times = sorted(one[side][which] for one in found)
            print(f"{kind:4} {name:8} {statistics.median(times):5.2f} s  ({times[0]:.2f} to {times[-1]:.2f})")
        ratios = sorted(one[1][which] / one[0][which] for one in found)
        print(f"{kind:4} ratio    {statistics.median(ratios):5.2f}    ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
