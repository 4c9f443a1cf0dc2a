"""``cloudspot plan``: the other name of ``run --dry-run``."""

from __future__ import annotations

import json
import socket

import msgspec
import pytest

from cloudspot.calls import OffersResult
from cloudspot.jobstore.layout import keys
from cloudspot.local.provider import LocalProvider
from cloudspot.local.provisioner import LocalProvisioner
from cloudspot.plugin.priceparts import with_extras


def test_plan_prints_what_a_dry_run_prints(jobs):
    planned = jobs.run_json("plan", str(jobs.job_file), "--set", "nodes=2")
    dry = jobs.run_json("run", str(jobs.job_file), "--set", "nodes=2", "--dry-run", "--name", planned["id"])
    assert planned == dry
    assert [launch["request"]["num_nodes"] for launch in planned["launches"]] == [2] * 4


def test_plan_stores_nothing_and_launches_nothing(jobs, local_home, tmp_path):
    result = jobs.run("plan", str(jobs.job_file))
    assert "nothing was launched or stored" in result.stdout
    assert [meta.key for meta in jobs.store.list_objects("")] == [keys.STORE_ID]
    assert list(local_home.iterdir()) == []


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["procs_per_node=2"], "python -u train.py, 2 time(s), by torchrun"),
        (["run.launcher=none", 'run.args=["--lr", "1 e"]'], "python -u train.py --lr '1 e'"),
        (
            [f"run.image=here/it@sha256:{'0' * 64}"],
            f"python -u train.py, 1 time(s), by torchrun, in a container of here/it@sha256:{'0' * 64}",
        ),
    ],
)
def test_plan_says_what_starts_and_how(jobs, sets, said):
    options = [word for one in sets for word in ("--set", one)]
    lines = jobs.run("plan", str(jobs.job_file), *options).stdout.splitlines()
    assert f"command on each node: {said}" in lines


@pytest.mark.full
@pytest.mark.parametrize("command", [["plan"], ["plan", "--json"], ["run", "--detach"]])
def test_a_job_that_cannot_survive_anything_is_said_before_it_costs_money(jobs, command):
    """It had neither a session nor checkpoints, and started over after each reclaim."""
    warned = f"no code in {jobs.job_file.parent} opens a session"
    assert warned in jobs.run(*command, str(jobs.job_file)).stderr
    directory = ["--set", "checkpoint.directory=out/*"]
    assert warned not in jobs.run(*command, str(jobs.job_file), *directory).stderr
    (jobs.job_file.parent / "lib").mkdir()
    (jobs.job_file.parent / "lib" / "loop.py").write_text("import cloudspot.train as spot\n")
    assert warned not in jobs.run(*command, str(jobs.job_file)).stderr


@pytest.mark.parametrize("command", ["plan", "run"])
def test_an_image_whose_digest_nobody_tells_is_refused_before_there_is_a_job(jobs, command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        image = f"127.0.0.1:{taken.getsockname()[1]}/it:7"
        result = jobs.run(command, str(jobs.job_file), "--set", f"run.image={image}", status=2)
    assert f"does not return the digest of {image}" in result.stderr
    assert "no jobs" in jobs.run("ps").stdout


def test_a_session_in_what_is_not_sent_saves_nothing(jobs):
    (jobs.job_file.parent / ".cloudspotignore").write_text("old.py\n")
    (jobs.job_file.parent / "old.py").write_text("import cloudspot.train as spot\n")
    assert "opens a session" in jobs.run("plan", str(jobs.job_file)).stderr


@pytest.mark.parametrize(
    ("sets", "is_warned"),
    [
        ((), True),
        (("run.setup='pip install torch'",), False),
    ],
)
def test_what_the_machines_image_lacks_is_said_unless_the_job_brings_it(jobs, monkeypatch, sets, is_warned):
    profile = LocalProvider.boot_profile
    monkeypatch.setattr(
        LocalProvider,
        "boot_profile",
        lambda self: msgspec.structs.replace(profile(self), lacks="the image has no PyTorch"),
    )
    options = [word for one in sets for word in ("--set", one)]
    said = jobs.run("plan", str(jobs.job_file), *options).stderr
    assert ("the image has no PyTorch" in said) is is_warned


@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        (("plan",), "checkpoints/last.pt"),
        (("plan",), "checkpoints"),
        (("plan",), "check*"),
        (("run", "--dry-run"), "checkpoints"),
        pytest.param(("run", "--detach"), "checkpoints", marks=pytest.mark.full),
    ],
)
def test_a_checkpoint_that_a_tryout_has_left_is_sent_with_a_warning(jobs, command, pattern):
    """The job went on from it without a word: it succeeded, and had trained nothing."""
    directory = ("--set", f'checkpoint.directory="{pattern}"')
    left = jobs.job_file.parent / "checkpoints" / "last.pt"
    left.parent.mkdir()
    for content, ignored in (("", ""), ("weights", "checkpoints/\n")):
        left.write_text(content)
        (jobs.job_file.parent / ".cloudspotignore").write_text(ignored)
        assert "is sent as code" not in jobs.run(*command, str(jobs.job_file), *directory).stderr
    (jobs.job_file.parent / ".cloudspotignore").unlink()
    warned = jobs.run(*command, str(jobs.job_file), *directory).stderr
    assert "checkpoints/last.pt: matches checkpoint.directory, but is sent as code" in " ".join(
        warned.split()
    )


