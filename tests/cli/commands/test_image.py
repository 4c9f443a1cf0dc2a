"""``cloudspot image``: what it says and refuses; whole images are made in tests/e2e/test_image_bake.py."""

import threading
from datetime import datetime, timezone
from types import SimpleNamespace

import msgspec
import pytest
from support.records.made_records import Records

from cloudspot.calls import InstancesResult
from cloudspot.cli import config
from cloudspot.cli.commands import image as image_module
from cloudspot.cli.preparing.prospects import setup_text
from cloudspot.errors import AuthError, TransientError
from cloudspot.interfaces import ImageHost
from cloudspot.jobstore.access.stored_records import find_bytes
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import SetupReady
from cloudspot.model import Capability, Instance, InstanceState, MachineImage
from cloudspot.registry import open_provider


def made(number, **fields):
    fields = {"job_name": "digits", "is_ready": True, "size_gib": 65.0, "where": "moon-1", **fields}
    return MachineImage(
        id=f"image-{number}",
        key="0" * 40,
        created_at=datetime(2026, 11, 27, 20, tzinfo=timezone.utc),
        **fields,
    )


class ListedImages(ImageHost):
    def __init__(self, *images):
        self.listed = list(images)

    def find(self, key):
        return next((one for one in self.listed if one.key == key), None)

    def images(self):
        return self.listed

    def save(self, instance, *, key, job_name):
        raise NotImplementedError

    def remove(self, image_id):
        self.listed = [one for one in self.listed if one.id != image_id]


@pytest.fixture
def host(monkeypatch):
    """Let the local provider keep these images."""
    host = ListedImages(
        made(1),
        made(2, job_name="count", is_ready=False),
        made(3, is_ready=False, failure="no room", size_gib=None),
    )

    def opened(name, spec):
        provider = open_provider(name, spec)
        monkeypatch.setattr(type(provider), "image_host", lambda _self: host)
        monkeypatch.setattr(type(provider), "capabilities", frozenset({Capability.IMAGES}))
        return provider

    monkeypatch.setattr(image_module, "open_configured", opened)
    monkeypatch.setattr(config, "open_configured", opened)
    return host


def test_images_are_listed_by_their_jobs(jobs, host):
    lines = jobs.run("image", "ls").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["IMAGE", "JOB", "MADE", "SIZE", "STATE", "WHERE"],
        ["image-2", "count", "2026-11-27T20:00:00Z", "65", "GiB", "being", "made", "moon-1"],
        ["image-1", "digits", "2026-11-27T20:00:00Z", "65", "GiB", "ready", "moon-1"],
        ["image-3", "digits", "2026-11-27T20:00:00Z", "no", "room", "moon-1"],
    ]
    host.listed = []
    assert jobs.run("image", "ls").stdout == "local has no image made by `cloudspot image bake`\n"


def test_images_are_listed_as_json(jobs, host):
    found = jobs.run_json("image", "ls")
    assert [one["id"] for one in found] == ["image-2", "image-1", "image-3"]
    assert set(found[0]) == set(MachineImage.__struct_fields__)


def test_only_known_images_are_removed_and_none_if_one_is_unknown(jobs, host):
    refused = jobs.run("image", "rm", "image-1", "image-9", status=1)
    assert "local has no image 'image-9' made by `cloudspot image bake`" in refused.stderr
    assert len(host.listed) == 3
    assert jobs.run("image", "rm", "image-1", "image-2").stdout == "removed image-1\nremoved image-2\n"
    assert [one.id for one in host.listed] == ["image-3"]


@pytest.mark.parametrize("words", [["bake", "JOB_FILE"], ["ls"], ["rm", "image-1"]])
def test_a_provider_without_images_says_what_else_there_is(jobs, words):
    refused = jobs.run(
        "image", *[str(jobs.job_file) if one == "JOB_FILE" else one for one in words], status=1
    )
    assert "provider 'local' makes no images of machines; run.image can name a container" in refused.stderr


