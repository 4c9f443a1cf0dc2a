"""Which record lies under which key."""

import re

from cloudspot.jobstore.jobs.submission import _Secrets
from cloudspot.jobstore.layout.records import (
    Certificate,
    Exit,
    Heartbeat,
    JournalCopy,
    JournalRecord,
    Manifest,
    MarketSeen,
    Notice,
    Part,
    Removal,
    SettledLaunches,
    Slot,
    StandingDriver,
    StopRequest,
    Submission,
    Summary,
    Suspicions,
)
from cloudspot.model import LogRecord

KINDS = (
    (r"index/[^/]+", Removal),
    (r"market/[^/]+/[^/]+", MarketSeen),
    (r"drivers/[^/]+", StandingDriver),
    (r"jobs/[^/]+/spec", Submission),
    (r"jobs/[^/]+/secrets", _Secrets),
    (r"jobs/[^/]+/summary", Summary),
    (r"jobs/[^/]+/settled", SettledLaunches),
    (r"jobs/[^/]+/suspicions", Suspicions),
    (r"jobs/[^/]+/stop", StopRequest),
    (r"jobs/[^/]+/journal/\d+", JournalRecord),
    (r"jobs/[^/]+/journal-copies/[^/]+", JournalCopy),
    (r"jobs/[^/]+/launches/\d+/nodes/\d+", Slot),
    (r"jobs/[^/]+/launches/\d+/machines/[^/]+", Certificate),
    (r"jobs/[^/]+/nodes/\d+/\d+/heartbeat", Heartbeat),
    (r"jobs/[^/]+/nodes/\d+/\d+/notice", Notice),
    (r"jobs/[^/]+/nodes/\d+/\d+/exit.json", Exit),
    (r"jobs/[^/]+/manifests/[^/]+", Manifest),
    (r"jobs/[^/]+/checkpoints/[^/]+/parts/\d+", Part),
    (r"jobs/[^/]+/logs/[^/]+/[^/]+/\d+", LogRecord),
)
"""Every record by its key."""
ODD = ("odd-ended", "odd-live")
"""Jobs to spoil, one of them live; the fixture ``four_jobs`` writes them."""
HEALTHY = ("good-ended", "good-live")
"""The others."""


def kind_of(key):
    """Return the type of the record under a key, or None."""
    return next((kind for pattern, kind in KINDS if re.fullmatch(pattern, key)), None)
