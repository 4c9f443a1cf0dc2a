"""What a machine installs whose image has no cloudspot, with a package index to which strangers publish."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

from cloudspot.boot.agentarchive import AgentArchive, code_digest, make_agent_archive
from cloudspot.boot.script import BootPlan, Install, render_boot_script
from cloudspot.local.filestore import FileStore
from cloudspot.model import BootProfile

pytestmark = pytest.mark.full


FETCH = """\
import shutil
def fetch(store_url, key, path):
    print("fetching", store_url, key)
    shutil.copyfile(store_url.partition("://")[2] + "/" + key, path)
"""
DOWN = "kill -TERM -- -$(ps -o pgid= $$ | tr -d ' ')"
OTHER_PLATFORM = "cp27-cp27m-macosx_10_9_x86_64"


class Image:
    """Boots the script of an image that may have no cloudspot; naps take no time and are written down.

    It is off at the first nap, be it before another installation or before another agent, unless ``is_patient``.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment: dict[str, str] = {}
        FileStore(f"file://{directory}/store").establish()  # else an agent waits until it is mounted
        (directory / "bin").mkdir()
        (directory / "bin" / "sleep").write_text(
            f'#!/usr/bin/env bash\n[ "$1" = 3240 ] && exec {shutil.which("sleep")} 1000\necho "$1" >> {directory}/naps\n'
            f"[ -e {directory}/patient ] || {DOWN}\n"
        )
        (directory / "bin" / "systemctl").write_text("#!/bin/sh\nexit 1\n")
        for program in (directory / "bin").iterdir():
            program.chmod(0o755)

    def stage(self, archive: AgentArchive) -> Install:
        (self.directory / "store" / "agents").mkdir(parents=True)
        (self.directory / "store" / "agents" / "1").write_bytes(archive.data)
        return Install(
            key="agents/1", sha256=archive.sha256, digest=archive.digest, requirements=archive.requirements
        )

    def bare_python(self) -> str:
        bare = self.directory / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
        return str(bare / "bin" / "python")

    def boot(
        self, install: Install, *, python: str, is_patient: bool = False
    ) -> subprocess.CompletedProcess[str]:
        directory = self.directory
        if is_patient:
            (directory / "patient").touch()
        profile = BootProfile(
            agent_python=python,
            shutdown_command=DOWN,
            environment={
                "CLOUDSPOT_NODE_DIR": str(directory / "node"),
                "CLOUDSPOT_ARENA": str(directory / "arena"),
            },
            fetch_code=FETCH,
        )
        plan = BootPlan(
            job_id="digits",
            submission_sha256="5" * 64,
            launch=3,
            store_url=f"file://{directory}/store",
            provider="local",
            profile=profile,
            max_seconds=3600.0,
            version="1.2.3",
            install=install,
        )
        return subprocess.run(
            ["bash", "-c", render_boot_script(plan)],
            env={"PATH": f"{directory}/bin:{os.environ['PATH']}", **self.environment},
            cwd=directory,
            capture_output=True,
            text=True,
            start_new_session=True,
        )

    def naps(self) -> list[str]:
        return (self.directory / "naps").read_text().split()

    def installed(self) -> dict[str, str]:
        """Return what the agent's environment holds: versions by name."""
        code = "import json; from importlib.metadata import distributions as d; print(json.dumps({x.name: x.version for x in d()}))"
        python = self.directory / "node" / "agent" / "venv" / "bin" / "python"
        return json.loads(subprocess.check_output([python, "-c", code], cwd=self.directory))


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def wheel(name: str, number: str, files: dict[str, str], *, tag: str = "py3-none-any") -> tuple[str, bytes]:
    stem = f"{name.replace('-', '_')}-{number}"
    members = {
        **files,
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n",
        f"{stem}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    members[f"{stem}.dist-info/RECORD"] = "".join(f"{path},,\n" for path in members)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in members.items():
            archive.writestr(path, text)
    return f"{stem}-{tag}.whl", target.getvalue()


class Index:
    """A package index on loopback to which anybody publishes."""

    def __init__(self, marks: Path) -> None:
        self.asked: list[str] = []
        """The names of which somebody wanted to know the versions."""
        self.marks = marks
        """Where a stranger's code leaves a file when it runs."""
        self._files: dict[str, bytes] = {}

    def publish(self, name: str, number: str, files: dict[str, str]) -> None:
        self._files.__setitem__(*wheel(name, number, files))

    def publish_strange(self, name: str, *numbers: str) -> None:
        """Publish code that says so when it is imported."""
        for number in numbers:
            code = f"from pathlib import Path\nPath({str(self.marks)!r}, '{name}').touch()\n"
            self.publish(name, number, {f"{name.replace('-', '_')}/__init__.py": code})

    def answer(self, path: str) -> bytes:
        _, kind, name, *_ = path.split("/")
        if kind == "files":
            return self._files[name]
        self.asked.append(name)
        links = (
            f'<a href="/files/{file}">{file}</a>'
            for file in self._files
            if file.startswith(f"{name.replace('-', '_')}-")
        )
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()


@pytest.fixture
def index(tmp_path: Path, image: Image) -> Iterator[Index]:
    """An index that the image's pip asks."""
    (tmp_path / "marks").mkdir()
    found = Index(tmp_path / "marks")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = found.answer(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if "/simple/" in self.path else "application/zip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    image.environment = {
        "PIP_INDEX_URL": f"http://127.0.0.1:{server.server_port}/simple/",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def submit_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``submit_from(fast_tag)``: the archive of a plugin of a third party, one of whose dependencies has this tag.

    If that does not fit the machines, pip does not either.
    """

    def install(name: str, *, tag: str = "py3-none-any", requires: str = "") -> None:
        package = name.replace("-", "_")
        _, data = wheel(name, "1.0", {f"{package}/__init__.py": ""}, tag=tag)
        site = tmp_path / "site"
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(site)
        with (site / f"{package}-1.0.dist-info" / "METADATA").open("a") as metadata:
            metadata.write(requires)

    def make(fast_tag: str) -> AgentArchive:
        # As installed from here, however old the metadata is that this environment has of it.
        first, _, rest = (distribution("cloudspot").read_text("METADATA") or "").partition("\n")
        info = tmp_path / "site" / f"cloudspot-{version('cloudspot')}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"{first}\nRequires-Dist: numpy>=1.26\n{rest}")
        install("sky-fast", tag=fast_tag)
        install("sky-base", requires="Provides-Extra: deep\n")
        if fast_tag == OTHER_PLATFORM:
            install("pip")
        install(
            "cloudspot-sky",
            requires="Requires-Dist: cloudspot\nRequires-Dist: sky-fast>=0.5\nRequires-Dist: sky-base[deep]\n",
        )
        return make_agent_archive(["cloudspot-sky"])

    monkeypatch.syspath_prepend(tmp_path / "site")
    return make


def test_an_image_that_has_the_very_code_gets_nothing_installed(image: Image):
    install = Install(
        key="agents/1", sha256="0" * 64, digest=code_digest(["cloudspot"]), requirements=("cloudspot",)
    )
    done = image.boot(install, python=sys.executable)
    assert "cloudspot: the image has this cloudspot\n" in done.stdout
    assert "fetching" not in done.stdout
    assert "this is a node" not in done.stderr
    assert "file:///" not in done.stderr


@pytest.mark.parametrize("what", ["missing", "another"])
def test_an_archive_that_does_not_come_or_is_another_runs_nothing_and_ends_the_machine(
    image: Image, what: str, submit_from
):
    install = image.stage(submit_from("py3-none-any"))
    staged = image.directory / "store" / "agents" / "1"
    mark = image.directory / "mark"
    if what == "missing":
        staged.unlink()
    else:
        code = f"open({str(mark)!r}, 'w').close()\n"
        strange = [
            ("installer", wheel("pip", "99", {"pip/__main__.py": code, "pip/__init__.py": code})),
            ("wheels", wheel("cloudspot", "99", {"cloudspot/__init__.py": code, "sitecustomize.py": code})),
        ]
        with tarfile.open(staged, "w") as tar:
            for folder, (file, data) in strange:
                member = tarfile.TarInfo(f"{folder}/{file}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    done = image.boot(install, python=sys.executable, is_patient=True)
    assert image.naps() == ["1", "2", "4", "8", "16", "32", "120"]
    assert done.stdout.count("fetching") == 7
    assert done.stderr.count(f"not {install.sha256}") == (7 if what == "another" else 0)
    why = {
        "missing": f"agents/1 cannot be fetched from file://{image.directory}/store: [Errno 2] No such file",
        "another": "OSError: agents/1 has the hash ",
    }
    said = f"cloudspot: this machine cannot serve its job: the agent cannot be installed: {why[what]}"
    assert done.stdout.splitlines()[-1].startswith(said)
    assert not mark.exists()
    assert [path.name for path in (image.directory / "node" / "agent").iterdir()] == ["install.py"]


def test_a_machine_like_the_submitters_installs_what_is_staged_and_asks_no_index(
    image: Image, index: Index, submit_from
):
    """Not even for what a stranger offers under our names, nor for what lies about in the image."""
    names = ("cloudspot", "cloudspot-sky", "sky-fast", "sky-base", "msgspec")
    for name in names:
        index.publish_strange(name, "0.2.0", "1.0", "99.0")
    install = image.stage(submit_from("py3-none-any"))
    left = image.directory / "node" / "agent" / "archive" / "wheels"
    left.mkdir(parents=True)
    file, data = wheel("cloudspot", "99.0", {"cloudspot/__init__.py": ""})
    (left / file).write_bytes(data)
    done = image.boot(install, python=image.bare_python())
    installed = image.installed()
    assert {name: installed.get(name) for name in names} == {
        "cloudspot": version("cloudspot"),
        "cloudspot-sky": "1.0",
        "sky-fast": "1.0",
        "sky-base": "1.0",
        "msgspec": version("msgspec"),
    }, done.stderr
    assert "numpy" not in installed
    assert index.asked == []
    assert list(index.marks.iterdir()) == []
    assert "cloudspot: the agent ended with status" in done.stdout  # it found no store


def test_where_the_compiled_dependencies_do_not_fit_only_those_come_from_the_index_at_the_submitters_version(
    image: Image, index: Index, submit_from
):
    for name in ("cloudspot", "cloudspot-sky", "sky-base"):
        index.publish_strange(name, "0.2.0", "1.0", "99.0")
    for name in ("sky-fast", "msgspec", "xxhash", "zstandard"):
        index.publish_strange(name, "99.0")
    index.publish("sky-fast", "1.0", {"sky_fast/__init__.py": ""})
    for name in ("msgspec", "xxhash", "zstandard"):  # which are compiled; the agent is not started with these
        index.publish(name, version(name), {f"{name}/__init__.py": ""})
    done = image.boot(image.stage(submit_from(OTHER_PLATFORM)), python=image.bare_python())
    assert f"sky_fast-1.0-{OTHER_PLATFORM}.whl is not a supported wheel" in done.stderr
    installed = image.installed()
    expected = {
        "cloudspot": version("cloudspot"),
        "cloudspot-sky": "1.0",
        "sky-fast": "1.0",
        "sky-base": "1.0",
        "msgspec": version("msgspec"),
        "xxhash": version("xxhash"),
        "zstandard": version("zstandard"),
    }
    assert {name: installed.get(name) for name in expected} == expected, done.stderr
    assert sorted(set(index.asked)) == ["msgspec", "sky-fast", "xxhash", "zstandard"]
    assert list(index.marks.iterdir()) == []
    assert done.stdout.count("fetching") == 1


def test_an_index_without_the_submitters_version_gives_no_other(image: Image, index: Index, submit_from):
    index.publish_strange("sky-fast", "0.9", "99.0")
    for name in ("msgspec", "xxhash", "zstandard"):
        index.publish(name, version(name), {f"{name}/__init__.py": ""})
    done = image.boot(image.stage(submit_from(OTHER_PLATFORM)), python=image.bare_python())
    said = "the package index does not give what this image lacks: Cannot install "
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"cloudspot: the agent could not be installed: {said}")
    assert last.endswith(": trying again in 1 s")
    assert "sky-fast" in index.asked
    assert "cloudspot" not in image.installed()
    assert list(index.marks.iterdir()) == []


def test_an_image_without_a_way_to_an_index_says_what_it_lacks(image: Image, submit_from):
    image.environment = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple/", "PIP_CONFIG_FILE": os.devnull}
    done = image.boot(image.stage(submit_from(OTHER_PLATFORM)), python=image.bare_python())
    said = "the package index does not give what this image lacks: no answer: 'NewConnectionError("
    assert said in done.stdout.splitlines()[-1]


def test_an_image_without_python_says_so_and_does_not_try(image: Image, submit_from):
    done = image.boot(image.stage(submit_from("py3-none-any")), python="/opt/none/python3", is_patient=True)
    assert done.stdout == (
        "cloudspot: this machine cannot serve its job: the image has no /opt/none/python3, which the agent"
        " needs\n"
    )
    assert image.naps() == ["120"]


def test_an_image_without_a_venv_module_says_so(image: Image, submit_from):
    python = image.directory / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$2" = venv ] && {{ echo "$0: No module named venv" >&2; exit 1; }}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = image.boot(image.stage(submit_from("py3-none-any")), python=str(python), is_patient=True)
    last = done.stdout.splitlines()[-1]
    assert last == (
        "cloudspot: this machine cannot serve its job: the agent cannot be installed:"
        f" {python}: No module named venv"
    )
    assert done.stderr.count("No module named venv") == 7  # it is shown as it comes, too
