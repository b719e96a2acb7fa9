"""`windlass install-cni`: installs the plugin and its configuration completely, whatever existed before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from windlass.cli.install_cni import CONFIGURATION, CONFIGURATION_NAME, NotInstalled, install, install_cni
from windlass.cni.configurations import SUPPORTED_VERSIONS


@pytest.fixture
def node(tmp_path):
    """What is mounted of a Node, and the programs of the image."""
    image = tmp_path / "image"
    image.mkdir()
    for name, content in (("windlass-cni", b"\x7fELF one"), ("loopback", b"\x7fELF ours")):
        (image / name).write_bytes(content)
    return tmp_path


def put(node: Path) -> list[str]:
    binaries, configurations = node / "bin", node / "net.d"
    return list(install(binaries, configurations, (node / "image" / "windlass-cni",), (node / "image" / "loopback",)))


def test_on_a_new_node(node):
    said = put(node)
    assert said == [
        f"{node}/bin/windlass-cni: written, 8 bytes",
        f"{node}/bin/loopback: written, 9 bytes",
        f"{node}/net.d/{CONFIGURATION_NAME}: written, {(node / 'net.d' / CONFIGURATION_NAME).stat().st_size} bytes",
    ]
    assert (node / "bin" / "windlass-cni").read_bytes() == b"\x7fELF one"
    assert (node / "bin" / "windlass-cni").stat().st_mode & 0o777 == 0o755
    assert (node / "net.d" / CONFIGURATION_NAME).stat().st_mode & 0o777 == 0o644
    assert json.loads((node / "net.d" / CONFIGURATION_NAME).read_text()) == CONFIGURATION
    assert sorted(path.name for path in (node / "bin").iterdir()) == ["loopback", "windlass-cni"]
    assert [path.name for path in (node / "net.d").iterdir()] == [CONFIGURATION_NAME]


def test_the_configuration_is_one_that_the_plugin_serves():
    assert CONFIGURATION["cniVersion"] in SUPPORTED_VERSIONS
    assert set(CONFIGURATION["cniVersions"]) <= set(SUPPORTED_VERSIONS)
    assert SUPPORTED_VERSIONS[-1] in CONFIGURATION["cniVersions"]


def test_a_second_run_changes_nothing(node):
    put(node)
    before = {path: path.stat().st_ino for path in node.rglob("*") if path.is_file()}
    assert all(sentence.endswith(("is up to date", "exists, not replaced")) for sentence in put(node))
    assert {path: path.stat().st_ino for path in node.rglob("*") if path.is_file()} == before


def test_a_newer_plugin_takes_the_place_of_one_that_runs(node):
    """Writing into the file would fail (text file busy), or break a process that has just started it."""
    (node / "bin").mkdir()
    running = node / "bin" / "windlass-cni"
    running.write_bytes(Path("/bin/sleep").read_bytes())
    running.chmod(0o755)
    with subprocess.Popen([str(running), "60"]) as process:
        try:
            put(node)
            assert running.read_bytes() == b"\x7fELF one"
            assert process.poll() is None
        finally:
            process.kill()


def test_existing_files_of_the_node_are_kept(node):
    (node / "bin").mkdir()
    (node / "bin" / "loopback").write_bytes(b"\x7fELF theirs")
    assert f"{node}/bin/loopback: exists, not replaced" in put(node)
    assert (node / "bin" / "loopback").read_bytes() == b"\x7fELF theirs"


def test_an_interrupted_installation_is_completed(node):
    (node / "bin").mkdir()
    (node / "bin" / ".windlass-cni.new").write_bytes(b"half")
    put(node)
    assert sorted(path.name for path in (node / "bin").iterdir()) == ["loopback", "windlass-cni"]


def test_a_network_configuration_that_sorts_first_is_reported(node):
    (node / "net.d").mkdir()
    for name in ("05-bridge.conflist", "00-note.txt", "99-other.conf"):
        (node / "net.d" / name).write_text("{}")
    (told,) = [sentence for sentence in put(node) if "sorts before" in sentence]
    assert told == (
        f"{node}/net.d/05-bridge.conflist: sorts before {CONFIGURATION_NAME}, so the runtime attaches Pods to that "
        "network and not to Windlass; remove it when no Pod of this Node needs it any more"
    )


def test_the_configuration_is_written_last(node):
    """Where the plugin could not be put, the runtime must not think that the Node has a network."""
    (node / "bin").write_text("a file")
    with pytest.raises(NotInstalled, match="bin/windlass-cni: cannot be written: Not a directory"):
        put(node)
    assert not (node / "net.d").exists()


def test_it_fails_with_a_sentence(node):
    arguments = ["--binaries", f"{node}/bin", "--configurations", f"{node}/net.d", "--plugin", f"{node}/nothing"]
    done = CliRunner().invoke(install_cni, arguments)
    assert done.exit_code == 1
    assert "nothing: the program to install cannot be read: No such file or directory" in done.output


def test_it_is_a_command_of_windlass(node):
    command = [str(Path(sys.executable).with_name("windlass")), "install-cni", f"--plugin={node}/image/windlass-cni"]
    command += [f"--binaries={node}/bin", f"--configurations={node}/net.d"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert f"{node}/bin/windlass-cni: written" in done.stdout
