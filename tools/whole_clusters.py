"""For tests on whole clusters: whether this machine can run one, what must be built, and the results."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import conformance_page

from windlass.lab.kubelets.conformance import FAILED, PASSED, SKIPPED, Result

REPOSITORY = Path(__file__).resolve().parent.parent
REPORTS = REPOSITORY / "build" / "conformance"
NO_GO = 3
BUILT = (("build-kubernetes", "--whole"), ("build-helm",))


def prepare(built: Sequence[tuple[str, ...]] = BUILT) -> int:
    """Build the programs. NO_GO: this machine cannot run a cluster; 1: a build failed; both print why."""
    if absent := not_possible():
        say(f"skipped: {absent}")
        return NO_GO
    for tool in built:
        if status := subprocess.run(
            [sys.executable, REPOSITORY / "tools" / tool[0], *tool[1:]], check=False
        ).returncode:
            return status
    return 0


def not_possible() -> str:
    """Why this machine cannot run a Node; empty if it can."""
    if os.geteuid() != 0:
        return "only root can make machines for Nodes"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for name in ("lower", "upper", "work", "merged"):
            Path(folder, name).mkdir()
        options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
        overlay = ["mount", "-t", "overlay", "overlay", "-o", options, f"{folder}/merged"]
        if subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", *overlay], capture_output=True, check=False
        ).returncode:
            return "this machine does not let us mount an overlay in namespaces of our own, and Nodes need disks"
    places = [place for place in Path("/sys/fs/cgroup").glob("memory*") if place.is_dir()] or [Path("/sys/fs/cgroup")]
    try:
        (probe := places[0] / "wl-probe").mkdir()
        probe.rmdir()
    except OSError as error:
        return f"this machine does not let us make cgroups, and kubelets do: {error}"
    return ""


def told(results: list[Result], what: str, seconds: float) -> bool:
    counts = Counter(result.verdict for result in results)
    unexpected = 0
    for result in results:
        if result.verdict == FAILED and (why := conformance_page.known(result.name)):
            print(f"FAILED (known): {result.name}\n       {why}")
        elif result.verdict == FAILED:
            unexpected += 1
            print(f"FAILED {result.name}\n       {result.message.partition(chr(10))[0]}")
        elif result.verdict == SKIPPED:
            print(f"skipped by the test: {result.name}: {result.message}")
    say(
        f"{what}: {counts[PASSED]} passed, {counts[FAILED]} failed, {counts[FAILED] - unexpected} of them known, "
        f"{counts[SKIPPED]} skipped by themselves, in {seconds:.0f} s"
    )
    return counts[PASSED] > 0 and not unexpected


def say(sentence: str) -> None:
    print(f"==> {sentence}", flush=True)
