"""The inputs of [data] on a node: where the training finds them, beside the setup, and what goes wrong."""

import errno
import os
import re
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import ClassVar

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import DenyingStore
from support.stores.memorystore import InMemoryStore

from cloudspot.agent import store_retry
from cloudspot.agent.leaving import LeavingError
from cloudspot.agent.training.launching import input_staging
from cloudspot.agent.training.launching.fork_server import ForkServer
from cloudspot.errors import AuthError, CloudspotError
from cloudspot.jobstore.access.wrapped_store import WrappedStore
from cloudspot.jobstore.inputs import inputs
from cloudspot.jobstore.layout import codec, keys
from cloudspot.jobstore.layout.records import Heartbeat, InputVersion
from cloudspot.model import ObjectPage, PreemptionNotice

JOB = "digits-1"
SHOW = """
import os
from pathlib import Path
for name in sorted(os.environ):
    if name.startswith("CLOUDSPOT_DATA_"):
        root = Path(os.environ[name])
        found = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        print(name, "is", os.environ[name])
        for path in found:
            print("file", path.relative_to(Path.cwd()), path.read_text())
"""


@pytest.fixture
def data(tmp_path):
    store = directory_store(tmp_path / "data")
    store.put("images/a/one", b"1")
    store.put("images/two", b"22")
    store.put("labels.csv", b"333")
    return store


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(input_staging, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(store_retry, "DENIED_SECONDS", 0.2)


def tables(data, **more):
    return {
        "run": {"command": ["python", "-u", "train.py"], "launcher": "none", **more.pop("run", {})},
        "data": {
            "images": {"url": f"{data.url}/images/"},
            "the-labels": {"url": f"{data.url}/labels.csv", "path": "labels/all.csv"},
            **more,
        },
    }


def beat(bench):
    return codec.decode(bench.store.get(keys.heartbeat(JOB, 1, 0)), Heartbeat)


@pytest.mark.full
def test_the_training_finds_each_input_at_its_path_and_by_its_variable(bench, data):
    life = bench.life(SHOW, **tables(data, run={"setup": 'test -z "${CLOUDSPOT_DATA_IMAGES:-}"'}))
    life.run()
    record = bench.exit_record()
    assert record.outcome == "succeeded", record.detail
    work = life.context.node.work
    lines = bench.log(life)
    assert f"CLOUDSPOT_DATA_IMAGES is {work}/data/images" in lines
    assert f"CLOUDSPOT_DATA_THE_LABELS is {work}/labels/all.csv" in lines
    told = [line for line in lines if line.startswith("file ")]
    assert told == ["file data/images/a/one 1", "file data/images/two 22", "file labels/all.csv 333"]
    assert [(one.name, one.num_files, one.size, one.fetched) for one in beat(bench).staged] == [
        ("images", 2, 3, 3),
        ("the-labels", 1, 3, 3),
    ]


@pytest.mark.full
def test_what_is_read_in_place_is_a_url_for_the_training_and_nothing_on_the_disk(bench, data):
    life = bench.life(SHOW, **tables(data, images={"url": f"{data.url}/images/", "mode": "stream"}))
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    lines = bench.log(life)
    assert f"CLOUDSPOT_DATA_IMAGES is {data.url}/images/" in lines
    assert [line for line in lines if line.startswith("file ")] == ["file labels/all.csv 333"]
    assert [one.name for one in beat(bench).staged] == ["the-labels"]


@pytest.mark.full
@pytest.mark.parametrize("first", [ObjectPage(objects=(), next_after="folder/"),
                                   ObjectPage(objects=(), next_after=None, skipped=("\u00e4",))])  # fmt: skip
def test_what_no_file_could_be_named_may_be_read_in_place(bench, monkeypatch, first):
    """The first object may stand for the directory itself, as a console of a cloud makes one."""
    store = InMemoryStore("memory://data/images")
    store.put("one", b"1")
    list_page = store.list_page
    store.list_page = lambda prefix, after="", **options: list_page(prefix, **options) if after else first
    monkeypatch.setattr(inputs, "open_store", lambda _url: store)
    bench.life("", data={"images": {"url": "memory://data/images/", "mode": "stream"}}).run()
    assert bench.exit_record().outcome == "succeeded"


@pytest.mark.parametrize("is_denied", [True, False])
def test_what_cannot_be_read_in_place_fails_before_the_training_starts(bench, monkeypatch, is_denied):
    store = InMemoryStore("memory://data/images")
    opened = DenyingStore(store, lambda method, _key: method == "list_page") if is_denied else store
    monkeypatch.setattr(inputs, "open_store", lambda _url: opened)
    spec = {"url": "memory://data/images/", "mode": "stream"}
    bench.life("", run={"setup": "sleep 60"}, data={"images": spec}).run()
    record = bench.exit_record()
    assert (record.outcome, record.generation) == ("failed", 0)
    said = "grant the machines' role the permission to read it" if is_denied else "it contains no objects"
    assert record.detail.startswith("data.images: memory://data/images/: ")
    assert record.detail.endswith(said)


@pytest.mark.full
def test_an_absolute_path_and_another_file_system_work_too(bench, data, tmp_path, monkeypatch):
    refuse_links(monkeypatch, errno.EXDEV)
    target = tmp_path / "elsewhere" / "images"
    life = bench.life("", **tables(data, images={"url": f"{data.url}/images/", "path": str(target)}))
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert (target / "a" / "one").read_bytes() == b"1"
    assert (target / "a" / "one").is_symlink()


@pytest.mark.full
def test_inputs_are_staged_beside_the_setup_and_then_in_a_phase_of_their_own(
    bench, data, monkeypatch, wait_until
):
    released = threading.Event()
    stage = input_staging.InputCache.stage

    def slow(self, *given):
        assert released.wait(30)
        return stage(self, *given)

    monkeypatch.setattr(input_staging.InputCache, "stage", slow)
    life = bench.life("", **tables(data, run={"setup": "echo set up"}))
    thread = threading.Thread(target=life.run, daemon=True)
    thread.start()
    wait_until(lambda: life.context.status.state == "staging")
    assert "set up" in (life.context.node.logs / "setup.log").read_text()
    released.set()
    thread.join(30)
    phases = [one.state for one in beat(bench).phases]
    assert phases[:3] == ["staging", "restoring", "running"]


@pytest.mark.full
def test_a_second_agent_and_a_second_node_of_the_machine_fetch_nothing(bench, data):
    life = bench.life("", **tables(data))
    life.run()
    cache = life.context.node.data_cache
    # The same machine again: its memory tells that all is there.
    data.delete("labels.csv")
    again = input_staging.InputStaging(life.context)
    again.start()
    again.finish()
    data.put("labels.csv", b"333")
    # Another node with the same cache, as a provider's option names it.
    other = bench.life("", launch=2, machine="other", **tables(data))
    other.context.node.data_cache = cache
    staging = input_staging.InputStaging(other.context)
    staging.start()
    staging.finish()
    staging.stop()
    assert [(one.name, one.fetched) for one in other.context.status.staged] == [
        ("images", 0),
        ("the-labels", 3),
    ]
    assert (other.context.node.work / "data/images/two").read_bytes() == b"22"


def test_an_agent_that_was_killed_before_it_had_noted_the_end_places_the_inputs_again(bench, data):
    life = bench.life("", **tables(data))
    context = life.context
    stopped = context.node.work / "data" / "images"
    stopped.mkdir(parents=True)
    (stopped / "half").write_text("x")
    context.memory.placed.append("data/images")
    staging = input_staging.InputStaging(context)
    staging.start()
    staging.finish()
    assert sorted(path.name for path in stopped.iterdir()) == ["a", "two"]


@pytest.mark.full
def test_a_copy_of_each_machines_own_is_the_same_input(bench, data):
    bench.life("", **tables(data)).run()
    for key in ("images/a/one", "images/two"):
        path = data.root / key
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)
    other = bench.life("", launch=2, machine="other", **tables(data)).context
    staging = input_staging.InputStaging(other)
    staging.start()
    staging.finish()
    assert other.status.warnings == ()


