"""Image archives: their contents, as a container runtime reads them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import msgspec

from windlass.lab.kubelets import archives
from windlass.lab.kubelets.archives import Image


def _layer(folder: Path, name: str) -> Path:
    root = folder / name
    (root / "bin").mkdir(parents=True)
    (root / "bin" / name).write_text(f"#!/bin/sh\n: {name}\n")
    (root / "bin" / name).chmod(0o755)
    return archives.layer(root, folder / f"{name}.layer")


def _content(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {entry.name: (opened.extractfile(entry) or io.BytesIO()).read() for entry in opened.getmembers()}


def test_an_archive_has_names_layers_and_command_in_the_expected_places(tmp_path: Path):
    layers = (_layer(tmp_path, "one"), _layer(tmp_path, "two"))
    archives.write(
        Image(("a.example/web:1", "b.example/web:2"), layers, entrypoint=("/bin/one",)), tmp_path / "image.tar"
    )
    content = _content(tmp_path / "image.tar")
    (manifest,) = msgspec.json.decode(content["manifest.json"])
    assert manifest["RepoTags"] == ["a.example/web:1", "b.example/web:2"]
    assert [content[name] for name in manifest["Layers"]] == [layer.read_bytes() for layer in layers]
    config = msgspec.json.decode(content[manifest["Config"]])
    assert config["config"]["Entrypoint"] == ["/bin/one"]
    assert config["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(layer.read_bytes()).hexdigest()}" for layer in layers
    ]


def test_a_layer_does_not_depend_on_owners_and_times(tmp_path: Path):
    layer = _layer(tmp_path, "one")
    before = layer.read_bytes()
    (tmp_path / "one" / "bin" / "one").touch()
    assert archives.layer(tmp_path / "one", layer).read_bytes() == before
    with tarfile.open(layer) as opened:
        entry = opened.getmember("bin/one")
        assert (entry.uid, entry.gid, entry.mode & 0o777) == (0, 0, 0o755)
