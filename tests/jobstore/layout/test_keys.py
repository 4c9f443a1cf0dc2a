"""One table of keys: each form reads what it writes and nothing else, and every reader goes by it."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stores.memorystore import InMemoryStore

import cloudspot
from cloudspot.decoding import MAX_LAUNCHES, MAX_NODES, MAX_TALLY
from cloudspot.interfaces import is_key
from cloudspot.jobstore.checkpoints.retention import stored_saves
from cloudspot.jobstore.jobs.job_lists import list_jobs, list_live, list_recent
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import CheckpointId, SaveId
from cloudspot.jobstore.logs.objectlog import ObjectStoreLogSink
from cloudspot.jobstore.logs.stored_artifacts import list_artifacts
from cloudspot.jobstore.nodes.launches import read_slots

pytestmark = pytest.mark.costly  # the first strategy for texts in a process builds a table of all characters

JOB = "digits-1"
FORMS = {name: value for name, value in vars(keys).items() if isinstance(value, keys.Key)}
KEYS = {name: form for name, form in FORMS.items() if not name.endswith("prefix")}

ordinals = st.integers(0, MAX_LAUNCHES - 1)
tallies = st.integers(0, MAX_TALLY)
ids = st.from_regex(keys.JOB_ID, fullmatch=True)
words = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
hashes = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
VALUES = {
    "job": ids,
    "writer": words,
    "nonce": words,
    "sha256": hashes,
    "shared": st.builds("{}/{}".format, st.sampled_from(["code", "agents"]), hashes),
    "remover": ids | st.just("reap.0badcafe"),
    "provider": st.sampled_from(["aws", "local", "my-cloud"]),
    "driver": st.from_regex(r"[A-Za-z0-9-]{1,64}", fullmatch=True),
    "event": st.sampled_from(["finished.1", "reclaimed-1-0"]),
    "input": st.from_regex(r"[a-z][a-z0-9_-]*", fullmatch=True),
    "newest_first": st.integers(1, 10**13),
    "resumption": ordinals,
    "record": tallies,
    "launch": ordinals,
    "generation": ordinals,
    "step": tallies,
    "rank": st.integers(0, MAX_NODES - 1),
    "number": tallies,
    "line": tallies,
    "checkpoint": st.builds(CheckpointId, ordinals, tallies),
    "save": st.builds(SaveId, ordinals, tallies, ordinals),
    "machine": st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    "stream": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True),
    "date": st.dates().map(str),
    "artifact": st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
}


def values_of(form):
    return st.tuples(*(VALUES[name] for name in form.fields))


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=5)
@given(data=st.data())
def test_each_form_reads_the_values_that_it_has_written(name, data):
    values = data.draw(values_of(FORMS[name]))
    assert FORMS[name].match(FORMS[name](*values)) == values


@st.composite
def odd_keys(draw):
    """Return a key of some form with a change that a person, or another program, may make to it."""
    form = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    key = form(*draw(values_of(form)))
    place = draw(st.integers(0, len(key)))
    put_in = draw(
        st.sampled_from(["", "0", "7", "\N{ARABIC-INDIC DIGIT THREE}", "\n", "/", ".", "%41", "z", "-"])
    )
    return key[:place] + put_in + key[place + draw(st.integers(0, 1)) :]


@given(key=odd_keys() | st.text())
def test_no_form_reads_a_key_that_it_would_not_write(key):
    for form in FORMS.values():
        values = form.match(key)
        assert values is None or form(*values) == key


@pytest.mark.parametrize("name", KEYS)
def test_a_key_has_one_form_and_tells_its_job(name):
    key = KEYS[name](*(SAMPLES[field] for field in KEYS[name].fields))
    assert [other for other, form in KEYS.items() if form.match(key) is not None] == [name]
    assert keys.job_of(key) == (JOB if key.startswith("jobs/") else None)


SAMPLES = {
    "job": JOB, "writer": "w", "nonce": "w", "sha256": "0a" * 32, "shared": f"code/{'0a' * 32}", "remover": "other",
    "provider": "aws", "driver": "cron", "event": "finished.1", "input": "images", "newest_first": 5, "resumption": 1,
    "record": 1, "launch": 1, "generation": 1, "step": 10, "rank": 0, "number": 1, "line": 1, "stream": "1-0",
    "checkpoint": CheckpointId(1, 10), "save": SaveId(1, 10, 0), "machine": "us-a/cs.1/2", "date": "2026-11-24",
    "artifact": "out/a b.txt",
}  # fmt: skip


ODD = [
    "jobs/digits-1", "jobs/digits-1/", "jobs/digits-1/x", "jobs/digits-1/data.csv", "jobs/digits-1/code/x.py",
    "jobs/digits-1/spec.json", "jobs/digits-1/checkpoints/epoch-3.pt", "jobs/digits-1/checkpoints/x",
    "jobs/digits-1/checkpoints/000001-000000000010-000000/chunks/x", "jobs/digits-1/logs/2026/app.log",
    "jobs/digits-1/nodes/1/0/heartbeat", "jobs/digits-1/nodes/0000001/0000/heartbeat",
    "jobs/digits-1/nodes/000001/00000/notice", "jobs/digits-1/nodes/1000000000/0000/exit.json",
    "jobs/digits-1/nodes/00000\u0661/0000/heartbeat", "jobs/digits-1/launches/000001/nodes/000\u0663",
    "jobs/digits-1/launches/0000001/nodes/0000", "jobs/digits-1/launches/000001/nodes/00000",
    "jobs/digits-1/launches/000001/machines/i.1", "jobs/digits-1/launches/000001/machines/%69",
    "jobs/digits-1/manifests/0000001-000000000010", "jobs/digits-1/manifests/000001-0000000000010",
    "jobs/digits-1/manifests/000001-000000000010.damaged.damaged",
    "jobs/digits-1/checkpoints/0000001-000000000010-000000/parts/0000",
    "jobs/digits-1/checkpoints/000001-000000000010-000000/parts/00000",
    "jobs/digits-1/logs/1-0/2026-02-30/000000000000", "jobs/digits-1/logs/1-0/2026-02-03/0000000000000",
    "jobs/digits-1/artifacts/", "jobs/digits-1/artifacts/a b", "jobs/digits-1/artifacts/%61",
    "jobs/digits-1/secrets.0", "jobs/digits-1/secrets.01", "jobs/digits-1/nodes/stop.0",
    "jobs/digits-1/journal/000000001", "jobs/digits-1/journal-copies/000000004-00000001",
    "jobs/No id/spec", "x/jobs/digits-1/spec", "jobs/digits-1/spec\n",
    "index/No id", "live/digits-1", "live/digits-1.", "recent/0-digits-1", "recent/99999999999990-digits-1",
]  # fmt: skip


@pytest.mark.parametrize("key", ODD)
def test_an_odd_key_is_nobodys(key):
    assert keys.job_of(key) is None
    assert [name for name, form in KEYS.items() if form.match(key) is not None] == []


def test_every_listing_skips_odd_keys():
    store = InMemoryStore()
    for key in ODD:
        if is_key(key):
            store.put(key, b"{")
    assert list_jobs(store) == list_recent(store)[0] == ()
    assert list_live(store) == {}
    assert read_slots(store, JOB, 1) == {}
    assert [*stored_saves(store, JOB)] == [SaveId(1, 10, 0)]  # by what is below, whatever that is
    assert list_artifacts(store, JOB) == ()
    assert [*ObjectStoreLogSink(store, JOB).read("1-0")] == []


TAKEN_APART = re.compile(
    r"\bkey\.(?:removeprefix|removesuffix|split|r?partition|endswith)\(|\{keys\.\w+\([^{}\n]*\)\}[^ \n\"']"
)


def test_no_module_takes_a_key_apart_or_puts_one_together_by_itself():
    package = Path(cloudspot.__file__).parent
    found = {
        str(path.relative_to(package)): TAKEN_APART.findall(path.read_text())
        for path in package.rglob("*.py")
        if "layout import" in path.read_text() and " keys" in path.read_text()
    }
    assert {name: matches for name, matches in found.items() if matches} == ALLOWED


ALLOWED = {
    "agent/delivery/artifact_sync.py": ["key.split("],  # how long its segments are
    "jobstore/access/stored_records.py": ["key.removeprefix("],  # up to a slash, whatever the keys are
    "jobstore/jobs/copying.py": ["key.removeprefix("],  # any name of a mark holds the copy back
    "local/filestore.py": ["key.removesuffix("],  # a directory's place, which is no key
}
