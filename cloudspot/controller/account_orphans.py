"""Find and end the assets in accounts and buckets that no job needs any more; the decision is pure.

Reconcilers look after jobs that are marked live; this module handles all other jobs. A job's mark is written
before its submission, and removed once a driver has found the job finished and its machines gone. So a
process that lists the assets first and the marks afterwards sees the mark of every job that may need them.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cloudspot.controller.ownership import store_label
from cloudspot.errors import CloudspotError, CorruptData, JobNotFound, TransientError, as_cloudspot_error
from cloudspot.interfaces import Inventory, ObjectStore
from cloudspot.jobstore.access.parallel import map_parallel
from cloudspot.jobstore.access.retrying_store import with_retries
from cloudspot.jobstore.jobs.index_entry import read_entry
from cloudspot.jobstore.jobs.job_lists import is_marked_live, list_live
from cloudspot.jobstore.jobs.reader import has_finished
from cloudspot.jobstore.layout import keys
from cloudspot.model import Asset

DEFAULT_AGE = timedelta(hours=1)
"""Assets younger than this are left alone, because the clocks of a cloud and of a store differ."""
WAITS_SECONDS = (10.0, 20.0, 30.0, 60.0, 60.0)
"""The waits between attempts to end an asset: an ending machine holds its placement group for a while."""


class JobStatus(enum.Enum):
    """The status of a job according to a store."""

    LIVE = "is marked live"
    UNKNOWN = "cannot be read, or is being submitted"
    ENDED = "has ended"
    ABSENT = "is not in its store"


@dataclass(frozen=True)
class KnownStore:
    """A store that the user named, and the job statuses read from it."""

    jobs: Mapping[str, JobStatus] = field(default_factory=dict)
    """The status of each job that an asset names; a job that is missing here is UNKNOWN."""
    is_gone: bool = False
    """Whether the user declared that the store is gone, so that assets with its label have no owner."""


class Fate(enum.Enum):
    """The decision about an asset."""

    ORPHAN = "orphan"
    KEPT = "kept"
    FOREIGN = "of another store"


@dataclass(frozen=True)
class Judged:
    """An asset, its fate, and the reason."""

    asset: Asset
    fate: Fate
    why: str


def fate_of(
    asset: Asset, stores: Mapping[str, KnownStore], *, now: datetime, older_than: timedelta
) -> Judged:
    """Decide about one asset; ``stores`` maps labels to the stores that the user named; pure.

    An asset is kept if its job is live in any of the stores or cannot be read, or if the asset is young or
    belongs to a store that was not named.
    """
    for known in stores.values():
        status = known.jobs.get(asset.job_id, JobStatus.UNKNOWN)
        if asset.job_id and not known.is_gone and status in {JobStatus.LIVE, JobStatus.UNKNOWN}:
            # The label is ignored here, because a store may have a second name.
            return Judged(asset, Fate.KEPT, f"job {asset.job_id} {status.value}")
    store = stores.get(asset.store_url) if asset.store_url else None
    if store is None:
        what = asset.store_url or "a store that it does not name"
        return Judged(asset, Fate.FOREIGN, f"it belongs to {what}")
    if asset.created_at is not None and asset.created_at > now - older_than:
        return Judged(asset, Fate.KEPT, "it is young")
    if store.is_gone:
        return Judged(asset, Fate.ORPHAN, "its store is gone")
    if not asset.job_id:
        why = "something uses it" if asset.is_in_use else "nothing uses it"
        return Judged(asset, Fate.KEPT if asset.is_in_use else Fate.ORPHAN, why)
    return Judged(asset, Fate.ORPHAN, f"job {asset.job_id} {store.jobs[asset.job_id].value}")


@dataclass(frozen=True)
class Unlisted:
    """An inventory that could not be read; the other inventories are still read."""

    title: str
    error: CloudspotError


@dataclass(frozen=True)
class Ended:
    """The result of ending an orphan."""

    asset: Asset
    error: CloudspotError | None
    """Why the asset still exists; None if it is gone or is being deleted."""


class AccountReaper:
    """Finds and ends assets that stores' jobs have left behind. Any number of reapers may run at once."""

    def __init__(
        self,
        accounts: Sequence[Sequence[Inventory]],
        stores: Sequence[ObjectStore],
        *,
        gone: Iterable[str] = (),
        older_than: timedelta = DEFAULT_AGE,
        now: Callable[[], datetime],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take each account's inventories, in the order in which their assets are to be ended.

        Accounts are listed and emptied in parallel, so an account that hangs does not delay the others. A
        store may be given in place of an account. ``gone`` contains the labels of stores that no longer
        exist.
        """
        self._accounts = tuple(map(tuple, accounts))
        self._stores = {store_label(one): with_retries(one, sleep=sleep) for one in stores}
        self._gone = frozenset(gone) - frozenset(self._stores)
        self._older_than = older_than
        self._now = now
        self._sleep = sleep
        self._found_by: dict[int, tuple[int, Inventory]] = {}
        """The account and the inventory of each asset found, by the asset's ``id()``."""

    def find(self) -> tuple[tuple[Judged, ...], tuple[Unlisted, ...]]:
        """Return every asset with its fate, in the order of ending, and the unreadable inventories."""
        looked = map_parallel(self._look, range(len(self._accounts)), num_threads=len(self._accounts))
        assets = [asset for listed, _ in looked for asset in listed]
        problems = [problem for _, unlisted in looked for problem in unlisted]
        # The marks are read after the assets, because a job's mark is written before its assets exist.
        job_ids = {one.job_id for one in assets if keys.JOB_ID.fullmatch(one.job_id)}
        known = {label: KnownStore(is_gone=True) for label in self._gone}
        for label, store in self._stores.items():
            try:
                known[label] = KnownStore(_statuses(store, job_ids))
            except CloudspotError as error:
                problems.append(
                    Unlisted(f"the jobs of {store.url}, so all assets of these jobs are kept", error)
                )
                known[label] = KnownStore()
        now = self._now()
        judged = (fate_of(one, known, now=now, older_than=self._older_than) for one in assets)
        return tuple(judged), tuple(problems)

    def end(self, orphans: Sequence[Judged]) -> tuple[Ended, ...]:
        """End the orphans among the results of ``find``, in order; return the result for each.

        An asset that cannot be ended yet is retried for three minutes. An asset whose job has become live
        in the meantime is left alone.
        """
        assets = [one.asset for one in orphans if one.fate is Fate.ORPHAN]
        by_account: dict[int, list[Asset]] = {}
        for asset in assets:
            by_account.setdefault(self._found_by[id(asset)][0], []).append(asset)
        ended = map_parallel(self._end_all, list(by_account.values()), num_threads=len(self._accounts))
        done = {id(one.asset): one for each in ended for one in each}
        return tuple(done[id(asset)] for asset in assets)

    def _look(self, account: int) -> tuple[list[Asset], list[Unlisted]]:
        """Return the account's assets, and its inventories that could not be read."""
        assets: list[Asset] = []
        problems = []
        for inventory in self._accounts[account]:
            try:
                listed = inventory.assets(sorted({*self._stores, *self._gone}))
            except Exception as error:  # noqa: BLE001 - one inventory's fault must not hide the others
                problems.append(Unlisted(inventory.title, as_cloudspot_error(error)))
                continue
            assets += listed
            self._found_by.update((id(one), (account, inventory)) for one in listed)
        return assets, problems

    def _end_all(self, assets: Sequence[Asset]) -> list[Ended]:
        done: dict[int, Ended] = {}
        left = list(assets)
        for wait in (0.0, *WAITS_SECONDS):
            if not left:
                break
            if wait:
                self._sleep(wait)
            for asset in left:
                done[id(asset)] = Ended(asset, self._end(asset))
            left = [one for one in left if isinstance(done[id(one)].error, TransientError)]
        return [done[id(one)] for one in assets]

    def _end(self, asset: Asset) -> CloudspotError | None:
        try:
            if asset.job_id and any(is_marked_live(store, asset.job_id) for store in self._stores.values()):
                return CloudspotError(f"job {asset.job_id} has become live meanwhile, so its assets are kept")
            self._found_by[id(asset)][1].end(asset)
        except Exception as error:  # noqa: BLE001 - one asset's fault must not keep the others
            return as_cloudspot_error(error)
        return None


def _statuses(store: ObjectStore, job_ids: Iterable[str]) -> dict[str, JobStatus]:
    """Return the status of each of these jobs in the store.

    Raises:
        CloudspotError: the store cannot be read.
    """
    live = list_live(store)
    return {one: JobStatus.LIVE if one in live else _unmarked_status(store, one) for one in job_ids}


def _unmarked_status(store: ObjectStore, job_id: str) -> JobStatus:
    try:
        if read_entry(store, job_id).removal is not None:
            return JobStatus.ABSENT
    except JobNotFound:
        return JobStatus.ABSENT
    except CorruptData:
        return JobStatus.UNKNOWN
    # A job without a submission is being submitted or copied; if that was interrupted, `rm` removes it.
    return JobStatus.ENDED if has_finished(store, job_id) else JobStatus.UNKNOWN
