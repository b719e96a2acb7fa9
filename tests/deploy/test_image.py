"""What the image is made of: its packages, its locked libraries, its entry point, and the scripts that run in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from charts import ROOT, containers

import windlass

IMAGE = ROOT / "deploy" / "image"
CONTAINERFILE = (IMAGE / "Containerfile").read_text()
MANIFEST = ROOT / "deploy" / "manifests" / "windlass.yaml"
DEBIANS_PYTHON = Path("/usr/bin/python3")


def locked(file: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^ ]+)", (ROOT / file).read_text(), flags=re.MULTILINE))


def switch_container(name: str) -> dict[str, object]:
    objects = [one for one in yaml.safe_load_all(MANIFEST.read_text()) if one]
    switch = next(one for one in objects if one["metadata"]["name"] == "windlass-switch")
    return containers(switch)[name]


def test_every_package_has_its_reason():
    lines = [line for line in (IMAGE / "packages").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9.+-]+ +# \S.*", line)] == []


def test_all_files_that_the_image_copies_exist():
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(\S+) ", CONTAINERFILE, flags=re.MULTILINE)
    assert copied
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_agents_libraries_are_those_that_are_tested():
    agent, everything = locked("requirements-agent.lock"), locked("requirements.lock")
    assert agent.items() <= everything.items(), "`make lock` makes both"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name.lower() for name in project["dependencies"]} <= set(agent)
    assert "pyroute2" not in agent, "the lab's libraries are not on a Node"
    assert "://" not in (ROOT / "requirements-agent.lock").read_text(), "a lock names no hosts"


@pytest.mark.skipif(
    not DEBIANS_PYTHON.exists(), reason=f"there is no {DEBIANS_PYTHON}, with which the image's command runs"
)
def test_the_command_of_the_image_finds_its_libraries(tmp_path):
    library = tmp_path / "lib"
    library.mkdir()
    (library / "windlass").symlink_to(Path(windlass.__file__).parent)
    for package in Path(sys.executable).parents[1].glob("lib/python3*/site-packages/*"):
        (library / package.name).symlink_to(package)
    (tmp_path / "bin").mkdir()
    shutil.copy(IMAGE / "windlass", tmp_path / "bin")
    done = subprocess.run([tmp_path / "bin" / "windlass", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout == f"windlass {windlass.__version__}\n", done.stderr


# The switch's database ------------------------------------------------------------------------------------------------

needs_switch = pytest.mark.skipif(
    not Path("/usr/share/openvswitch/scripts/ovs-lib").exists(), reason="needs Open vSwitch; `make setup` installs it"
)
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")


def prepare_database(folder: Path) -> str:
    """The script of the init container, with another folder."""
    database = switch_container("database")
    (script,) = database["args"]
    assert script.count("/etc/openvswitch") == 1
    command = [*database["command"], script.replace("/etc/openvswitch", str(folder))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def schema_version(database: Path) -> str:
    command = ["ovsdb-tool", "db-version", str(database)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@needs_switch
def test_a_database_is_made_where_there_is_none_and_left_where_it_is(tmp_path):
    prepare_database(tmp_path)
    made = (tmp_path / "conf.db").read_bytes()
    assert schema_version(tmp_path / "conf.db") in SCHEMA.read_text()
    prepare_database(tmp_path)
    assert (tmp_path / "conf.db").read_bytes() == made
    assert [path.name for path in tmp_path.glob("conf.db*")] == ["conf.db"]


@needs_switch
def test_a_database_of_another_version_is_converted_with_its_contents(tmp_path):
    current = re.search(r'"version": "([^"]+)"', SCHEMA.read_text())[1]
    older = tmp_path / "older.ovsschema"
    older.write_text(re.sub(r'"cksum": "[^"]*",?', "", SCHEMA.read_text().replace(f'"{current}"', '"7.0.0"')))
    database = tmp_path / "conf.db"
    row = '["Open_vSwitch",{"op":"insert","table":"Open_vSwitch","row":{"system_type":"kept"}}]'
    subprocess.run(["ovsdb-tool", "create", str(database), str(older)], check=True)
    subprocess.run(["ovsdb-tool", "transact", str(database), row], check=True, stdout=subprocess.DEVNULL)
    prepare_database(tmp_path)
    assert schema_version(database) == current
    assert "kept" in database.read_text()
    assert len(list(tmp_path.glob("conf.db.backup7.0.0-*"))) == 1
