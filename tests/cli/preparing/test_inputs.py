"""[data] in plan and run: what it comes to, and what is refused before anything is bought."""

import msgspec
import pytest
from support.stores.directorystore import directory_store
from support.stores.faultstore import DenyingStore
from support.stores.memorystore import InMemoryStore

from cloudspot import registry
from cloudspot.calls import OffersResult
from cloudspot.cli.preparing import inputs as cli_inputs
from cloudspot.errors import PluginError
from cloudspot.jobstore.inputs import inputs
from cloudspot.local.filestore import FileStore
from cloudspot.local.provider import LocalProvider
from cloudspot.local.provisioner import LocalProvisioner


@pytest.fixture
def data(tmp_path):
    store = directory_store(tmp_path / "data")
    store.put("images/one", b"x" * 1024)
    store.put("images/two", b"y" * 2048)
    return store


@pytest.fixture
def with_data(jobs, data):
    text = jobs.job_file.read_text()
    jobs.job_file.write_text(f'{text}\n[data.images]\nurl = "{data.url}/images/"\n')
    return jobs


def test_plan_tells_how_much_each_machine_fetches(with_data, data):
    lines = with_data.run("plan", str(with_data.job_file)).stdout.splitlines()
    assert f"data.images: {data.url}/images/: 2 file(s), 3.0 KiB" in lines
    assert any(line.startswith("each new machine fetches 3.0 KiB before it trains") for line in lines)
    assert with_data.run_json("plan", str(with_data.job_file))["data"] == [
        {
            "name": "images", "url": f"{data.url}/images/", "mode": "stage", "wait": True, "files": 2,
            "bytes": 3072, "unread": None,
        }
    ]  # fmt: skip


def test_names_that_no_disk_can_hold_together_are_refused(with_data, monkeypatch):
    store = InMemoryStore()
    for key in ("a/b", "a/b/c/d", "a-b"):
        store.put(key, b"x")
    monkeypatch.setattr(inputs, "open_store", lambda _url: store)
    said = with_data.run("plan", str(with_data.job_file), status=2).stderr
    assert "'a/b' is an object, but there are also objects below a/b/: a disk cannot hold both" in said


def test_plan_tells_what_is_fetched_while_the_job_trains(with_data, data):
    text = with_data.job_file.read_text()
    with_data.job_file.write_text(f'{text}\n[data.one]\nurl = "{data.url}/images/one"\nwait = false\n')
    lines = with_data.run("plan", str(with_data.job_file)).stdout.splitlines()
    assert any(
        line.startswith("each new machine fetches 3.0 KiB before it trains and 1.0 KiB during the training")
        for line in lines
    )


def test_plan_of_what_is_read_in_place_asks_one_question_and_tells_a_price_for_each_gib(
    with_data, data, monkeypatch
):
    """A listing of all that a large training streams would take minutes."""
    pages, list_pages, offers = [], FileStore.list_pages, LocalProvisioner.offers

    def dear(self, request):
        found = offers(self, request).offers
        return OffersResult(
            offers=tuple(msgspec.structs.replace(one, transfer_price_per_gib=0.09) for one in found)
        )

    def counted(self, prefix, **options):
        [page] = list_pages(self, prefix, **options)
        for _ in range(3):
            pages.append(prefix)
            yield page

    monkeypatch.setattr(LocalProvisioner, "offers", dear)
    monkeypatch.setattr(FileStore, "list_pages", counted)
    with_data.job_file.write_text(with_data.job_file.read_text() + 'mode = "stream"\n')
    lines = with_data.run("plan", str(with_data.job_file)).stdout.splitlines()
    assert f"data.images: {data.url}/images/: read in place, each time the training reads it" in lines
    [priced] = [line for line in lines if line.startswith("each GiB read in place")]
    assert "costs a machine up to 0.0900 USD outside the bucket's region" in priced
    assert not any("before it trains" in line for line in lines), lines
    assert pages == [""]  # of three
    [found] = with_data.run_json("plan", str(with_data.job_file))["data"]
    assert (found["mode"], found["files"], found["bytes"]) == ("stream", None, None)


@pytest.mark.parametrize("url", ["/none/", "/none", "/images"])
def test_what_cannot_be_read_in_place_is_refused_before_anything_is_bought(jobs, data, url):
    text = jobs.job_file.read_text()
    jobs.job_file.write_text(f'{text}\n[data.images]\nurl = "{data.url}{url}"\nmode = "stream"\n')
    assert "data.images.url" in jobs.run("run", "--detach", str(jobs.job_file), status=2).stderr


def test_plan_tells_what_the_transfer_costs_where_offers_do(with_data, monkeypatch):
    offers = LocalProvisioner.offers

    def dear(self, request):
        found = offers(self, request).offers
        return OffersResult(
            offers=tuple(msgspec.structs.replace(one, transfer_price_per_gib=1024.0 * 1024) for one in found)
        )

    monkeypatch.setattr(LocalProvisioner, "offers", dear)
    out = with_data.run("plan", str(with_data.job_file)).stdout
    assert "before it trains, for up to 3" in out
    assert "USD outside the bucket's region" in out