def test_who_plans_is_told_from_which_images_machines_start():
    def offer(zone, **fields):
        return Records.offer(zone, image=f"projects/p/{zone}", **fields)

    holding, plain = offer("moon-1a", has_setup=True), offer("moon-1b")
    assert list(setup_text([plain])) == []
    assert list(setup_text([holding])) == ["machines start from moon-1a, with the setup done"]
    assert list(setup_text([holding, plain])) == [
        "machines start from moon-1a, for some of the offers, with the setup done"
    ]


# --- making one -----------------------------------------------------------------------------------


class CopyingImages(ListedImages):
    """Begins images that are ready, or fail, after some looks."""

    def __init__(self, job, *images):
        super().__init__(*images)
        self.job = job
        self.outcomes = []
        """What each image begun comes to, after how many looks."""
        self.saved = []
        self.said = []
        """What was asked for, with whether the job was asked to stop by then."""
        self.fails = {}
        """What a call raises, once."""

    def _note(self, what):
        self.said.append((what, find_bytes(self.job.store, keys.stop(self.job.id, 0)) is not None))
        if what in self.fails:
            raise self.fails.pop(what)

    def find(self, key):
        self._note("find")
        if not self.saved:
            return super().find(key)
        ((image, outcome, looks),) = self.saved
        if looks == 0 and not image.failure:
            image = msgspec.structs.replace(image, **outcome)
        self.saved = [(image, outcome, max(0, looks - 1))]
        return image

    def save(self, instance, *, key, job_name):
        assert (key, job_name) == (KEY, "digits")
        outcome, looks = self.outcomes.pop(0)
        image = made(f"of-{instance.id}", is_ready=False)
        self.saved = [(image, outcome, looks)]
        self._note("save")
        return image

    def remove(self, image_id):
        self._note("remove")
        self.saved = [one for one in self.saved if one[0].id != image_id]
        super().remove(image_id)


class Machines:
    def __init__(self):
        self.running = []

    def instances(self, request):
        assert request.job_id == "digits-image-1"
        return InstancesResult(
            instances=tuple(
                Instance(id=one, job_id=request.job_id, launch=1, state=InstanceState.RUNNING, store_url="")
                for one in self.running
            )
        )


KEY = "0" * 40


@pytest.fixture
def bench(monkeypatch, jobs):
    """A bake job whose machine ``m-1`` has done the setup."""
    monkeypatch.setattr(image_module, "LOOK_SECONDS", 0.01)
    job = SimpleNamespace(
        store=jobs.store,
        id="digits-image-1",
        spec=SimpleNamespace(name="digits-image"),
        submitted=(SimpleNamespace(resumption=0), None),
    )
    it = SimpleNamespace(job=job, host=CopyingImages(job), machines=Machines())

    def ready(machine, key=KEY):
        it.machines.running.append(machine)
        record = SetupReady(instance_id=machine, key=key, at=datetime.now(timezone.utc))
        job.store.put(keys.setup_ready(job.id), codec.encode(record))

    def run(*, replaces=False):
        it.baking = image_module._Baking(
            job, it.host, it.machines, KEY, replaces=replaces, remove="cloudspot image rm"
        )
        it.baking.run()
        assert find_bytes(job.store, keys.stop(job.id, 0)) is not None
        return it.baking

    it.ready, it.run = ready, run
    return it


READY = {"is_ready": True}
FAILED = {"failure": "no room"}


def test_an_image_is_made_and_the_machine_ended(bench):
    bench.ready("m-1")
    bench.host.outcomes = [(READY, 2)]
    baking = bench.run()
    assert (baking.made.id, baking.failure) == ("image-of-m-1", None)
    assert "remove" not in dict(bench.host.said)


def test_who_gives_up_ends_the_machine_and_then_removes_what_is_half_made(bench, capsys):
    bench.ready("m-1")
    bench.host.outcomes = [(READY, 10_000)]
    save = bench.host.save

    def give_up_then(*args, **options):
        bench.baking.is_over.set()
        return save(*args, **options)

    bench.host.save = give_up_then
    baking = bench.run()
    assert (baking.made, baking.failure, bench.host.saved) == (None, None, [])
    assert ("remove", True) in bench.host.said
    assert ("remove", False) not in bench.host.said


