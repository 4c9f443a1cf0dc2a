"""What the sandboxes of several clouds share: an account's life, its quotas, and changes that show late."""

import json
import threading
import urllib.request
from dataclasses import dataclass
from datetime import datetime, timezone

import pytest
from support.worlds.listed_host import ListedHost

from cloudspot.emulation.api_faults import Call, Faults, LateChanges
from cloudspot.emulation.cloud import EmulatedMachine, JobHint
from cloudspot.emulation.emulated_account import EmulatedAccount
from cloudspot.plugin import machinetags


class MadeAccount(EmulatedAccount):
    name = "made"

    def __init__(self):
        super().__init__()
        self.faults.is_machine = lambda key: key == "machine"
        self.ticked = threading.Event()
        self.ended = []

    def start(self, host, *, address, directory):
        def app(_environ, start_response):
            start_response("200 OK", [])
            return [b"served"]

        self.serve(app, address=address)
        self.faults.record(Call("store", "MakeBucket", {}, "", None))
        self.begin(directory, rights=lambda call: [f"may {call.action}"], resource=lambda _call: "*")

    def environment(self):
        return {"URL": self.url}

    def machine_environment(self):
        return {}

    def tick(self):
        self.ticked.set()

    def close_functions(self):
        self.ended.append(self.front is not None)


def read(url):
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        return answer.read()


def test_an_account_serves_keeps_its_trail_and_ticks_until_it_is_stopped(tmp_path):
    account = MadeAccount()
    account.start(ListedHost(), address="127.0.0.1", directory=tmp_path)
    try:
        assert read(account.url) == read(account.functions_url) == b"served"
        assert account.faults.actions() == [], "what was there before the first job counts as no call"
        account.faults.record(Call("store", "Get", {}, "", None, access_key="machine"))
        assert account.ticked.wait(30)
    finally:
        account.stop()
        account.stop()
    assert account.ended == [True], "functions end once, while the servers stand"
    (line,) = map(json.loads, (tmp_path / "requests.jsonl").read_text().splitlines())
    assert (line["by"], line["action"], line["rights"]) == ("machine", "Get", ["may Get"])


def test_one_that_has_not_started_can_be_stopped():
    account = MadeAccount()
    account.stop()
    assert account.ended == []


def test_each_notice_is_told_once():
    account, host = MadeAccount(), ListedHost()
    for machine_id in ("i-1", "i-2"):
        host.start(EmulatedMachine(id=machine_id, address="10.77.0.9"))
    assert list(account.newly_noticed(host)) == []
    host.warn("i-2", datetime.now(timezone.utc))
    assert list(account.newly_noticed(host)) == ["i-2"]
    assert list(account.newly_noticed(host)) == []


@dataclass
class Machine:
    zone: str = "a"
    instance_type: str = "small"
    market: str = "spot"
    num_vcpus: int = 4


@pytest.mark.parametrize(("quota", "granted"), [(None, 5), (0, 0), (11, 0), (12, 1), (16, 2), (100, 5)])
def test_a_quota_counts_the_vcpus_of_one_market(quota, granted):
    faults = Faults()
    if quota is not None:
        faults.vcpu_quota["spot"] = quota
    alive = [Machine(), Machine(zone="b", instance_type="other"), Machine(market="on-demand")]
    assert faults.num_in_quota(5, alive, market="spot", vcpus=4) == granted


@pytest.mark.parametrize(("capacity", "granted"), [(None, 5), (0, 0), (1, 0), (3, 2), (100, 5)])
def test_stock_counts_machines_of_a_type_in_a_zone_and_market(capacity, granted):
    faults = Faults(capacity={("a", "small", "spot"): capacity})
    alive = [Machine(), Machine(zone="b"), Machine(instance_type="big"), Machine(market="on-demand")]
    assert faults.num_in_stock(5, alive, zone="a", instance_type="small", market="spot") == granted


def test_late_changes_come_in_their_order_and_others_at_once():
    now, made = 100.0, []
    late = LateChanges(lambda: now)
    late.make(lambda: made.append("at once"), after_seconds=0.0)
    late.make(lambda: made.append("first"), after_seconds=5.0)
    late.make(lambda: made.append("second"), after_seconds=5.0)
    now = 104.9
    late.catch_up()
    assert made == ["at once"]
    now = 105.0
    late.catch_up()
    late.catch_up()
    assert made == ["at once", "first", "second"]


def test_a_machines_tags_tell_its_job():
    tags = {machinetags.JOB: "j-1", machinetags.LAUNCH: "3", machinetags.NUM_NODES: "4"}
    assert JobHint.of_tags(tags, rank=2) == JobHint(job_id="j-1", launch=3, rank=2, num_nodes=4)
    assert JobHint.of_tags({machinetags.JOB: "j-1"}, rank=0) is None
    assert JobHint.of_tags({"Name": "web"}, rank=0) is None