@pytest.mark.full
def test_a_node_that_stages_something_else_than_another_says_so(bench, data):
    bench.life("", **tables(data)).run()
    first = codec.decode(bench.store.get(keys.input_version(JOB, "images", 0)), InputVersion)
    assert (first.num_files, first.size, str(first.seat)) == (2, 3, "1.0")
    data.put("images/three", b"4444")
    other = bench.life("", launch=2, machine="other", **tables(data)).context
    staging = input_staging.InputStaging(other)
    staging.start()
    staging.finish()
    assert other.status.warnings == (
        (
            "data.images differs from that of node 1.0: 2 files of 3 bytes there, 3 files of 7 bytes here; "
            "someone has written to its URL"
        ),
    )


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        ("missing", r"data\.images: memory://data/images/: it contains no objects"),
        (
            "denied",
            r"data\.images: memory://data/images/: access denied.*; grant the machines' role the permission to read it",
        ),
        ("out", r"data\.images: memory://data/images/: all attempts have failed for 0 s: out"),
        (
            "full",
            r"data\.images: memory://data/images/: cannot write to the disk: No space left.*resources\.disk",
        ),
        ("nested", r"data\.images: memory://data/images/: .* a disk cannot hold both"),
        ("taken", r"data\.images: memory://data/images/: .*work/data/images already exists"),
        ("plugin", r"data\.images: nowhere://x/: no installed plugin opens nowhere:// URLs"),
    ],
)
def test_what_cannot_be_staged_fails_in_a_line_that_names_it(bench, monkeypatch, fault, detail):
    store = InMemoryStore("memory://data/images")
    if fault != "missing":
        store.put("one", b"1")
    opened = store
    if fault == "denied":
        opened = DenyingStore(store, lambda method, _key: method == "list_page")
    elif fault == "out":
        opened = FailingStore(store)
    elif fault == "full":
        refuse_links(monkeypatch, errno.ENOSPC)
    elif fault == "nested":
        store.put("one/below", b"1")
    url = "nowhere://x/" if fault == "plugin" else "memory://data/images/"
    if fault != "plugin":
        monkeypatch.setattr(inputs, "open_store", lambda _url: opened)
    if fault == "taken":
        (bench.root / "code" / "data").mkdir(parents=True)
        (bench.root / "code" / "data" / "images").write_text("came with the code")
    life = bench.life("", run={"setup": "sleep 3600"}, data={"images": {"url": url}})
    life.run()  # it ends the setup
    record = bench.exit_record()
    assert (record.outcome, record.exit_code, record.permanent, record.generation) == ("failed", 1, False, 0)
    assert re.match(detail, record.detail), record.detail
    if fault == "taken":
        assert not any(life.context.node.data_cache.glob("objects/*"))  # nothing was fetched for it