def test_a_command_is_planned_without_a_script(jobs):
    text = jobs.job_file.read_text().replace('entrypoint = "train.py"', 'command = ["swift", "sft"]')
    jobs.job_file.write_text(text)
    assert "command on each node: swift sft" in jobs.run("plan", str(jobs.job_file)).stdout.splitlines()


def test_the_job_file_is_job_toml_by_default(jobs, monkeypatch):
    monkeypatch.chdir(jobs.job_file.parent)
    assert jobs.run_json("plan")["id"].startswith("digits-")


@pytest.mark.full
def test_the_very_request_is_the_one_that_is_sent(jobs, tmp_path):
    planned = jobs.run_json("run", str(jobs.job_file), "--dry-run", "--name", "same-1")
    jobs.run("run", str(jobs.job_file), "--detach", "--name", "same-1")
    (intent,) = (tmp_path / "bucket" / "jobs" / "same-1" / "journal").iterdir()
    assert json.loads(intent.read_bytes())["request"]["body"] == planned["launches"][0]["request"]


@pytest.mark.full
def test_a_store_spelled_otherwise_is_the_same_in_the_plan_and_in_the_request(jobs, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "bucket")
    where = ["--store", f"file://{tmp_path}/link/", "--name", "same-1"]
    planned = jobs.run_json("run", str(jobs.job_file), "--dry-run", *where)
    jobs.run("run", str(jobs.job_file), "--detach", *where)
    (intent,) = (tmp_path / "bucket" / "jobs" / "same-1" / "journal").iterdir()
    assert json.loads(intent.read_bytes())["request"]["body"] == planned["launches"][0]["request"]


@pytest.mark.parametrize("command", [["plan"], ["run", "--dry-run"], ["run", "--detach"]])
def test_a_secret_that_is_not_set_is_found_before_anything_is_stored(jobs, tmp_path, command):
    secret = ["--set", 'run.secrets=["CLOUDLESS_TEST_SECRET"]']
    result = jobs.run(*command, str(jobs.job_file), *secret, status=2)
    assert result.stderr == (
        "error: secrets: CLOUDLESS_TEST_SECRET is not set in the environment; export it first\n"
    )
    assert [meta.key for meta in jobs.store.list_objects("")] == [keys.STORE_ID]


@pytest.mark.full
def test_what_the_environment_decides_is_stored_with_the_job(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalProvider, "pinned_options", lambda self: {"spot_price": 0.25})
    jobs.run("run", str(jobs.job_file), "--detach", "--name", "pinned-1")
    (stored,) = (tmp_path / "bucket" / "jobs" / "pinned-1").glob("spec*")
    assert json.loads(stored.read_bytes())["spec"]["providers"]["local"]["spot_price"] == 0.25
    planned = jobs.run_json("plan", str(jobs.job_file))
    assert planned["launches"][0]["price_per_hour"] == 0.25


def test_a_job_that_no_offer_fits_is_not_submitted(jobs, tmp_path, monkeypatch):
    monkeypatch.setattr(LocalProvisioner, "offers", lambda self, request: OffersResult(offers=()))
    result = jobs.run("run", str(jobs.job_file), status=2)
    assert "has no offer that fits" in result.stderr
    assert [meta.key for meta in jobs.store.list_objects("")] == [keys.STORE_ID]


