"""What stands between cloudspot and a plugin: its faults bear its name, and what hangs is left behind."""

from __future__ import annotations

import inspect
import math
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
from support.stores.memorystore import InMemoryStore
from support.worlds.memorycloud import MemoryProvider, MemoryProvisioner

from cloudspot.calls import CreateRequest, CreateResult, InstancesRequest, InstancesResult, TerminateRequest
from cloudspot.calls import guard as module
from cloudspot.calls.guard import (
    CALLS,
    MAX_HANGING,
    Guard,
    Guarded,
    Rule,
)
from cloudspot.calls.retrying import retry
from cloudspot.errors import (
    CapacityError,
    CloudspotError,
    ObjectMissing,
    OverdueError,
    PluginError,
    TransientError,
)
from cloudspot.host.left_calls import cut_off_all, enforced_limits, inside, is_any_under_way
from cloudspot.interfaces import LogSink, ObjectStore, Provider, Provisioner, Upload
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.market.plugin_policy import PluginPolicy
from cloudspot.model import LaunchRequest

TOLD = 'provider "acme" of cloudspot-acme 1.2'
CREATE = CreateRequest(request=LaunchRequest(provider="acme", body={}), token="t")


def entered(one, interface, **options):
    return Guard(TOLD, **options).enter(one, interface)


def provisioner(**methods):
    """Return a plugin's provisioner with these methods, as the registry would hand it out."""
    kind = type("Acme", (MemoryProvisioner,), methods)
    return entered(kind(None), Provisioner)


def store(**methods):
    return entered(type("AcmeStore", (InMemoryStore,), methods)("acme://bucket"), ObjectStore)


def answer(found):
    def method(self, *args, **kwargs):
        if isinstance(found, BaseException):
            raise found
        return found

    return method


@pytest.fixture
def enforced():
    with enforced_limits():
        yield


@pytest.fixture
def hang(enforced, monkeypatch):
    """Make methods that hang until the test's end, whose calls are cut off at once."""
    released = threading.Event()

    def hanging(interface, name, *, then=None):
        rules = module.CALLS[interface]
        monkeypatch.setitem(rules, name, Rule(0.02, is_unknown=rules[name].is_unknown))

        def method(self, *args, **kwargs):
            released.wait()
            return then() if callable(then) else then

        return method

    hanging.release = released.set
    yield hanging
    released.set()
    while is_any_under_way():
        time.sleep(0.001)


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [KeyError("x"), SystemExit(3), AttributeError("two\nlines")])
def test_an_error_that_the_interface_does_not_have_is_the_plugins_fault(fault):
    with pytest.raises(PluginError) as caught:
        provisioner(instances=answer(fault)).instances(InstancesRequest())
    told = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
    assert str(caught.value) == f"{TOLD} is broken: Provisioner.instances() raised {told}"
    assert caught.value.__cause__ is fault


def test_an_error_that_it_has_passes_as_it_is():
    error = CapacityError("no room")
    with pytest.raises(CapacityError) as caught:
        provisioner(create=answer(error)).create(CREATE)
    assert caught.value is error


def test_an_object_that_no_plugin_brought_is_left_alone():
    kind = type("Own", (MemoryProvisioner,), {"console": answer(KeyError("x"))})
    with pytest.raises(KeyError):
        kind(None).console(None)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda fault: provisioner(create=fault).create(CREATE), "Provisioner.create"),
        (
            lambda fault: provisioner(terminate=fault).terminate(TerminateRequest(instance_ids=("i",))),
            "Provisioner.terminate",
        ),
        (lambda fault: store(put=fault).put("a", b"1", if_absent=True), "ObjectStore.put"),
        (
            lambda fault: store(open_upload=answer(upload(commit=fault))).open_upload("a").commit(),
            "Upload.commit",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["raises", "hangs"])
def test_a_fault_of_a_call_that_may_have_bought_or_written_leaves_its_outcome_unknown(call, name, kind, hang):
    fault = answer(KeyError("x")) if kind == "raises" else hang(*name.split("."))
    with pytest.raises(TransientError, match=rf"{name}\(\) .*; its outcome is unknown$") as caught:
        call(fault)
    assert str(caught.value).startswith(TOLD)
    assert isinstance(caught.value.__cause__, PluginError)