def test_a_symlink_on_the_way_is_not_followed(bench, data, tmp_path):
    context = bench.life("", **tables(data)).context
    (tmp_path / "outside").mkdir()
    (context.node.work / "data").symlink_to(tmp_path / "outside")
    staging = input_staging.InputStaging(context)
    staging.start()
    with pytest.raises(
        LeavingError, match=r"data\.images: .* is a symlink, which is not followed; name another"
    ):
        staging.finish()
    assert not list((tmp_path / "outside").iterdir())
    assert not any(context.node.data_cache.glob("objects/*"))


def test_a_cache_that_others_may_write_to_is_not_used(bench, data):
    context = bench.life("", **tables(data)).context
    context.node.data_cache.mkdir(mode=0o777)
    context.node.data_cache.chmod(0o777)
    staging = input_staging.InputStaging(context)
    staging.start()
    with pytest.raises(LeavingError, match=r"data\.images: .*has mode 777, not 700: it must be private"):
        staging.finish()


def refuse_links(monkeypatch, number):
    """Refuse further names of what is in a cache, and of nothing else."""
    link = os.link

    def refuse(source, target, **others):
        if "/objects/" in str(source):
            raise OSError(number, os.strerror(number))
        link(source, target, **others)

    monkeypatch.setattr(os, "link", refuse)


class FailingStore(WrappedStore):
    def _call(self, method, key, request):
        raise input_staging.TransientError("out")


def test_a_notice_ends_the_staging_at_once(bench, monkeypatch, wait_until):
    store = InMemoryStore("memory://data")
    store.put("one", b"1")
    monkeypatch.setattr(input_staging, "SILENT_SECONDS", 600.0)
    monkeypatch.setattr(inputs, "open_store", lambda _url: FailingStore(store))
    life = bench.life("", data={"images": {"url": "memory://data/"}})
    thread = threading.Thread(target=life.run, daemon=True)
    thread.start()
    wait_until(lambda: life.context.status.state == "staging")
    deadline = datetime.now(timezone.utc) + timedelta(seconds=60)
    bench.provider.notices.notice = PreemptionNotice(deadline=deadline)
    thread.join(20)
    assert not thread.is_alive()
    assert bench.exit_record().outcome == "drained"


def test_a_setup_that_fails_ends_the_staging(bench, monkeypatch):
    store = InMemoryStore("memory://data")
    asked = threading.Event()

    class Asked(FailingStore):
        def _call(self, method, key, request):
            asked.set()
            super()._call(method, key, request)

    monkeypatch.setattr(input_staging, "SILENT_SECONDS", 600.0)
    monkeypatch.setattr(inputs, "open_store", lambda _url: Asked(store))
    bench.life("", data={"images": {"url": "memory://data/"}}, run={"setup": "sleep 1; exit 9"}).run()
    assert asked.is_set()
    assert bench.exit_record().exit_code == 9
    assert not [thread for thread in threading.enumerate() if thread.name == "staging"]


