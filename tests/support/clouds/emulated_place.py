"""An emulated cloud's bucket for the kit of failures: the plugin's real SDK, and a proxy that cuts answers."""

from __future__ import annotations

from datetime import timedelta

from cloudspot.testing.account import Call, Fault, StoreAccount

ALWAYS = 1000
"""More often than any test asks."""
REQUESTS = {
    Call.PUT: ("put",),
    Call.GET: ("get", "head"),
    Call.LIST_OBJECTS: ("list",),
    Call.DELETE: ("delete",),
    Call.BEGIN: ("begin",),
    Call.PART: ("part",),
    Call.COMPLETE: ("complete",),
}
RIGHTS = {Call.GET: "get", Call.LIST_OBJECTS: "list", Call.DELETE: "delete"}
"""What is not named takes the right to put."""


class EmulatedPlace(StoreAccount):
    def __init__(self, cloud, bucket, proxy, monkeypatch):
        self.cloud, self.bucket, self.proxy, self.monkeypatch = cloud, bucket, proxy, monkeypatch
        self.few_parts_bytes = cloud.large_bytes
        self.many_parts_bytes = 4 * cloud.large_bytes

    def open(self):
        url = f"{self.cloud.scheme}://{self.bucket}/some/prefix"
        part_bytes = self.cloud.large_bytes // 3
        return self.cloud.open(url, part_bytes=part_bytes, sleep=lambda seconds: None)

    def inject(self, call, fault):
        if fault is Fault.CUT:
            self.proxy.cuts_answers = True
        elif fault is Fault.DENIED:
            self.cloud.faults.denied.add(self.cloud.rights[RIGHTS.get(call, "put")])
        else:
            code, status = self.cloud.throttled if fault is Fault.THROTTLED else self.cloud.failed
            is_lost = fault is Fault.LOST_ANSWER
            names = {self.cloud.actions[name] for name in REQUESTS.get(call, ())} or {self.cloud.abort_action}
            for name in names:
                self.cloud.faults.inject(
                    name, code, status=status, happens=is_lost, times=1 if is_lost else ALWAYS
                )

    def heal(self):
        self.proxy.cuts_answers = False
        self.cloud.faults.denied.clear()
        self.cloud.faults.withdraw()

    def pass_time(self, seconds):
        now = self.cloud.server._now
        self.monkeypatch.setattr(
            self.cloud.server, "_now", lambda: now() + timedelta(seconds=seconds), raising=False
        )

    def pending(self):
        return [name.removeprefix("some/prefix/") for name in self.cloud.pending(self.bucket)]
