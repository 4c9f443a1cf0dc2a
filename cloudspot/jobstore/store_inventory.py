"""What a store keeps although no job needs it: unfinished uploads, staged agents, code bundles."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Inventory, ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.shared_objects import (
    REAPER,
    delete_unneeded,
    find_unneeded,
    needed_now,
    shared_objects,
)
from cloudspot.model import Asset, ObjectMeta, UnfinishedUpload

_OF_JOB: Final = re.compile(r"jobs/([^/]+)/")
_MARK: Final = "mark"
_MARK_AGE: Final = timedelta(hours=1)


class UploadInventory(Inventory):
    """The uploads in parts that nobody has completed or aborted: their parts are billed."""

    def __init__(self, store: ObjectStore, label: str) -> None:
        """Do no I/O; ``label`` is the store's, as machines carry it."""
        self.title = f"unfinished uploads to {store.url}"
        self._store = store
        self._label = label

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return the uploads; what is below a job's prefix is that job's."""
        found = []
        for one in self._store.unfinished_uploads():
            of_job = _OF_JOB.match(one.key)
            found.append(
                Asset(
                    kind="unfinished upload",
                    id=f"{one.key}?{one.id}",
                    where=self._store.url,
                    job_id=of_job[1] if of_job else "",
                    store_url=self._label,
                    created_at=one.begun_at,
                )
            )
        return found

    def end(self, asset: Asset) -> None:
        """Abort the upload."""
        key, _, upload_id = asset.id.rpartition("?")
        assert asset.created_at is not None
        self._store.abort_upload(UnfinishedUpload(key=key, id=upload_id, begun_at=asset.created_at))


class SharedObjectInventory(Inventory):
    """The staged agents and the code bundles that jobs share, and the marks of reapers that were cut off."""

    def __init__(self, store: ObjectStore, label: str) -> None:
        """Do no I/O; ``label`` is the store's, as machines carry it."""
        self.title = f"staged agents and code in {store.url}"
        self._store = store
        self._label = label

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return them all.

        An agent is in use while a job that has it is live, code until each such job is removed, and a mark
        for as long as its reaper may be at work.
        """
        listed, marks = shared_objects(self._store)
        unneeded = find_unneeded(self._store, frozenset(meta.key for meta in listed), need=needed_now)
        recently = datetime.now(timezone.utc) - _MARK_AGE
        return [
            *(self._asset(meta, is_in_use=meta.key not in unneeded) for meta in listed),
            *(self._asset(meta, is_in_use=meta.modified_at > recently) for meta in marks),
        ]

    def end(self, asset: Asset) -> None:
        """Delete it, unless a job has come to need it; see ``shared_objects``.

        Raises:
            CloudspotError: a job needs it now.
        """
        if asset.kind == _MARK:
            self._store.delete(asset.id)
            return
        by = f"{REAPER}{secrets.token_hex(4)}"
        if not delete_unneeded(self._store, [asset.id], by=by, need=needed_now):
            raise CloudspotError(f"{asset.id}: a job has come to need it")

    def _asset(self, meta: ObjectMeta, *, is_in_use: bool) -> Asset:
        kind = "staged agent" if meta.key.startswith(keys.agent("")) else "code bundle"
        return Asset(
            kind=_MARK if ".removals/" in meta.key else kind,
            id=meta.key,
            where=self._store.url,
            store_url=self._label,
            created_at=meta.modified_at,
            is_in_use=is_in_use,
            detail=f"{meta.size / 1e6:.1f} MB" if meta.size else "",
        )
