"""The wheels that are made of what is installed."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import sys
import tarfile
import zipfile

import pytest

from cloudspot.boot import agentarchive
from cloudspot.boot.agentarchive import code_digest, make_agent_archive
from cloudspot.errors import CloudspotError


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def install(
    site, name: str, files: dict[str, str], *, record: bool = True, requires: str = "", tag: str = ""
) -> None:
    """Put a distribution on the path as pip does, or (without a record) as an editable install."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    listed = dict(files)
    listed[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    if tag:
        listed[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n{tag}"
    for path, text in listed.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    lines = [f"{path},," for path in listed] if record else [f"{info}/METADATA,,"]
    lines += ["../../../bin/tool,,", f"{info}/RECORD,,"]
    (site / info / "RECORD").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_equal_code_gives_equal_bytes():
    first, second = make_agent_archive([]), make_agent_archive([])
    assert first == second
    assert first.data == second.data
    assert hashlib.sha256(first.data).hexdigest() == first.sha256
    assert first.requirements == ("cloudspot",)


def test_it_holds_cloudspot_the_plugin_and_what_installs_them():
    names = members(make_agent_archive(["cloudspot-aws", "cloudspot"]).data)
    projects = [name.partition("-")[0] for name in sorted(names)]
    assert [name for name in projects if name != "pip"] == ["cloudspot", "cloudspot_aws"]


def test_a_wheel_lists_what_it_holds_with_its_hashes(site):
    install(site, "sky-tools", {"sky_tools/__init__.py": "x = 1\n", "sky_tools/data.sh": "true\n"})
    wheels = members(make_agent_archive(["sky-tools"]).data)
    wheel = zipfile.ZipFile(io.BytesIO(wheels["sky_tools-1.0-py3-none-any.whl"]))
    assert wheel.testzip() is None
    record = "sky_tools-1.0.dist-info/RECORD"
    rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
    assert sorted(row[0] for row in rows) == sorted(wheel.namelist())
    assert "sky_tools/data.sh" in wheel.namelist()
    assert not [name for name in wheel.namelist() if "bin" in name]
    sizes = {row[0]: row[2] for row in rows}
    assert sizes["sky_tools/__init__.py"] == "6"
    assert sizes[record] == ""


def test_an_editable_install_gives_its_sources_and_the_same_digest(site):
    files = {"sky_tools/__init__.py": "x = 1\n", "sky_tools/part/more.py": "y = 2\n"}
    install(site, "sky-tools", files)
    installed = code_digest(["sky-tools"])
    (site / "sky_tools-1.0.dist-info" / "RECORD").write_text("sky_tools-1.0.dist-info/METADATA,,\n")
    (site / "sky_tools" / "__pycache__").mkdir()
    (site / "sky_tools" / "__pycache__" / "more.pyc").write_text("junk")
    assert code_digest(["sky-tools"]) == installed
    (site / "sky_tools" / "part" / "more.py").write_text("y = 3\n")
    assert code_digest(["sky-tools"]) != installed


def test_dependencies_come_along_when_asked_for_with_the_tags_of_their_platform(site):
    tags = "Tag: cp311-cp311-manylinux_2_17_x86_64\nTag: cp311-cp311-manylinux2014_x86_64\n"
    install(site, "sky-fast", {"sky_fast/__init__.py": ""}, tag=tags)
    requires = 'Requires-Dist: Sky_Fast (>=1)\nRequires-Dist: absent; python_version < "3"\nRequires-Dist: pytest; extra == "t"\n'
    install(site, "sky-tools", {"sky_tools/__init__.py": ""}, requires=requires)
    without = members(make_agent_archive(["sky-tools"]).data)
    names = members(make_agent_archive(["sky-tools"], with_dependencies=True).data)
    assert "sky_fast-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl" in names
    assert [name for name in names if re.match("click|msgspec|pluggy", name)] != []
    assert [name for name in names if name.startswith("pytest")] == []
    assert [name for name in without if re.match("click|sky_fast", name)] == []


def test_extras_that_are_asked_for_come_along_and_no_others(site):
    """google-cloud-compute needs google-api-core[grpc], which alone needs grpcio-status."""
    extras = (
        "Requires-Dist: sky-wire[Fast_Er,safe]>=1\n",
        'Requires-Dist: sky-line ; extra == "fast-er"\nRequires-Dist: sky-base[deep]\n',
        "Requires-Dist: sky-deep ; extra == 'deep'\nRequires-Dist: sky-salt ; (os_name) and extra == \"salt\"\n",
    )
    for name, requires in zip(("sky-tools", "sky-wire", "sky-base"), extras, strict=True):
        install(site, name, {f"{name.replace('-', '_')}/__init__.py": ""}, requires=requires)
    for name in ("sky-line", "sky-salt", "sky-deep"):
        install(site, name, {f"{name.replace('-', '_')}/__init__.py": ""})
    names = members(make_agent_archive(["sky-tools"], with_dependencies=True).data)
    found = {name.partition("-")[0] for name in names if name.startswith("sky")}
    assert found == {"sky_tools", "sky_wire", "sky_base", "sky_line", "sky_deep"}


def test_what_is_not_installed_is_named():
    with pytest.raises(CloudspotError, match="no-such-thing is not installed as a distribution"):
        make_agent_archive(["no-such-thing"])


def test_a_node_says_what_it_has(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["agentarchive", "cloudspot"])
    assert len(agentarchive.code_digest(["cloudspot"])) == 64
