"""The sections about policies of docs/conformance.md: writing one keeps the rest of the page."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from windlass.lab.kubelets.conformance import FAILED, PASSED, Result

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from policy_section import KUBERNETES, NETWORK_POLICY_API, PolicyRun, write

PAGE = "# Tests\n\n## Policies\n\nold\n\n## SCTP\n\nold too\n\n## All 3 of them\n\n| test |\n"


@pytest.fixture
def page(tmp_path):
    file = tmp_path / "page.md"
    file.write_text(PAGE)
    return file


def record(folder, name, *, only_sctp):
    run = PolicyRun(name, "encap", 90.0, [Result("one", PASSED), Result("two", FAILED)], only_sctp)
    (folder / f"policy-{name}").mkdir()
    (folder / f"policy-{name}" / "run.json").write_bytes(msgspec.json.encode(run))


def headings(page):
    return [line for line in page.read_text().splitlines() if line.startswith("## ")]


def test_a_run_with_sctp_only_replaces_its_own_section(tmp_path, page):
    record(tmp_path, KUBERNETES, only_sctp=True)
    write(tmp_path, page)
    text = page.read_text()
    assert headings(page) == ["## Policies", "## SCTP", "## All 3 of them"]
    assert "\nold\n" in text
    assert "old too" not in text
    assert "| encap | 1 of 3 | 1 | 2 |" in text


def test_the_section_of_sctp_stays_when_the_other_one_is_written(tmp_path, page):
    record(tmp_path, NETWORK_POLICY_API, only_sctp=False)
    write(tmp_path, page)
    assert headings(page) == ["## Policies", "## SCTP", "## All 3 of them"]
    assert "\nold\n" not in page.read_text()
    assert "old too" in page.read_text()


def test_a_first_section_of_sctp_comes_before_the_list_of_all_tests(tmp_path, page):
    page.write_text(PAGE.replace("## SCTP\n\nold too\n\n", ""))
    record(tmp_path, KUBERNETES, only_sctp=True)
    write(tmp_path, page)
    assert headings(page) == ["## Policies", "## SCTP", "## All 3 of them"]