def upload(**methods):
    nothing = dict.fromkeys(("write", "commit", "abort"), answer(None))
    return type("AcmeUpload", (Upload,), {**nothing, **methods})()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: provisioner(console=answer(None)).console(None),
            "Provisioner.console() returned None, not str",
        ),
        (
            lambda: provisioner(instances=answer([])).instances(InstancesRequest()),
            "Provisioner.instances() returned list, not InstancesResult",
        ),
        (
            lambda: provisioner(create=answer(CreateResult(instances=(None,)))).create(CREATE),
            "Provisioner.create() returned CreateResult with a wrong field: instances is tuple[NoneType], not tuple[Instance, ...]",
        ),
        (
            lambda: provisioner(instances=answer(InstancesResult(instances="i"))).instances(
                InstancesRequest()
            ),
            "Provisioner.instances() returned InstancesResult with a wrong field: instances is str, not tuple[Instance, ...]",
        ),
        (lambda: store(get=answer("text")).get("a"), "ObjectStore.get() returned str, not bytes"),
        (lambda: store(head=answer({})).head("a"), "ObjectStore.head() returned dict, not ObjectMeta"),
        (
            lambda: list(store(unfinished_uploads=answer([3])).unfinished_uploads()),
            "ObjectStore.unfinished_uploads() returned int, not UnfinishedUpload",
        ),
        (
            lambda: provisioner(current_price=answer("0.3")).current_price(None),
            "Provisioner.current_price() returned str, not float | None",
        ),
        (
            lambda: provider(inventories=answer([3])).inventories(all_regions=False),
            "Provider.inventories() returned list[int], not Sequence[Inventory]",
        ),
        (lambda: provider(provisioner=answer(None)).provisioner(), "Provider.provisioner() returned None"),
    ],
)
def test_an_answer_of_another_type_is_the_plugins_fault(call, told):
    with pytest.raises(CloudspotError) as caught:
        call()
    assert f"{TOLD} is broken: {told}" in str(caught.value)
    assert isinstance(caught.value, PluginError) or "its outcome is unknown" in str(caught.value)


def provider(**methods):
    kind = type("AcmeProvider", (MemoryProvider,), methods)
    return entered(kind(kind.options_type()), Provider)


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"token_seconds": "3600"}, "Acme.token_seconds is str, not float"),
        (
            {"token_seconds": property(lambda self: self.nowhere)},
            "Acme has no token_seconds",
        ),
        ({"token_seconds": property(lambda self: 1 / 0)}, "Acme.token_seconds raised ZeroDivisionError"),
    ],
)
def test_an_attribute_that_is_missing_or_of_another_type_is_the_plugins_fault(attributes, told):
    kind = type("Acme", (MemoryProvisioner,), attributes)
    with pytest.raises(PluginError, match=told):
        provider(provisioner=lambda self: kind(None)).provisioner()


def test_what_a_plugin_makes_is_guarded_as_it_is_itself():
    found = provider(
        provisioner=lambda self: type("Acme", (MemoryProvisioner,), {"console": answer(3)})(None)
    )
    with pytest.raises(PluginError, match="returned int, not str"):
        found.provisioner().console(None)
    with pytest.raises(PluginError, match=r"Upload.abort\(\) raised KeyError"):
        store(open_upload=answer(upload(abort=answer(KeyError("x"))))).open_upload("a").abort()


def test_a_wrong_argument_is_not_the_plugins_fault_and_any_other_value_error_is():
    with pytest.raises(ValueError, match="must consist of ASCII"):
        store().get("../a")
    with pytest.raises(PluginError, match=r"ObjectStore.get\(\) raised ValueError: no number"):
        store(get=answer(ValueError("no number"))).get("a")
    with pytest.raises(PluginError, match=r"ObjectStore.list_page\(\) raised ValueError: no number"):
        store(list_page=answer(ValueError("no number"))).list_page("jobs/")
    with pytest.raises(ValueError, match="limit"):
        store().list_page("jobs/", limit=0)


def test_an_upload_refuses_what_comes_after_its_end_and_any_other_value_error_is_its_plugins_fault():
    """Any ValueError of a plugin's upload used to count as a mistake of cloudspot's own."""
    refuse = answer(ValueError("I/O operation on closed file"))
    made = store(open_upload=answer(upload(write=refuse))).open_upload("a")
    with pytest.raises(PluginError, match=r"Upload.write\(\) raised ValueError: I/O operation"):
        made.write(b"x")
    made.abort()
    with pytest.raises(ValueError, match="closed file") as caught:
        made.write(b"x")
    assert not isinstance(caught.value, CloudspotError)
    made = store(open_upload=answer(upload(commit=refuse))).open_upload("a")
    with pytest.raises(
        TransientError, match=r"Upload.commit\(\) raised ValueError: .*; its outcome is unknown"
    ):
        made.commit()
    with pytest.raises(ValueError, match="closed file"):
        made.commit()


