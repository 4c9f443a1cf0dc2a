"""The paper cloud for the kits: a file for each account, and a metadata service on loopback."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudspot_paper.logs import PaperLogSink
from cloudspot_paper.provider import PaperOptions, PaperProvider
from cloudspot_paper.sdk import PRICES, ZONES, PaperCloud
from cloudspot_paper.store import PaperStore

from cloudspot.model import Instance, InstanceState, Market
from cloudspot.testing.account import Account, Bought, Call, LogAccount, Sold, StoreAccount
from cloudspot.testing.machine import Machine, OtherEvent, Trouble

HOME = tempfile.mkdtemp()
numbers = itertools.count()


def empty_store():
    return f"paper://{HOME}/store-{next(numbers)}"


def job_cloud():
    raise NotImplementedError("machines of paper do not boot")


class PaperPlace(StoreAccount):
    """SQLite answers or it does not: nothing of it can be disturbed."""

    def __init__(self):
        self.url = empty_store()

    def open(self):
        return PaperStore(self.url)

    def pending(self):
        return []


class PaperLogs(LogAccount):
    def __init__(self):
        self.cloud = PaperCloud(f"{HOME}/account-{next(numbers)}")
        os.environ["PAPER_CLOUD"] = self.cloud.path

    def sink(self, job_id):
        return PaperLogSink(PaperOptions(), job_id, store_url="paper://kit")

    def inject(self, call, fault):
        self.cloud.turn(call.value, fault.value)

    def heal(self):
        for call in Call:
            self.cloud.turn(call.value, None)


class PaperAccount(Account):
    unknown_ids = ("kit#7", "")

    def __init__(self):
        self.cloud = PaperCloud(f"{HOME}/account-{next(numbers)}")
        self.now = 0.0
        os.environ["PAPER_CLOUD"] = self.cloud.path

    def provider(self):
        return PaperProvider(PaperOptions())

    def sold(self):
        return [
            Sold(
                instance_type=one.name,
                zone=zone,
                market=market,
                price_per_hour=price,
                cpus=one.cpus,
                memory_bytes=one.memory_bytes,
            )
            for one in PRICES
            for zone in ZONES
            for market, price in ((Market.SPOT, one.spot_price), (Market.ON_DEMAND, one.price))
        ]

    def bought(self, instance_id):
        body = self.cloud.body(instance_id)
        names = ("user_data", "instance_type", "zone", "labels", "max_seconds")
        return Bought(market=Market(body["market"]), **{name: body[name] for name in names})

    def limit(self, num_machines):
        self.cloud.turn("room", num_machines)

    def inject(self, call, fault):
        self.cloud.turn(call.value, fault.value)

    def heal(self):
        for call in Call:
            self.cloud.turn(call.value, None)

    def lag(self, seconds):
        self.cloud.turn("lag", seconds)

    def pass_time(self, seconds):
        self.now += seconds
        self.cloud.turn("now", self.now)


class PaperMachine(Machine):
    notice_seconds = 120.0

    def __init__(self):
        answers = self.answers = {"/notice": [], "/identity": None}
        machine = self
        self.trouble = None

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                if machine.trouble is Trouble.HANG:
                    time.sleep(3.0)
                self.send_response(500 if machine.trouble is Trouble.ERROR else 200)
                self.end_headers()
                told = json.dumps(answers[self.path])
                self.wfile.write(("<html>" if machine.trouble else told).encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        os.environ["PAPER_METADATA"] = f"http://127.0.0.1:{self.server.server_port}"
        facts = {"rank": 1, "address": "10.0.0.2", "zone": "desk-a", "instance_type": "sheet"}
        answers["/identity"] = {"instance_id": "kit#1", "market": "spot", **facts}
        self.instance = Instance(
            id="kit#1", state=InstanceState.RUNNING, job_id="kit-1", launch=1, market=Market.SPOT, **facts
        )

    def provider(self):
        return PaperProvider(PaperOptions())

    def give_notice(self, deadline):
        at = deadline and deadline.isoformat()
        self.answers["/notice"].append({"machine": "kit#1", "event": "reclaim", "at": at})

    def give_other_event(self, event):
        machine = "kit#2" if event is OtherEvent.ANOTHER_MACHINE else "kit#1"
        kind = "reclaim" if event is OtherEvent.ANOTHER_MACHINE else event.value
        self.answers["/notice"].append({"machine": machine, "event": kind, "at": None})

    def trouble_with(self, trouble):
        self.trouble = trouble

    def silence(self):
        self.server.shutdown()
        self.server.server_close()
