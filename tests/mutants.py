"""Plant the faults of mutants.toml one by one in a copy of the tree, and see whether the tests notice.

    make mutants
    python tests/mutants.py --only serve --tier quick --json found.json

Each fault names the folder of tests (or the file) that should notice it. The quick tier of that folder runs until the
first failure; what it misses, the rest of the full tier is asked. Before anything is planted the same tests have to
pass, since a test that fails anyway would notice everything. Exit code 1: the quick tier noticed less than 90 %, or the
full tier not all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("mutants.toml")
FULL = "not slow and not gpu and not peers"
QUICK = f"not full and {FULL}"
REST = f"(full or hypothesis) and {FULL}"
"""As in the Makefile: what the quick tier leaves to the full one."""
WANTED = 0.9
PATIENCE = 1200
"""Seconds after which tests that hang have noticed."""


@dataclass(frozen=True)
class Fault:
    """One line of `src/inlay/{file}` that is wrong."""

    file: str
    before: str
    after: str
    tests: str
    what: str
    first: str = ""

    @property
    def package(self) -> str:
        return self.file.partition("/")[0].removesuffix(".py")

    def problem(self, root: Path = ROOT) -> str:
        """Why it cannot be planted, or nothing."""
        if not (root / "src/inlay" / self.file).is_file():
            return f"there is no src/inlay/{self.file}"
        found = (root / "src/inlay" / self.file).read_text("utf-8").count(self.before)
        if found != 1:
            return f"{self.file} has {self.before!r} {found} times, not once"
        if "\n" in self.before + self.after or self.before == self.after:
            return f"{self.before!r} -> {self.after!r} is not one changed line"
        missing = [path for path in (self.tests, self.first) if path and not (root / "tests" / path).exists()]
        return f"there is no tests/{missing[0]}" if missing else ""

    @contextlib.contextmanager
    def planted(self, root: Path) -> Iterator[None]:
        path = root / "src/inlay" / self.file
        right = path.read_text("utf-8")
        _write(path, right.replace(self.before, self.after))
        try:
            yield
        finally:
            _write(path, right)


@dataclass
class Found:
    """What became of a fault in one tier."""

    noticed: bool
    by: str
    seconds: float


def read(path: Path = LIST) -> list[Fault]:
    return [Fault(**entry) for entry in tomllib.loads(path.read_text("utf-8"))["fault"]]


def _write(path: Path, text: str) -> None:
    """Without what Python has compiled of it: another text of the same size, in the same second, would be missed."""
    path.write_text(text, "utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def copy_to(root: Path) -> None:
    ignored = shutil.ignore_patterns(".*", "__pycache__")
    shutil.copytree(ROOT, root, ignore=ignored)


def pytest(root: Path, paths: list[str], marks: str, *more: str) -> tuple[int, str]:
    """Exit code and output. What hangs is ended, with all that it has started."""
    command = [sys.executable, "-m", "pytest", *paths, "-m", marks, "-p", "no:cacheprovider", "--tb=no", *more]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "INLAY_TEST_TIER": "" if marks == QUICK else "full"}
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(command, cwd=root, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            code = child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return 1, "it hung"
        said.seek(0)
        return code, said.read()


def tried(fault: Fault, root: Path, marks: str) -> Found:
    """The test that is likely to notice first, then its whole folder."""
    start = time.monotonic()
    calls = [[f"tests/{fault.tests}"]]
    if fault.first:
        calls = [[f"tests/{fault.first}"], [*calls[0], f"--ignore=tests/{fault.first}"]]
    with fault.planted(root):
        for call in calls:
            code, said = pytest(root, call, marks, "-x")
            if code not in (0, 1, 2, 5):
                raise SystemExit(f"pytest {' '.join(call)} ended with {code}:\n{said[-2000:]}")
            if code in (1, 2):  # 2: tests that cannot even be imported
                by = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", said, re.MULTILINE)
                return Found(True, by[1] if by else said.strip().splitlines()[-1], time.monotonic() - start)
    return Found(False, "", time.monotonic() - start)


def check_without(faults: list[Fault], tiers: list[str], jobs: int) -> None:
    """All tests that are asked have to pass as long as nothing is planted."""
    paths = sorted({f"tests/{fault.tests}" for fault in faults})
    for marks in tiers:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copy_to(Path(folder) / "tree")
            code, said = pytest(Path(folder) / "tree", paths, marks, "-n", str(jobs), "--dist", "worksteal")
            if code:
                raise SystemExit(f"without any fault these tests fail already:\n{said[-3000:]}")


def run(faults: list[Fault], tiers: list[str], jobs: int) -> list[dict[str, Found]]:
    """For each fault: tier -> what was found. A tier is asked if those before it have missed the fault."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for i in range(jobs):
            copy_to(Path(folder) / str(i))
            free.put(Path(folder) / str(i))

        def one(fault: Fault) -> dict[str, Found]:
            found: dict[str, Found] = {}
            root = free.get()
            try:
                for marks in tiers:
                    name = "quick" if marks == QUICK else "full"
                    found[name] = tried(fault, root, marks)
                    if found[name].noticed:
                        break
            finally:
                free.put(root)
            for tier, was in found.items():
                said = f"noticed by {was.by}" if was.noticed else "MISSED"
                print(f"{fault.file}: {fault.what}: {tier} {said} ({was.seconds:.0f} s)", flush=True)
            return found

        return list(pool.map(one, faults))


def table(faults: list[Fault], results: list[dict[str, Found]], tiers: list[str]) -> str:
    """Per package: faults, and how many each tier noticed. The full tier includes the quick one."""
    of, quick, full = Counter[str](), Counter[str](), Counter[str]()
    for fault, found in zip(faults, results, strict=True):
        for package in (fault.package, "all"):
            of[package] += 1
            quick[package] += "quick" in found and found["quick"].noticed
            full[package] += any(one.noticed for one in found.values())
    lines = [f"{'package':<12}{'faults':>8}{'quick':>8}{'full':>8}"]
    for package in [*sorted(of.keys() - {"all"}), "all"]:
        shown = (quick[package] if QUICK in tiers else "", full[package] if tiers != [QUICK] else "")
        lines.append(f"{package:<12}{of[package]:>8}{shown[0]:>8}{shown[1]:>8}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that the fault's file or words match")
    parser.add_argument("--tier", choices=["quick", "full"], help="this tier alone")
    parser.add_argument("--jobs", type=int, default=2, help="faults that are tried at the same time")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a fault first")
    asked = parser.parse_args()
    faults = [fault for fault in read() if re.search(asked.only, f"{fault.file}: {fault.what}")]
    problems = [problem for fault in faults if (problem := fault.problem())]
    if problems or not faults:
        print("\n".join(problems) or "no fault matches --only", file=sys.stderr)
        return 2
    tiers = {"quick": [QUICK], "full": [FULL], None: [QUICK, REST]}[asked.tier]
    if not asked.trust:
        check_without(faults, tiers[:1], asked.jobs)
    results = run(faults, tiers, asked.jobs)
    print(table(faults, results, tiers))
    if asked.json:
        rows = [
            {**asdict(fault), **{tier: asdict(one) for tier, one in found.items()}}
            for fault, found in zip(faults, results, strict=True)
        ]
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    quick = sum("quick" in found and found["quick"].noticed for found in results)
    noticed = sum(any(one.noticed for one in found.values()) for found in results)
    enough = (QUICK not in tiers or quick >= WANTED * len(faults)) and (tiers == [QUICK] or noticed == len(faults))
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