@pytest.mark.full
def test_a_request_that_takes_long_and_breaks_is_made_again(bench, monkeypatch):
    """The time counts from the first failure, not from the beginning of the request."""
    store = InMemoryStore("memory://data")
    store.put("one", b"1")
    moments = iter([0.0])

    class BreaksOnce(WrappedStore):
        def _call(self, method, key, request):
            if method == "get" and next(moments, None) is not None:
                time.sleep(1.5 * input_staging.SILENT_SECONDS)
                raise input_staging.TransientError("broke")
            return request()

    monkeypatch.setattr(input_staging, "SILENT_SECONDS", 0.4)
    monkeypatch.setattr(inputs, "open_store", lambda _url: BreaksOnce(store))
    bench.life("", data={"images": {"url": "memory://data/"}}).run()
    assert bench.exit_record().outcome == "succeeded"


@pytest.mark.full
def test_a_store_of_the_job_that_refuses_the_note_ends_no_node(bench, data, monkeypatch):
    def refused(*_arguments):
        raise CloudspotError("no right to write")

    monkeypatch.setattr(input_staging, "create", refused)
    bench.life("", **tables(data)).run()
    assert bench.exit_record().outcome == "succeeded"


def test_hostile_names_never_leave_the_directory(bench, monkeypatch, tmp_path):
    """A store that does not keep to the rules of keys, as one of a plugin's might."""

    class Hostile(InMemoryStore):
        def list_page(self, prefix, *, after=None, limit=1000):
            page = super().list_page(prefix, after=after, limit=limit)
            evil = inputs.ObjectMeta(key="../../evil", size=1, modified_at=datetime.now(timezone.utc))
            return type(page)(objects=(evil, *page.objects), next_after=None)

        def get(self, key):
            return b"1"

    store = Hostile("memory://data")
    store.put("one", b"1")
    monkeypatch.setattr(inputs, "open_store", lambda _url: store)
    bench.life("", data={"images": {"url": "memory://data/"}}).run()
    assert bench.exit_record().outcome == "failed"
    assert "'../../evil'" in bench.exit_record().detail
    assert not list(Path(tmp_path).rglob("evil"))


# --- inputs for which the training does not wait --------------------------------------------------

LOOK_FOR = """
import os, time
from pathlib import Path
labels = Path(os.environ["CLOUDSPOT_DATA_THE_LABELS"])
print("images are there:", Path(os.environ["CLOUDSPOT_DATA_IMAGES"]).is_dir(), flush=True)
print("labels are there:", labels.exists(), flush=True)
end = time.monotonic() + WAIT
while not labels.exists() and time.monotonic() < end:
    time.sleep(0.02)
print("then:", labels.exists() and labels.read_text(), flush=True)
"""


def late_tables(data, **more):
    found = tables(data, **more)
    found["data"] = {**found["data"], "the-labels": {**found["data"]["the-labels"], "wait": False}}
    return {**found, "data": dict(reversed(found["data"].items()))}  # those that are waited for come first


class HeldStore(WrappedStore):
    """Says nothing of the labels until it may, or refuses them so often."""

    may = threading.Event()
    fails = 0
    waits = False
    asked: ClassVar = []

    def _call(self, method, key, request):
        HeldStore.asked.append((method, key))
        if (method, key) == ("head", "labels.csv"):
            if HeldStore.fails > 0:
                HeldStore.fails -= 1
                raise AuthError("no right")
            HeldStore.waits = True
            assert self.may.wait(20)
        return request()


