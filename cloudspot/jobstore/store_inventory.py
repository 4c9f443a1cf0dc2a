"""What a store keeps although no job needs it: unfinished uploads, staged agents, code bundles."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Inventory, ObjectStore
from cloudspot.jobstore import keys
from cloudspot.jobstore.shared_objects import (
    delete_unneeded,
    find_unneeded,
    needed_now,
    shared_objects,
    stale_marks,
)
from cloudspot.jobstore.store_probe import store_time
from cloudspot.model import Asset, UnfinishedUpload

_OF_JOB: Final = re.compile(r"jobs/([^/]+)/")
_MARK: Final = "reap."
"""How the names of our marks beside shared objects begin; no job's id has a dot."""
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
    """The staged agents and the code bundles that jobs share."""

    def __init__(self, store: ObjectStore, label: str) -> None:
        """Do no I/O; ``label`` is the store's, as machines carry it."""
        self.title = f"staged agents and code in {store.url}"
        self._store = store
        self._label = label
        self._is_swept = False
        """Marks that earlier runs were cut off with are gone."""

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return them all.

        An agent is in use while a job that has it is live, code until each such job is removed.
        """
        listed = shared_objects(self._store)
        unneeded = find_unneeded(self._store, frozenset(meta.key for meta in listed), need=needed_now)
        return [
            Asset(
                kind="staged agent" if meta.key.startswith(keys.agent("")) else "code bundle",
                id=meta.key,
                where=self._store.url,
                store_url=self._label,
                created_at=meta.modified_at,
                is_in_use=meta.key not in unneeded,
                detail=f"{meta.size / 1e6:.1f} MB",
            )
            for meta in listed
        ]

    def end(self, asset: Asset) -> None:
        """Delete it, unless a job has come to need it; see ``shared_objects``.

        Raises:
            CloudspotError: a job needs it now.
        """
        if not self._is_swept:
            self._is_swept = True
            for key in stale_marks(self._store, by=_MARK, before=store_time(self._store) - _MARK_AGE):
                self._store.delete(key)
        by = f"{_MARK}{secrets.token_hex(4)}"
        if not delete_unneeded(self._store, [asset.id], by=by, need=needed_now):
            raise CloudspotError(f"{asset.id}: a job has come to need it")
