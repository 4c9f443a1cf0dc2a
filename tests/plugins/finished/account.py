"""The paper cloud for the kits: a file for each account, and a metadata service on loopback."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudspot_paper.provider import PaperOptions, PaperProvider
from cloudspot_paper.sdk import PaperCloud

from cloudspot.model import Instance, InstanceState, Market
from cloudspot.testing.account import Account, Call
from cloudspot.testing.machine import Machine

HOME = tempfile.mkdtemp()
numbers = itertools.count()


def empty_store():
    return f"paper://{HOME}/store-{next(numbers)}"


def job_cloud():
    raise NotImplementedError("machines of paper do not boot")


class PaperAccount(Account):
    unknown_ids = ("kit#7", "")

    def __init__(self):
        self.cloud = PaperCloud(f"{HOME}/account-{next(numbers)}")
        self.now = 0.0
        os.environ["PAPER_CLOUD"] = self.cloud.path

    def provider(self):
        return PaperProvider(PaperOptions())

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
    def __init__(self):
        answers = self.answers = {"/notice": None, "/identity": None}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answers[self.path]).encode())

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
        self.answers["/notice"] = deadline.isoformat()

    def silence(self):
        self.server.shutdown()
        self.server.server_close()
