"""A plugin that was finished from the scaffold, installed as wheels without the source tree, keeps its promises."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner

from cloudspot.cli.main import program
from cloudspot.testing import promises

pytestmark = pytest.mark.full


FINISHED = Path(__file__).parent / "finished"
ROOT = Path(__file__).parents[2]
FIT = "test_all_that_the_cloud_sells_is_offered_that_has_the_resources_and_nothing_else"
NEEDS_NO_FAULT = {
    "test_a_link_ends_with_its_time",
    "test_a_link_reads_its_object_and_does_nothing_else",
    "test_a_stream_of_many_parts_has_them_in_order",
}
NO_MACHINES = "machines of paper do not boot"


def run(*words, cwd, status=0):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(900)
def test_a_plugin_finished_from_the_scaffold_keeps_every_promise_without_the_source_tree(tmp_path):
    project, wheels, venv = tmp_path / "project", tmp_path / "wheels", tmp_path / "venv"
    assert CliRunner().invoke(program, ["plugin", "new", "paper", str(project)]).exit_code == 0
    for file in FINISHED.glob("*.py"):
        shutil.copy(file, project / ("tests" if file.name == "account.py" else "cloudspot_paper"))
    kits = project / "tests" / "test_kits.py"
    (promise,) = (name for name in vars(promises.WholeJobTests) if name.startswith("test_"))
    text = kits.read_text()
    undisturbed = {
        name for name in vars(promises.StoreFaultTests) if name.startswith("test_")
    } - NEEDS_NO_FAULT
    declared = {
        "TestJobs(WholeJobTests)": {promise: NO_MACHINES},
        "TestStoreFaults(StoreFaultTests)": dict.fromkeys(sorted(undisturbed), "nothing disturbs SQLite"),
        "TestProvisioner(ProvisionerTests, PurchaseTests, OfferTests)": {
            "test_a_machine_has_the_disk_that_was_asked_for": "paper has no disks",
            f"{FIT}[accelerators]": "paper has no accelerators",
        },
    }
    for head, line in (
        ("class TestStore(ObjectStoreTests):\n", "    can_presign = False\n"),
        ("class TestStoreFaults(StoreFaultTests):\n", "    can_presign = False\n"),
        *((f"class {head}:\n", f"    deviations = {reasons!r}\n") for head, reasons in declared.items()),
    ):
        assert head in text
        text = text.replace(head, head + line)
    kits.write_text(text)

    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT, project, cwd=tmp_path)
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    python = venv / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", *wheels.glob("*.whl"), cwd=tmp_path)
    # The dependencies are those of the environment of this test. What it has installed as editable is left out.
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shutil.rmtree(project / "cloudspot_paper")

    where = "import cloudspot, cloudspot_paper; print(cloudspot.__file__, cloudspot_paper.__file__)"
    assert all(one.startswith(site) for one in run(python, "-c", where, cwd=tmp_path).split())
    run(venv / "bin" / "cloudspot", "plugin", "check", "paper", "--json", tmp_path / "report", cwd=project)
    report = json.loads((tmp_path / "report").read_text())
    assert report["not_tested"] == []
    assert [row["kit"] for row in report["kits"] if row["skipped"]] == []
    deviations = {name.partition("[")[0] for row in report["kits"] for name in row["deviations"]}
    assert deviations == {name.partition("[")[0] for reasons in declared.values() for name in reasons}
    assert sum(row["passed"] for row in report["kits"]) > 150
