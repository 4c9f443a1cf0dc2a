"""The setup on an image: one machine leaves it on its disk, and another one finds it there."""

import json
import logging
import shutil
import threading

import pytest

from cloudspot.agent.training.launching import kept_setup
from cloudspot.agent.training.programs.runtime import KeptSetupLost, Runtime
from cloudspot.jobstore.access.stored_records import find_record
from cloudspot.jobstore.jobs.submission import request_stop
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import SetupReady

JOB = "digits-1"
SETUP = "echo made > made; mkdir -p sub; cat needed > sub/copy; echo ran >> runs"
SCRIPT = """
from pathlib import Path
print("training finds", sorted(str(one) for one in Path(".").rglob("*") if one.is_file()))
print("runs", len(Path("runs").read_text().split()))
"""


@pytest.fixture
def baked(bench, wait_until):
    """``baked(run)``: run the setup as a job that bakes; return its node."""

    def bake(run):
        (bench.root / "code").mkdir(exist_ok=True)
        (bench.root / "code" / "needed").write_text("1")
        (bench.root / "code" / "old.py").write_text("")
        life = bench.life(SCRIPT, bakes=True, run=run)
        thread = threading.Thread(target=life.run)
        thread.start()
        wait_until(lambda: bench.ready() is not None)
        assert life.context.status.state == "setup"
        request_stop(bench.store, JOB, "image", resumption=0)
        thread.join()
        assert bench.exit_record().outcome == "stopped"
        assert bench.generations() == ()
        return life.context.node

    def ready():
        return find_record(bench.store, keys.setup_ready(JOB), SetupReady)

    bench.ready = ready
    return bake


@pytest.fixture
def image(bench, baked):
    """``image(run)``: a machine whose disk is that of one that has run the setup."""

    def make(run):
        node = baked(run)
        bench.store.delete(keys.stop(JOB, 0))
        new = bench.root / "new"
        new.mkdir()
        shutil.copytree(node.work, new / "work", symlinks=True)
        shutil.copy(node.baked, new / "image.json")
        return new

    return make


def start(bench, script=SCRIPT, **run):
    """Train on the machine of the image; return its log."""
    life = bench.life(script, launch=2, machine="new", run=run)
    life.run()
    record = bench.exit_record(launch=2)
    assert record.outcome == "succeeded", record.detail
    return bench.log(life)


@pytest.mark.full
def test_a_machine_says_that_the_setup_is_done_and_trains_nothing(bench, baked):
    node = baked({"setup": SETUP})
    kept = json.loads(node.baked.read_text())
    ready = bench.ready()
    assert (ready.instance_id, ready.key) == ("m-1", kept["key"])
    assert sorted(kept["code"]) == ["needed", "old.py", "train.py"]
    assert (node.work / "runs").read_text() == "ran\n"


@pytest.mark.full
def test_a_setup_that_the_image_holds_is_not_run(bench, image, caplog):
    image({"setup": SETUP})
    caplog.set_level(logging.INFO)
    lines = start(bench, setup=SETUP)
    assert "runs 1" in lines
    assert "the image holds this job's setup, so the setup is not run again" in caplog.messages
    assert any(
        line.endswith("['made', 'needed', 'old.py', 'runs', 'sub/copy', 'train.py']") for line in lines
    )


@pytest.mark.full
def test_code_that_the_setup_does_not_read_is_replaced_beside_what_it_has_made(bench, image):
    run = {"setup": SETUP, "setup_files": ["needed"]}
    image(run)
    (bench.root / "code" / "old.py").unlink()
    (bench.root / "code" / "sub").mkdir()
    (bench.root / "code" / "sub" / "new.py").write_text("")
    lines = start(bench, SCRIPT + "print('the new code')", **run)
    assert "runs 1" in lines
    assert "the new code" in lines
    files = "['made', 'needed', 'runs', 'sub/copy', 'sub/new.py', 'train.py']"
    assert any(line.endswith(files) for line in lines)


@pytest.mark.full
@pytest.mark.parametrize("what", ["setup", "needed", "any file"])
def test_a_setup_that_is_another_one_is_run_in_a_directory_that_holds_the_code_alone(
    bench, image, what, caplog
):
    run = {"setup": SETUP, "setup_files": ["needed"]}
    if what == "any file":
        del run["setup_files"]
    image(run)
    if what == "needed":
        (bench.root / "code" / "needed").write_text("2")
    run = {**run, "setup": SETUP + " # another"} if what == "setup" else run
    script = SCRIPT + "# another" if what == "any file" else SCRIPT
    caplog.set_level(logging.INFO)
    lines = start(bench, script, **run)
    assert "runs 1" in lines
    assert "the image holds another setup, so this job's setup is run" in caplog.messages


