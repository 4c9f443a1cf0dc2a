"""The store that fails on purpose."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import FaultPlan, FaultyStore, Hook, Outage, load_plan

import cloudspot
from cloudspot.errors import ObjectExists, ObjectMissing, SpecError, TransientError

PATHS = (str(Path(cloudspot.__file__).parents[1]), str(Path(__file__).parents[1]))


@pytest.fixture
def inner(tmp_path):
    return directory_store(tmp_path / "store")


def faulty(inner, tmp_path, **options):
    keywords = {name: options.pop(name) for name in ("clock", "on_hook") if name in options}
    return FaultyStore(inner, FaultPlan(**options), tmp_path / "state", **keywords)


def test_without_faults_it_is_the_store_that_it_wraps(inner, tmp_path):
    store = faulty(inner, tmp_path)
    store.put("a", b"one", if_absent=True)
    with store.open_upload("b") as upload:
        upload.write(b"two")
        upload.commit()
    assert store.get("a") == b"one"
    assert store.get_range("b", 1, 1) == b"w"
    assert store.head("b").size == 3
    assert [meta.key for meta in store.list_objects("")] == ["a", "b"]
    store.delete("a")
    with pytest.raises(ObjectMissing):
        store.get("a")
    assert store.presign_get("b", seconds=1) == inner.presign_get("b", seconds=1)
    assert store.calls == {
        "put": 1, "get": 2, "get_range": 1, "head": 1, "list_page": 1, "delete": 1, "open_upload": 1, "commit": 1,
    }  # fmt: skip


def test_each_nth_call_fails_before_it_does_anything(inner, tmp_path):
    store = faulty(inner, tmp_path, fail_every=3)
    outcomes = []
    for number in range(1, 8):
        try:
            store.put(f"k{number}", b"")
            outcomes.append(number)
        except TransientError:
            continue
    assert outcomes == [1, 2, 4, 5, 7]
    assert [meta.key for meta in inner.list_objects("")] == ["k1", "k2", "k4", "k5", "k7"]


def test_a_lost_answer_leaves_the_object_there(inner, tmp_path):
    store = faulty(inner, tmp_path, lose_every=2, lose_keys="lost/*")
    store.put("other", b"")
    store.put("lost/1", b"")
    with pytest.raises(TransientError, match="lost/2"):
        store.put("lost/2", b"two", if_absent=True)
    assert inner.get("lost/2") == b"two"
    with pytest.raises(ObjectExists):
        store.put("lost/2", b"two", if_absent=True)


def test_in_an_outage_every_call_fails_and_afterwards_none(inner, tmp_path):
    now = [9.0]
    store = faulty(inner, tmp_path, outages=(Outage(start=10, end=20),), clock=lambda: now[0])
    store.put("a", b"")
    for moment in (10.0, 19.9):
        now[0] = moment
        for call in (store.get, store.head, store.delete, store.list_page, store.open_upload):
            with pytest.raises(TransientError, match="outage"):
                call("a")
    now[0] = 20.0
    assert store.get("a") == b""


def test_a_hook_meets_the_put_it_names_once_over_all_processes(inner, tmp_path):
    met = []
    hooks = (
        Hook(keys="jobs/*/journal/*", when="before", skip=1, action="one"),
        Hook(keys="jobs/*/journal/*", when="after", action="two"),
    )
    store = faulty(inner, tmp_path, hooks=hooks, on_hook=lambda hook, key: met.append((hook.action, key)))
    store.put("jobs/x/spec", b"")
    store.put("jobs/x/journal/1", b"", if_absent=True)
    assert met == [("two", "jobs/x/journal/1")]
    with pytest.raises(ObjectExists):
        store.put("jobs/x/journal/1", b"", if_absent=True)
    assert met[1:] == [("one", "jobs/x/journal/1")]
    again = faulty(inner, tmp_path, hooks=hooks, on_hook=lambda hook, key: met.append((hook.action, key)))
    for number in range(2, 6):
        again.put(f"jobs/x/journal/{number}", b"")
    assert len(met) == 2


KILLED = """
import sys
from pathlib import Path
from cloudspot.local.filestore import FileStore
from support.stores.faultstore import FaultyStore, load_plan
store = FaultyStore(FileStore(sys.argv[1]), load_plan(Path(sys.argv[2])), Path(sys.argv[3]))
store.put("jobs/x/spec", b"", if_absent=True)
"""


@pytest.mark.full
@pytest.mark.parametrize(("when", "is_there"), [("before", False), ("after", True)])
def test_a_plan_in_a_file_kills_a_process_at_a_put_and_not_again(inner, tmp_path, when, is_there):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"hooks": [{"keys": "*/spec", "when": when}]}))
    command = [sys.executable, "-c", KILLED, inner.url, str(plan), str(tmp_path / "state")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    assert bool(list(inner.list_objects("jobs/"))) is is_there
    inner.delete("jobs/x/spec")
    assert subprocess.run(command, env=environment).returncode == 0


def test_a_plan_that_cannot_be_meant_is_refused(inner, tmp_path):
    with pytest.raises(SpecError, match="fail_every"):
        faulty(inner, tmp_path, fail_every=1)
    with pytest.raises(SpecError, match="lose_every"):
        faulty(inner, tmp_path, lose_every=0)
    path = tmp_path / "plan.json"
    path.write_text('{"fail_evry": 5}')
    with pytest.raises(SpecError, match="fail_evry"):
        load_plan(path)
    with pytest.raises(SpecError, match="none"):
        load_plan(tmp_path / "none.json")


def test_a_hook_meets_the_delete_it_names(inner, tmp_path):
    met = []
    hooks = (
        Hook(keys="jobs/*", when="before", skip=1, method="delete", action="one"),
        Hook(keys="jobs/*", when="after", method="delete", action="two"),
    )
    store = faulty(
        inner,
        tmp_path,
        hooks=hooks,
        on_hook=lambda hook, key: met.append((hook.action, key, [m.key for m in inner.list_objects("")])),
    )
    for key in ("jobs/a", "jobs/b"):
        store.put(key, b"")
    for key in ("jobs/a", "jobs/b"):
        store.delete(key)
    assert met == [("two", "jobs/a", ["jobs/b"]), ("one", "jobs/b", ["jobs/b"])]