def test_a_fault_tells_no_signature_and_no_log_in():
    url = "https://ada:hunter2@acme.example/b/k?X-Sig=hunter2&X-Expires=60"
    text = f"GET {url} failed (path '/b/k?sig=hunter2'), is it there? a=b"
    with pytest.raises(PluginError) as caught:
        provisioner(console=answer(KeyError(text))).console(None)
    assert "hunter2" not in str(caught.value)
    assert "GET https://...@acme.example/b/k?... failed (path '/b/k?...'), is it there? a=b" in str(
        caught.value
    )


def test_data_may_be_passed_by_name():
    found = store()
    found.put("a", data=b"x")
    assert found.get("a") == b"x"


def test_the_text_of_an_error_that_may_quote_a_secret_is_not_told():
    found = entered(
        type("Acme", (MemoryProvisioner,), {"console": answer(KeyError("hunter2"))})(None),
        Provisioner,
        hides_text=True,
    )
    with pytest.raises(PluginError) as caught:
        found.console(None)
    assert str(caught.value).endswith("Provisioner.console() raised KeyError")


def test_each_step_of_an_iterator_is_guarded():
    def read(self, prefix, *, after=None):
        yield from InMemoryStore.list_pages(self, prefix, after=after)
        raise KeyError("x")

    found = store(list_pages=read)
    found.put("a", b"1")
    pages = found.list_pages("")
    assert [one.key for one in next(pages).objects] == ["a"]
    with pytest.raises(PluginError, match=r"ObjectStore.list_pages\(\) raised KeyError"):
        next(pages)


def test_the_table_has_each_call_of_each_interface():
    interfaces = {one.__name__: one for one in Guarded.__subclasses__()}
    assert interfaces["PluginPolicy"] is PluginPolicy
    assert interfaces.keys() == CALLS.keys()
    for name, interface in interfaces.items():
        methods = {
            one for one, value in vars(interface).items() if inspect.isfunction(value) and one[0] != "_"
        }
        # It is built on list_pages.
        assert methods - {"list_objects"} == CALLS[name].keys(), name


# --- time limits ----------------------------------------------------------------------------------


def test_a_call_that_hangs_is_cut_off_and_its_late_answer_ignored(hang):
    found = provisioner(console=hang("Provisioner", "console", then="late"))
    with pytest.raises(OverdueError) as caught:
        found.console(None)
    assert str(caught.value) == f"{TOLD} hangs: Provisioner.console() has not ended within 0.02 s"
    assert is_any_under_way()


def test_a_plugin_with_many_calls_that_hang_is_not_called_until_one_returns(hang):
    found = provisioner(console=hang("Provisioner", "console", then="late"), release=answer(None))
    for _ in range(MAX_HANGING):
        with pytest.raises(OverdueError, match="has not ended"):
            found.console(None)
    with pytest.raises(
        OverdueError,
        match=r"hangs: Provisioner.release\(\) was not attempted because 4 calls are already hanging",
    ):
        found.release("job")
    assert provisioner(release=answer(None)).release("job") is None  # another plugin's
    hang.release()
    while is_any_under_way():
        time.sleep(0.001)
    assert found.release("job") is None


def test_a_call_that_was_cut_off_is_not_repeated_at_once(hang):
    calls = []

    def console():
        calls.append(1)
        return found.console(None)

    found = provisioner(console=hang("Provisioner", "console"))
    with pytest.raises(OverdueError):
        retry(console, sleep=lambda seconds: None)
    assert len(calls) == 1


def test_an_iterator_that_hangs_halfway_is_cut_off_there(hang):
    released = hang("ObjectStore", "list_pages")

    def read(self, prefix, *, after=None):
        yield from InMemoryStore.list_pages(self, prefix, after=after)
        time.sleep(0.06)  # longer than the items of one step are waited for
        released(self)
        yield

    found = store(list_pages=read)
    with pytest.raises(OverdueError, match=r"ObjectStore.list_pages\(\) has not ended"):
        list(found.list_pages(""))


def test_a_plugins_calls_are_made_in_other_threads_and_what_they_call_in_the_same(enforced):
    inner = store(get=lambda self, key: str(threading.get_ident()).encode())

    def console(self, instance):
        return f"{threading.get_ident()} {inner.get('a').decode()}"

    own, nested = provisioner(console=console).console(None).split()
    assert own == nested != str(threading.get_ident())


def test_what_ships_with_cloudspot_is_called_in_the_same_thread(enforced):
    found = entered(
        type("Own", (MemoryProvisioner,), {"console": lambda self, one: str(threading.get_ident())})(None),
        Provisioner,
        is_cut_off=False,
    )
    assert found.console(None) == str(threading.get_ident())


def test_outside_a_process_that_enforces_limits_nothing_changes_threads():
    found = provisioner(console=lambda self, one: str(threading.get_ident()))
    assert found.console(None) == str(threading.get_ident())