@pytest.mark.full
@pytest.mark.parametrize(
    "what", ["changed by the setup", "made by the setup", "made where a directory is now"]
)
def test_what_both_the_setup_and_the_new_code_change_is_made_by_the_setup_again(bench, image, caplog, what):
    run = {"setup": "echo ran >> runs; echo patched >> old.py; echo it > made", "setup_files": ["needed"]}
    image(run)
    code = bench.root / "code"
    if what == "changed by the setup":
        (code / "old.py").write_text("# new\n")
    elif what == "made by the setup":
        (code / "made").write_text("")
    else:
        (code / "made").mkdir()
        (code / "made" / "inside").write_text("")
        run["setup"] = "echo ran >> runs; echo patched >> old.py; echo it > made"
    caplog.set_level(logging.INFO)
    if what == "made where a directory is now":
        with pytest.raises(AssertionError, match="setup failed"):
            start(bench, **run)
    else:
        lines = start(bench, SCRIPT + "print(repr(Path('old.py').read_text()))", **run)
        assert "runs 1" in lines
        assert repr(("# new\n" if what == "changed by the setup" else "") + "patched\n") in lines
    assert any(
        one.startswith("the setup is run again because both it and the new code change ")
        for one in caplog.messages
    )


@pytest.mark.full
def test_what_the_setup_has_changed_and_the_code_has_not_stays_as_the_setup_made_it(bench, image):
    run = {"setup": "echo ran >> runs; echo patched >> old.py", "setup_files": ["needed"]}
    image(run)
    lines = start(bench, SCRIPT + "print(repr(Path('old.py').read_text()))", **run)
    assert "runs 1" in lines
    assert repr("patched\n") in lines


@pytest.mark.full
def test_a_link_that_leads_elsewhere_makes_another_setup(bench, image, caplog):
    code = bench.root / "code"
    code.mkdir()
    (code / "a").write_text("")
    (code / "b").write_text("")
    (code / "link").symlink_to("a")
    image({"setup": SETUP, "setup_files": ["link"]})
    (code / "link").unlink()
    (code / "link").symlink_to("b")
    caplog.set_level(logging.INFO)
    start(bench, setup=SETUP, setup_files=["link"])
    assert "the image holds another setup, so this job's setup is run" in caplog.messages


@pytest.mark.full
def test_what_cannot_be_read_is_no_setup(bench, image, caplog):
    new = image({"setup": SETUP})
    (new / "image.json").write_text("{")
    caplog.set_level(logging.INFO)
    assert "runs 1" in start(bench, setup=SETUP)
    assert "the image holds this job's setup, so the setup is not run again" not in caplog.messages
    assert any(one.startswith("the record of the image's setup cannot be read: ") for one in caplog.messages)


def test_a_machine_of_which_nobody_makes_an_image_ends_for_good(bench, monkeypatch):
    monkeypatch.setattr(kept_setup, "WAIT_SECONDS", 0.2)
    bench.life(SCRIPT, bakes=True, run={"setup": "true"}).run()
    record = bench.exit_record()
    assert (record.outcome, record.permanent) == ("failed", True)
    assert record.detail.startswith("no image of this machine was made within")


def test_a_setup_that_fails_leaves_nothing_for_an_image(bench):
    life = bench.life(SCRIPT, bakes=True, run={"setup": "exit 3"})
    life.run()
    assert bench.exit_record().exit_code == 3
    assert not life.context.node.baked.exists()


@pytest.mark.full
def test_a_file_that_may_run_now_may_run_beside_the_setup(bench, image):
    run = {"setup": SETUP, "setup_files": ["needed"]}
    image(run)
    (bench.root / "code" / "old.py").chmod(0o755)
    lines = start(bench, SCRIPT + "import os; print('may run', os.access('old.py', os.X_OK))", **run)
    assert "runs 1" in lines
    assert "may run True" in lines


@pytest.mark.full
def test_nothing_is_left_of_a_directory_that_the_code_has_no_more(bench, image):
    run = {"setup": SETUP, "setup_files": ["needed"]}
    deep = bench.root / "code" / "data" / "deep"
    deep.mkdir(parents=True)
    (deep / "x.txt").write_text("")
    image(run)
    shutil.rmtree(bench.root / "code" / "data")
    lines = start(bench, SCRIPT + "print('data', Path('data').exists())", **run)
    assert "runs 1" in lines
    assert "data False" in lines


class LostSetup(Runtime):
    """A machine that lacks what ``keep`` has left."""

    def start(self, *, setup_is_done, kept=None, check):
        if setup_is_done and kept is not None:
            raise KeptSetupLost("nothing is there")


@pytest.mark.full
def test_what_the_image_should_hold_and_does_not_is_made_anew_and_inputs_stay(bench, image, monkeypatch):
    """The inputs must not be in the directory that is replaced."""
    (bench.root / "input").write_text("input")
    run = {"setup": SETUP, "setup_files": ["needed"]}
    image(run)
    life = bench.life(
        SCRIPT + "print(Path('data/one').read_text())",
        launch=2,
        machine="new",
        run=run,
        data={"one": {"url": f"file://{bench.root}/input"}},
    )
    life.runtime = LostSetup(life.context.node, life.context.node.train_python)
    life.run()
    record = bench.exit_record(launch=2)
    assert record.outcome == "succeeded", record.detail
    lines = bench.log(life)
    assert "runs 1" in lines
    assert "input" in lines