@pytest.fixture
def held(monkeypatch):
    open_store = inputs.open_store
    HeldStore.may.clear()
    HeldStore.waits = False
    HeldStore.asked.clear()
    monkeypatch.setattr(inputs, "open_store", lambda url: HeldStore(open_store(url)))
    monkeypatch.setattr(input_staging, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(input_staging, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(input_staging, "SPARE_SHARE", 0.0)  # the disk is that of whoever runs the tests
    yield HeldStore
    HeldStore.fails = 0


@pytest.mark.full
def test_the_training_starts_without_an_input_for_which_it_does_not_wait(bench, data, held, wait_until):
    life = bench.life(LOOK_FOR.replace("WAIT", "20"), **late_tables(data))
    thread = threading.Thread(target=life.run)
    thread.start()
    log = life.context.node.train_log(1)
    wait_until(lambda: log.exists() and "labels are there" in log.read_text())
    assert [one.name for one in life.context.status.staged] == ["images"]
    held.may.set()
    thread.join()
    assert bench.exit_record().outcome == "succeeded"
    lines = bench.log(life)
    assert "images are there: True" in lines
    assert "labels are there: False" in lines
    assert "then: 333" in lines
    assert [one.name for one in beat(bench).staged] == ["images", "the-labels"]


@pytest.mark.full
def test_an_input_that_is_late_and_cannot_be_had_is_told_and_tried_again(bench, data, held, wait_until):
    held.fails = 10_000
    life = bench.life(LOOK_FOR.replace("WAIT", "20"), **late_tables(data))
    thread = threading.Thread(target=life.run)
    thread.start()
    wait_until(lambda: any("the training goes on without it" in one for one in life.context.status.warnings))
    held.may.set()
    held.fails = 0
    thread.join()
    assert bench.exit_record().outcome == "succeeded"
    assert "then: 333" in bench.log(life)
    assert life.context.status.warnings == ()


@pytest.mark.full
def test_one_late_input_that_cannot_be_had_keeps_no_other_away(bench, data, held, wait_until):
    held.may.set()
    found = late_tables(data)
    found["data"]["another"] = {"url": f"{data.url}/labels.csv", "wait": False}
    found["data"]["the-labels"]["sha256"] = "0" * 64
    script = LOOK_FOR.replace("THE_LABELS", "ANOTHER").replace("WAIT", "20") + "time.sleep(1)"
    life = bench.life(script, **found)
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert "then: 333" in bench.log(life)
    (warning,) = life.context.status.warnings
    assert "data.the-labels: " in warning
    assert "has the sha256" in warning
    said = [line for line in held.asked if line == ("get", "labels.csv")]
    assert len(said) == 2, "what is not what the job file says is fetched once"


@pytest.mark.full
def test_a_late_directory_appears_whole(bench, data, held, wait_until):
    held.may.set()
    found = late_tables(data)
    found["data"]["images"]["wait"] = False
    script = """
import os, time
from pathlib import Path
images = Path(os.environ["CLOUDSPOT_DATA_IMAGES"])
while not images.exists():
    time.sleep(0.005)
print(sorted(str(one.relative_to(images)) for one in images.rglob("*") if one.is_file()))
"""
    life = bench.life(script, **found)
    life.run()
    assert "['a/one', 'two']" in bench.log(life)


@pytest.mark.full
def test_a_notice_ends_a_late_input_at_once(bench, data, held, wait_until):
    life = bench.life(LOOK_FOR.replace("WAIT", "60"), **late_tables(data))
    thread = threading.Thread(target=life.run)
    thread.start()
    wait_until(lambda: held.waits)
    deadline = datetime.now(timezone.utc) + timedelta(seconds=8)
    bench.provider.notices.notice = PreemptionNotice(deadline=deadline)
    thread.join(100)
    assert not thread.is_alive()
    assert bench.exit_record().outcome == "drained"
    held.may.set()


@pytest.mark.full
def test_a_training_that_ends_first_does_not_wait_for_a_late_input(bench, data, held, monkeypatch):
    monkeypatch.setattr(input_staging, "LEAVE_SECONDS", 3600.0)
    life = bench.life(LOOK_FOR.replace("WAIT", "0"), **late_tables(data))
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    assert "then: False" in bench.log(life)
    held.may.set()


@pytest.mark.full
def test_what_the_training_may_use_already_is_not_put_there_again(bench, data, held):
    """An agent is killed after it has put a late input there, and before it has noted that."""
    held.may.set()
    first = bench.life(LOOK_FOR.replace("WAIT", "20"), **late_tables(data))
    first.run()
    node = first.context.node
    labels = node.work / "labels" / "all.csv"
    number = labels.stat().st_ino
    labels.rename(labels.with_name("moved"))
    labels.write_text("the very file that the training has open")
    again = bench.life("", launch=1, **late_tables(data))
    again.context.memory.inputs_ready.remove("the-labels")
    again.context.status.state = "running"
    staging = input_staging.InputStaging(again.context)
    staging.start()
    staging._thread.join()
    assert labels.read_text() == "the very file that the training has open"
    assert labels.with_name("moved").stat().st_ino == number
    assert "the-labels" in again.context.memory.inputs_ready


@pytest.mark.full
def test_torch_is_imported_while_inputs_are_on_their_way(bench, data, held, monkeypatch):
    states = []
    monkeypatch.setattr(ForkServer, "start", lambda _self: states.append(sorted(bench.staged())))
    life = bench.life("", **tables(data))
    bench.staged = lambda: [one.name for one in life.context.status.staged]
    threading.Timer(2.0, held.may.set).start()
    life.run()
    assert bench.exit_record().outcome == "succeeded"
    staged, at_the_start_of_the_training = states
    assert "the-labels" not in staged
    assert "the-labels" in at_the_start_of_the_training
