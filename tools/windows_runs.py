"""Runs tests in Windows' Python under Wine and scenarios with a Windows Node, and counts what came of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# A suite that does not end: a test that is stuck under Wine ends the whole process after TEST_SECONDS.
SUITE_SECONDS, TEST_SECONDS = 1800, 600
# The datapath under Wine takes some hundred packets a second, so all time limits of the lab are longer.
TIME_SCALE = "6"


@dataclass
class Row:
    """What came of a suite or a scenario. `passed`, `failed`: of tests, or of probes."""

    name: str
    passed: int
    failed: int
    seconds: float
    skipped: Counter[str] = field(default_factory=Counter)  # by reason
    differences: Counter[str] = field(default_factory=Counter)  # of probes that passed, as the scenario declares them
    trouble: str = ""


@dataclass
class WindowsPython:
    """Python for Windows, in a namespace and with a Wine prefix of its own."""

    namespace: str
    program: Path
    environment: dict[str, str]

    def run_tests(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        options = ("-q", "-p", "no:cacheprovider", "-o", f"timeout={TEST_SECONDS}")
        return self.run(str(self.program), "-m", "pytest", *options, *arguments)

    def run(self, *command: str) -> subprocess.CompletedProcess[bytes]:
        """Wine's programs want pipes for their output; `cat` is the other end."""
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as output:
            try:
                return subprocess.run(
                    ["ip", "netns", "exec", self.namespace, "wine", *command],
                    cwd=REPOSITORY,
                    env=self.environment,
                    check=False,
                    timeout=SUITE_SECONDS,
                    stdin=subprocess.DEVNULL,
                    stdout=output.stdin,
                    stderr=subprocess.STDOUT,
                )
            except subprocess.TimeoutExpired:
                self.stop()
                return subprocess.CompletedProcess(command, 1)
            finally:
                if output.stdin:
                    output.stdin.close()

    def stop(self) -> None:
        subprocess.run(["wineserver", "-k"], env=self.environment, check=False, capture_output=True)  # of this prefix
        # It kills a server that is too slow to end by itself, and then the server's clients stay.
        left = subprocess.run(["ip", "netns", "pids", self.namespace], stdout=subprocess.PIPE, check=False).stdout
        for pid in map(int, left.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def windows_python() -> Iterator[WindowsPython]:
    asked = subprocess.run([REPOSITORY / "tools" / "build-windows", "--where"], stdout=subprocess.PIPE, check=True)
    place = Path(asked.stdout.decode().strip())
    _remove_namespaces_of_dead_runs()
    namespace = f"windlass-wine-{os.getpid()}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        python = WindowsPython(namespace, place / "python" / "python.exe", _environment(place, Path(work)))
        subprocess.run(["ip", "netns", "add", namespace], check=True)
        try:
            subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
            python.run("winecfg", "-v", "win10")
            library = (place / "python" / "bcryptprimitives.dll").read_bytes()  # for host-local.exe
            Path(work, "prefix/drive_c/windows/system32/bcryptprimitives.dll").write_bytes(library)
            yield python
        finally:
            python.stop()
            subprocess.run(["ip", "netns", "delete", namespace], check=False)


def _environment(place: Path, work: Path) -> dict[str, str]:
    built = REPOSITORY / "build" / "windows"
    return {
        **os.environ,
        "WINEPREFIX": str(work / "prefix"),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree,mshtml=",
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": _on_windows(REPOSITORY / "src"),
        "WINDLASS_WINDOWS_OVS": _on_windows(place / "ovs"),
        "WINDLASS_WINDOWS_PLUGIN": _on_windows(built / "windlass-cni.exe"),
        "WINDLASS_WINDOWS_HOST_LOCAL": _on_windows(place / "cni" / "host-local.exe"),
        "WINDLASS_STAND_IN_IPHLPAPI": _on_windows(built / "iphlpapi-stand-in.dll"),
        "WINDLASS_STAND_IN_HCN": _on_windows(built / "compute_network-stand-in.dll"),
        "WINDLASS_STAND_IN_NETSH": _on_windows(built / "netsh-stand-in.exe"),
        "WINDLASS_STAND_IN_HNS": str(REPOSITORY / "tests/windows/stand_ins/host_network_service.py"),
    }


def _on_windows(path: Path) -> str:
    return f"Z:{path}".replace("/", "\\")


def _remove_namespaces_of_dead_runs() -> None:
    for path in Path("/run/netns").glob("windlass-wine-*"):
        if not Path("/proc", path.name.rpartition("-")[2]).exists():
            subprocess.run(["ip", "netns", "delete", path.name], check=False)


def run_suite(python: WindowsPython, name: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        began = time.monotonic()
        done = python.run_tests([name, f"--junitxml={_on_windows(report)}"])
        seconds = time.monotonic() - began
        if not report.exists():
            return Row(name, 0, 1, seconds, trouble="it did not end by itself: a test is stuck, or Python has ended")
        row = _counted(name, seconds, ET.parse(report))  # noqa: S314 - our own report
    if done.returncode and not row.failed:
        row.failed, row.trouble = 1, f"pytest ended with {done.returncode}"
    return row


def _counted(name: str, seconds: float, report: ET.ElementTree) -> Row:
    row = Row(name, 0, 0, seconds)
    for case in report.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            row.failed += 1
        elif (skipped := case.find("skipped")) is not None:
            row.skipped[skipped.get("message", "")] += 1
        else:
            row.passed += 1
    return row


def run_scenario(name: str) -> Row:
    with tempfile.NamedTemporaryFile(suffix=".json") as results:
        began = time.monotonic()
        environment = {"WINDLASS_LAB_TIME_SCALE": TIME_SCALE, **os.environ}
        command = [REPOSITORY / ".venv/bin/windlass", "lab", "run", "--windows", "wine", "--json", results.name, name]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False)
        seconds = time.monotonic() - began
        written = Path(results.name).read_bytes()
    if not written:
        return Row(name, 0, 1, seconds, trouble=f"the run ended with {done.returncode}")
    report = json.loads(written)
    errors = [one["error"] for one in report["scenarios"] if "error" in one]
    row = Row(name, report["passed"], report["failed"] + len(errors), seconds, trouble="; ".join(errors))
    for scenario in report["scenarios"]:
        row.differences.update(probe["difference"] for probe in scenario["probes"] if "difference" in probe)
    return row


def print_table(rows: Sequence[Row]) -> None:
    """The skips of each suite follow with their reasons."""
    say("what came of it: tests of suites, probes of scenarios")
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  passed  failed  skipped  seconds")
    for row in (*rows, _total(rows)):
        print(f"{row.name:{width}}  {row.passed:6}  {row.failed:6}  {row.skipped.total():7}  {row.seconds:7.0f}")
        for reason, count in row.skipped.most_common() if row.name != _TOTAL else ():
            print(f"{'':{width}}  {count:4} skipped: {reason}")
        for difference, count in row.differences.most_common():
            print(f"{'':{width}}  {count:4} passed with a declared difference: {difference}")
        if row.trouble:
            print(f"{'':{width}}  {row.trouble}")
    print(flush=True)


_TOTAL = "all"


def _total(rows: Sequence[Row]) -> Row:
    sums = (sum(row.passed for row in rows), sum(row.failed for row in rows), sum(row.seconds for row in rows))
    return Row(_TOTAL, *sums, skipped=sum((row.skipped for row in rows), Counter()))


def say(sentence: str) -> None:
    print(f"==> {sentence}", flush=True)