def test_prices_are_told_of_one_machine_and_of_all(jobs):
    def offers(*arguments):
        lines = jobs.run("plan", str(jobs.job_file), *arguments).stdout.splitlines()
        begin = next(number for number, line in enumerate(lines) if line.startswith("offers"))
        return [" ".join(line.split()) for line in lines[begin + 1 : begin + 3]]

    assert offers() == ["TYPE ZONE MARKET PER HOUR", "1 local local-a spot 0.3000 USD"]
    assert offers("--set", "nodes=4") == [
        "TYPE ZONE MARKET PER HOUR 4 NODES PER HOUR",
        "1 local local-a spot 0.3000 USD 1.2000 USD",
    ]


def test_what_the_first_price_adds_up_is_told_below_the_offers(jobs, monkeypatch):
    find = LocalProvisioner.offers
    assert not [
        line for line in jobs.run("plan", str(jobs.job_file)).stdout.splitlines() if "offer 1:" in line
    ]

    def offers(self, request):
        found = find(self, request).offers
        return OffersResult(offers=tuple(with_extras(one, {"disk": 0.125, "address": None}) for one in found))

    monkeypatch.setattr(LocalProvisioner, "offers", offers)
    lines = jobs.run("plan", str(jobs.job_file)).stdout.splitlines()
    assert "price parts of offer 1 per hour: machine 0.3, disk 0.125, address not counted" in lines
    planned = jobs.run_json("plan", str(jobs.job_file))["launches"]
    assert planned[0]["price_per_hour"] == 0.425
    assert {one["price_parts"].partition(", ")[2] for one in planned} == {"disk 0.125, address not counted"}


def test_what_a_gib_of_checkpoints_costs_is_a_column_where_some_offer_is_elsewhere(jobs, monkeypatch):
    find = LocalProvisioner.offers
    for command in ("plan", "offers"):
        assert "TRANSFER" not in jobs.run(command, str(jobs.job_file)).stdout

    def offers(self, request):
        return OffersResult(
            offers=tuple(
                msgspec.structs.replace(one, transfer_price_per_gib=0.02 * (one.zone == "local-b"))
                for one in find(self, request).offers
            )
        )

    monkeypatch.setattr(LocalProvisioner, "offers", offers)
    for command, key in (("plan", "launches"), ("offers", "offers")):
        lines = jobs.run(command, str(jobs.job_file)).stdout.splitlines()
        (header,) = (line for line in lines if line.rstrip().endswith("TRANSFER"))
        rows = {
            line.split(" spot ")[0].split()[-1]: line
            for line in lines[lines.index(header) + 1 :]
            if " spot " in line
        }
        assert rows["local-b"].rstrip().endswith("0.0200 USD")
        assert rows["local-a"].rstrip().endswith("0.0000 USD")
        assert any(line.startswith("TRANSFER: the price of a GiB to or from the bucket") for line in lines)
        found = jobs.run_json(command, str(jobs.job_file))[key]
        assert {one["zone"]: one["transfer_price_per_gib"] for one in found} == {
            "local-a": 0.0,
            "local-b": 0.02,
        }


@pytest.mark.parametrize("command", [["plan"], ["run", "--detach"]])
def test_files_that_the_machines_will_lack_are_named(jobs, command):
    for number in range(7):
        (jobs.job_file.parent / f"data{number}").symlink_to("/mnt/data")
    said = jobs.run(*command, str(jobs.job_file)).stderr.splitlines()
    assert "warning: not sent to the machines: data0: is a symlink that leads outside the code" in said
    assert "warning: not sent to the machines: 2 more such files" in said


def test_the_very_request_with_its_boot_script_is_printed_when_it_is_asked_for(jobs):
    """190 lines of boot script came before anything useful."""
    assert len(jobs.run("plan", str(jobs.job_file)).stdout.splitlines()) < 20
    lines = jobs.run("plan", str(jobs.job_file), "--request").stdout.splitlines()
    assert (
        "    | #!/usr/bin/env bash"
        in lines[lines.index("request for offer 1 (--json prints all requests):") :]
    )


def test_the_limits_of_a_job_are_among_the_first_lines(jobs):
    sets = ["--set", "limits.max_cost=20", "--set", "limits.max_runtime=2h", "--set", "nodes=2"]
    lines = jobs.run("plan", str(jobs.job_file), *sets).stdout.splitlines()
    assert lines[1] == "buys 2 x local in local-a (spot), 0.6000 USD an hour in all"
    assert lines[3].startswith("stops at 20.00 USD (limits.max_cost) or 2h 00m")