def test_a_request_says_how_long_its_answer_is_waited_for(enforced):
    heard = []

    def instances(self, request):
        heard.append(request.seconds_left())
        return InstancesResult(instances=())

    found = provisioner(instances=instances)
    found.instances(InstancesRequest())
    found.instances(InstancesRequest(deadline=time.monotonic() + 5.0))
    assert heard[0] == pytest.approx(120.0, abs=2.0)
    assert heard[1] == pytest.approx(5.0, abs=2.0)
    with pytest.raises(TypeError):
        InstancesRequest(math.inf)


def test_a_caller_that_waits_for_less_long_than_the_plugin_may_take_is_left_in_time(enforced):
    """Requests said their callers' deadlines, and nobody kept them."""
    released = threading.Event()

    def late(self, request):
        released.wait()
        return InstancesResult(instances=())

    def created(self, request):
        released.wait()
        return CreateResult(instances=())

    found = provisioner(instances=late, create=created)
    try:
        with pytest.raises(
            OverdueError, match=r"instances\(\) had not ended after \S+ s, when its caller stopped waiting$"
        ):
            found.instances(InstancesRequest(deadline=time.monotonic() + 0.2))
        soon = msgspec.structs.replace(CREATE, deadline=time.monotonic() + 0.2)
        with pytest.raises(OverdueError, match=r"when its caller stopped waiting; its outcome is unknown$"):
            found.create(soon)
    finally:
        released.set()


def test_a_call_whose_deadline_has_passed_is_not_made(enforced):
    calls = []
    found = provisioner(create=lambda self, request: calls.append(request) or CreateResult(instances=()))
    with pytest.raises(OverdueError, match=r"create\(\) was not attempted because its deadline has passed"):
        found.create(msgspec.structs.replace(CREATE, deadline=time.monotonic()))
    assert calls == []


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_more_data_may_take_more_time(enforced, size):
    rules = []

    class Watched(Guard):
        def run(self, what, rule, *args):
            rules.append(rule)
            return super().run(what, rule, *args)

    found = Watched(TOLD).enter(InMemoryStore("acme://bucket"), ObjectStore)
    found.put("a", bytes(size))
    found.get_range("a", 5, size)
    assert [one.seconds for one in rules] == [120.0 + 10.0 * size / (1 << 20)] * 2


def test_a_call_that_was_cut_off_does_not_touch_the_callers_buffer(hang):
    def get_range_into(self, key, start, buffer):
        slow(self)
        buffer[:] = b"late"
        return 4

    slow = hang("ObjectStore", "get_range_into")
    buffer = bytearray(b"mine")
    with pytest.raises(OverdueError):
        store(get_range_into=get_range_into).get_range_into("a", 0, buffer)
    hang.release()
    while is_any_under_way():
        time.sleep(0.001)
    assert buffer == b"mine"


def test_the_bytes_that_are_asked_for_are_in_the_callers_buffer(enforced):
    found = store()
    found.put("a", memoryview(bytearray(b"12345")))
    buffer = bytearray(4)
    assert found.get_range_into("a", 2, memoryview(buffer)) == 3
    assert buffer[:3] == b"345"


def test_ctrl_c_waits_for_no_call_in_any_thread(enforced):
    begun, released = threading.Barrier(3), threading.Event()

    def get(self, key):
        begun.wait()
        released.wait()
        return b""

    found = store(get=get)
    interrupter = threading.Thread(target=lambda: (begun.wait(), cut_off_all()))
    interrupter.start()
    try:
        with pytest.raises(OverdueError):
            map_parallel(found.get, ["a", "b"])
    finally:
        released.set()
        interrupter.join()


def test_threads_are_used_again(enforced):
    found = store(get=lambda self, key: str(threading.get_ident()).encode())
    assert len({found.get("a") for _ in range(50)}) <= 2


def test_a_patient_store_passes_an_error_that_a_plugin_means():
    with pytest.raises(ObjectMissing):
        with_retries(store(), sleep=lambda seconds: None).get("a")


def test_code_of_a_plugin_is_known_as_such():
    assert not (inside.plugin is not None)
    assert provisioner(console=lambda self, one: str(inside.plugin is not None)).console(None) == "True"
    assert not (inside.plugin is not None)


def test_a_log_sink_refuses_what_is_no_streams_name():
    class Sink(LogSink):
        write = answer(ValueError("no name"))
        streams = read = answer(())

    found = entered(Sink(), LogSink)
    with pytest.raises(ValueError, match=r"^no name$"):
        found.write([SimpleNamespace(stream="../a")])
    with pytest.raises(TransientError, match=r"LogSink.write\(\) raised ValueError: no name"):
        found.write([SimpleNamespace(stream="1-0")])