def test_an_image_that_was_finished_when_somebody_gave_up_is_kept(bench):
    bench.ready("m-1")
    bench.host.outcomes = [(READY, 0)]
    save = bench.host.save

    def give_up_then(*args, **options):
        bench.baking.is_over.set()
        return save(*args, **options)

    bench.host.save = give_up_then
    assert bench.run().made.id == "image-of-m-1"
    assert "remove" not in dict(bench.host.said)


@pytest.mark.parametrize("call", ["save", "find"])
def test_an_error_on_the_way_leaves_nothing(bench, call):
    bench.ready("m-1")
    bench.host.outcomes = [(READY, 10_000)]
    bench.host.fails[call] = AuthError("a permission is missing")
    baking = bench.run()
    assert (baking.made, str(baking.failure), bench.host.saved) == (None, "a permission is missing", [])


def test_an_answer_that_is_lost_and_an_outage_are_waited_out_and_told_once(bench, capsys):
    bench.ready("m-1")
    bench.host.outcomes = [(READY, 1), (READY, 1)]
    bench.host.fails = {"save": TransientError("no answer"), "find": TransientError("no answer")}
    assert bench.run().made is not None
    assert capsys.readouterr().err.count("no answer") == 1


def test_an_image_that_cannot_be_made_of_a_machine_that_runs_is_an_error(bench):
    bench.ready("m-1")
    bench.host.outcomes = [(FAILED, 0)]
    baking = bench.run()
    assert str(baking.failure) == "the image could not be made: no room"
    assert bench.host.saved == []


def test_who_gives_up_leaves_the_image_that_somebody_else_has_begun(bench):
    bench.host.listed = [made(1, is_ready=False)]
    bench.ready("m-1")
    threading.Timer(0.1, lambda: bench.baking.is_over.set()).start()  # noqa: PLW0108 - it is made by then
    assert bench.run().made is None
    assert bench.host.listed == [made(1, is_ready=False)]


def test_who_waits_for_an_image_of_somebody_elses_makes_it_if_that_is_gone(bench):
    bench.host.listed = [made(1, is_ready=False)]
    bench.ready("m-1")
    bench.host.outcomes = [(READY, 0)]
    threading.Timer(0.1, bench.host.listed.clear).start()
    assert bench.run().made.id == "image-of-m-1"


def test_a_machine_that_is_lost_during_the_copy_is_replaced(bench, capsys):
    bench.ready("m-1")
    bench.host.outcomes = [(FAILED, 1), (READY, 0)]
    save = bench.host.save

    def lose_then(instance, **options):
        bench.machines.running.clear()
        if instance.id == "m-1":
            threading.Timer(0.1, lambda: bench.ready("m-2")).start()
        return save(instance, **options)

    bench.host.save = lose_then
    assert bench.run().made.id == "image-of-m-2"
    assert "trying again on another machine" in capsys.readouterr().out


def test_an_image_is_replaced_only_once_the_setup_is_done_again(bench):
    bench.host.listed = [made(1)]
    bench.ready("m-1", key="another")
    assert "the code changed during the submission" in str(bench.run(replaces=True).failure)
    assert bench.host.listed == [made(1)]
    bench.job.store.delete(keys.stop(bench.job.id, 0))
    bench.ready("m-1")
    bench.host.outcomes = [(READY, 0)]
    assert bench.run(replaces=True).made.id == "image-of-m-1"
    assert bench.host.listed == []


def test_what_cannot_be_removed_is_told_with_the_command(bench, capsys):
    bench.ready("m-1")
    bench.host.outcomes = [(FAILED, 0)]
    bench.host.fails["remove"] = TransientError("it is being copied")
    bench.run()
    said = capsys.readouterr().err
    assert (
        "an image may still appear and be billed: it is being copied; if so, run: cloudspot image rm" in said
    )
