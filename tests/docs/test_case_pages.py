"""The pages under docs/cases: their flows are those of the pipeline, and their links work.

Pictures and flows come from real traces (`make cases`, which needs a lab). Here it is only asked whether the flows they
name are still among those that the same manifests give, so that a page cannot rot unseen.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from windlass.lab.scenarios import scenario_files

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

from case_pages import indexes, marks  # noqa: E402 (tools are no package that is installed)
from case_pages.flow_words import bucket_in_words, in_words, rendered  # noqa: E402

FOLDER = ROOT / "docs" / "cases"
INDEX = (FOLDER / "README.md").read_text()
PAGES = {file.name: file.read_text() for file in sorted(FOLDER.glob("*.md")) if file.name != "README.md"}
CASES = [case for page in PAGES.values() for case in marks.cases(page)]
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
_BUCKET = re.compile(r"^group (\d+) bucket (\d+) -> ", re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_its_flows_are_those_that_the_pipeline_makes(name):
    found = list(marks.flows(PAGES[name]))
    assert found
    for case, node, flow in found:
        made = rendered(ROOT / case.scenario, node)
        assert flow in made, f"no longer on {node} in {case.scenario}; run `make cases`"
        assert f"{made[flow]}\n{flow}\n" in PAGES[name], "the reason above it is another now; run `make cases`"


@pytest.mark.parametrize("part", ["0x3000/0xf000", "0x4000/0xe000"])
def test_a_page_does_not_depend_on_the_random_source_port_of_a_pod(part):
    """One flow matches each part of the ports, and the port of a connection is in either."""
    assert in_words(f"Uplink 200 ip tcp tcp_dst={part} -> goto UnSNAT", {}) == (
        "Uplink 200 ip tcp tcp_dst=12288-24575 -> goto UnSNAT"
    )


@pytest.mark.parametrize("name", PAGES)
def test_its_buckets_are_those_that_the_pipeline_makes(name):
    for case, node, group, bucket, line in buckets(PAGES[name]):
        words, _ = bucket_in_words(ROOT / case.scenario, node, group, bucket)
        assert line == words, f"no longer on {node} in {case.scenario}; run `make cases`"


@pytest.mark.parametrize("name", PAGES)
def test_every_case_of_it_is_filled_and_has_its_picture(name):
    assert marks.cases(PAGES[name])
    for case in marks.cases(PAGES[name]):
        assert f"](pictures/{case.picture})" in PAGES[name], f"{case.probe}: run `make cases`"
        assert (FOLDER / "pictures" / case.picture).read_text().startswith("<svg ")


def test_every_picture_is_shown():
    assert {file.name for file in FOLDER.glob("pictures/*")} == {case.picture for case in CASES}


@pytest.mark.parametrize("name", PAGES)
def test_every_case_is_a_probe_of_a_design_note_that_still_is_there(name):
    for case in marks.cases(PAGES[name]):
        steps = {step.name: step.probes for step in scenario_files.find_one(ROOT / case.scenario).read().steps}
        (probe,) = (probe for probe in steps[case.step] if probe.name == case.probe)
        assert probe.metadata.labels["seed"] in {"000", "001", "002"}


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_an_intro_and_the_differences_from_the_notes(name):
    title, paragraph = PAGES[name].split("\n\n")[:2]
    assert title.startswith("# ")
    assert len(paragraph) > 200, "first of all one paragraph that says what happens"
    assert "## What differs from " in PAGES[name]


def test_the_index_links_every_case_with_its_scenario():
    for name, page in PAGES.items():
        for title, heading, case in indexes.sections(page):
            link = f"[{title}: {heading}]({name}#{indexes.anchor(heading)})"
            assert f"| {link} | `{case.scenario}`, `{case.probe}` |" in INDEX, "run `make cases`"


@pytest.mark.parametrize(("name", "page"), [("README.md", INDEX), *PAGES.items()])
def test_every_link_leads_somewhere(name, page):
    for path, part in _LINK.findall(page):
        target = (FOLDER / path) if path else FOLDER / name
        assert target.exists(), f"{path}: there is no such file"
        if part:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert part in map(indexes.anchor, headings), f"{path}#{part}: there is no such heading"


def buckets(page):
    """Each bucket on the page: its case, the Node that has it, its numbers, and the line."""
    for block in re.findall(r"<!-- case: .*?<!-- end of case -->", page, re.DOTALL):
        (case,) = marks.cases(block)
        for visit in re.findall(r"^\*\*.*? on (\S+?)\*\*$(.*?)(?=^\*\*|\Z)", block, re.DOTALL | re.MULTILINE):
            for line in visit[1].splitlines():
                if found := _BUCKET.match(line):
                    yield case, visit[0], int(found[1]), int(found[2]), line