@pytest.mark.parametrize("command", [["plan"], ["run", "--detach"]])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("/none/", "it contains no objects"),
        ("/none", "there is no such object"),
        ("/images", "stages them all"),
        (None, "symlinks are not followed"),
    ],
)
def test_an_input_that_is_not_there_is_refused_before_anything_is_stored(
    with_data, data, tmp_path, command, change, said
):
    if change is None:
        (data.root / "images" / "link").symlink_to(tmp_path)
        change = "/images/"
    done = with_data.run(
        *command, str(with_data.job_file), "--set", f"data.images.url={data.url}{change}", status=2
    )
    assert "data.images.url: " in done.stderr
    assert said in done.stderr
    assert not (tmp_path / "bucket" / "index").exists()


def test_what_only_the_machines_may_read_is_warned_of(with_data, monkeypatch):
    denied = DenyingStore(InMemoryStore("memory://data"), lambda method, _key: method == "list_page")
    monkeypatch.setattr(inputs, "open_store", lambda _url: denied)
    done = with_data.run("plan", str(with_data.job_file))
    assert "cannot be read from here (access denied" in done.stderr
    assert "a machine that cannot read it, either, fails" in done.stderr
    assert "/images/: not read from here" in done.stdout
    found = with_data.run_json("plan", str(with_data.job_file))["data"][0]
    assert (found["files"], found["bytes"]) == (None, None)
    assert found["unread"].startswith("cannot be read from here")


def test_a_file_url_is_not_looked_up_here_for_machines_elsewhere(with_data, monkeypatch):
    monkeypatch.setattr(LocalProvider, "capabilities", frozenset())
    found = with_data.run_json("plan", str(with_data.job_file))["data"][0]
    assert found["unread"] == "is on each machine's own disk, so it was not checked here"


@pytest.mark.parametrize("command", ["plan", "run"])
def test_machines_on_this_computer_take_no_absolute_path(with_data, command):
    done = with_data.run(command, str(with_data.job_file), "--set", "data.images.path=/in", status=2)
    assert 'data.images.path: "/in" would be the same for all machines on this computer' in done.stderr


def test_an_input_that_is_larger_than_the_disk_is_warned_of(with_data):
    done = with_data.run("plan", str(with_data.job_file), "--set", "resources.disk=1KiB")
    assert "the inputs have 3.0 KiB, but resources.disk is 1.0 KiB; increase it" in done.stderr


def test_inputs_for_which_the_usual_disk_is_too_small_are_warned_of(with_data, monkeypatch):
    store = InMemoryStore()
    store.put("one", b"x" * 3072)
    monkeypatch.setattr(inputs, "open_store", lambda _url: store)
    monkeypatch.setattr(cli_inputs, "DEFAULT_EXTRA_GIB", 0)

    def warned(*words):
        plan = with_data.run("plan", str(with_data.job_file), "--set", "data.images.url=memory://x/", *words)
        assert "1 file(s), 3.0 KiB" in plan.stdout
        return "the inputs have 3.0 KiB, but resources.disk is not set" in plan.stderr

    assert not warned()  # the disk is this computer's
    monkeypatch.setattr(LocalProvider, "capabilities", frozenset())
    assert warned()
    assert not warned("--set", "resources.disk=1GiB")


@pytest.mark.parametrize("path", ["train.py", "train.py/below", "lib", "link", "link/below"])
def test_an_input_never_lies_where_the_code_has_something(with_data, path):
    (with_data.job_file.parent / "lib").mkdir()
    (with_data.job_file.parent / "lib" / "a.py").write_text("")
    (with_data.job_file.parent / "link").symlink_to("lib")
    done = with_data.run("plan", str(with_data.job_file), "--set", f"data.images.path={path}", status=2)
    assert "data.images.path: the code has" in done.stderr


def test_an_input_may_lie_where_a_link_is_that_no_machine_gets(with_data, tmp_path):
    (with_data.job_file.parent / "link").symlink_to(tmp_path)
    with_data.run("plan", str(with_data.job_file), "--set", "data.images.path=link/below")


def test_the_plugin_of_an_inputs_store_goes_to_the_machines():
    assert registry.plugin_distributions("local", "file:///x") == ()
    found = registry.plugin_distributions("local", "file:///x", "s3://bucket/x", "gs://bucket/y/")
    assert set(found) == {"cloudspot-aws", "cloudspot-gcp"}
    with pytest.raises(PluginError, match="no installed plugin opens moon:// URLs"):
        registry.plugin_distributions("local", "file:///x", "moon://x")
    assert cli_inputs.inputs_json(()) == []
