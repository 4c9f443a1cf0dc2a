"""An emulated cloud's logs for the kit of failures, by the plugin's real SDK."""

from __future__ import annotations

from cloudspot.testing.account import Call, Fault, LogAccount

ALWAYS = 1000
"""More often than any test asks."""


class EmulatedLogs(LogAccount):
    """``make(job_id)`` opens a sink; ``prefix`` keeps the jobs of a test from those of others."""

    def __init__(self, service, make, *, prefix, throttled):
        self.service, self.make, self.prefix, self.throttled = service, make, prefix, throttled

    def sink(self, job_id):
        return self.make(self.prefix + job_id)

    def inject(self, call, fault):
        service, faults = self.service, self.service.faults
        if fault is Fault.DENIED:
            faults.denied.update(service.read_rights if call is Call.READ_LINES else [service.write_right])
            return
        code, status = self.throttled if fault is Fault.THROTTLED else service.failed
        is_lost = fault is Fault.LOST_ANSWER
        action = "*" if call is Call.READ_LINES else service.write_action
        faults.inject(action, code, status=status, happens=is_lost, times=1 if is_lost else ALWAYS)

    def heal(self):
        self.service.faults.denied.clear()
        self.service.faults.withdraw()
