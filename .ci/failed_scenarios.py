"""The paths of the scenarios with a failed probe, from a result of `windlass lab run scenarios/ --json`."""

import json
import sys
from pathlib import Path

results = json.loads(Path(sys.argv[1]).read_text())
failed = [one["name"] for one in results["scenarios"] if not all(probe["passed"] for probe in one["probes"])]
if not failed:
    sys.exit("no scenario of the result has a failed probe: the run ended for another reason")
sys.stdout.write(" ".join(f"scenarios/{name}" for name in failed) + "\n")
