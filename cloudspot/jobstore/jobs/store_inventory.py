"""Objects that a store keeps although no job needs them: unfinished uploads, staged agents, code bundles."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from cloudspot.errors import CloudspotError
from cloudspot.interfaces import Inventory, ObjectStore
from cloudspot.jobstore.access.store_clock import store_time
from cloudspot.jobstore.jobs.shared_objects import (
    delete_unneeded,
    find_unneeded,
    is_reapers_mark,
    needed_now,
    new_reaper,
    shared_objects,
)
from cloudspot.jobstore.layout import keys
from cloudspot.model import Asset, ObjectMeta, UnfinishedUpload

_MARK: Final = "mark"
_MARK_AGE: Final = timedelta(hours=1)


class UploadInventory(Inventory):
    """The multipart uploads that nobody has completed or aborted; their parts are billed.

    Uploads to foreign keys are left alone, because the bucket may be shared.
    """

    def __init__(self, store: ObjectStore, label: str) -> None:
        """Do no I/O; ``label`` is the store's URL in the form that machines carry."""
        self.title = f"unfinished uploads to {store.url}"
        self._store = store
        self._label = label

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return the uploads; an upload below a job's prefix belongs to that job.

        An upload of a shared object is in use while a job needs the object, even if the job's submission is
        under way.
        """
        uploads = [one for one in self._store.unfinished_uploads() if _is_ours(one.key)]
        # Look for jobs only now, because a submission reserves its id before it uploads.
        shared = frozenset(one.key for one in uploads if keys.is_shared(one.key))
        needed = shared - find_unneeded(self._store, shared, need=needed_now)
        return [
            Asset(
                kind="unfinished upload",
                id=f"{one.key}?{one.id}",
                where=self._store.url,
                job_id=keys.job_of(one.key) or "",
                store_url=self._label,
                created_at=one.begun_at,
                is_in_use=one.key in needed,
            )
            for one in uploads
        ]

    def end(self, asset: Asset) -> None:
        """Abort the upload.

        Raises:
            CloudspotError: the upload does not belong to cloudspot.
        """
        key, _, upload_id = asset.id.rpartition("?")
        if not _is_ours(key):
            raise CloudspotError(f"{key} is not one of cloudspot's keys, so its upload is not aborted")
        assert asset.created_at is not None
        self._store.abort_upload(UnfinishedUpload(key=key, id=upload_id, begun_at=asset.created_at))


class SharedObjectInventory(Inventory):
    """The staged agents and code bundles that jobs share, and the marks of interrupted reapers."""

    def __init__(self, store: ObjectStore, label: str) -> None:
        """Do no I/O; ``label`` is the store's URL in the form that machines carry."""
        self.title = f"staged agents and code in {store.url}"
        self._store = store
        self._label = label

    def assets(self, store_urls: Sequence[str]) -> Sequence[Asset]:
        """Return all these objects as assets.

        An agent is in use while one of its jobs is live, code until each of its jobs is removed, and a mark
        while its reaper may be at work.
        """
        listed, marks = shared_objects(self._store)
        unneeded = find_unneeded(self._store, frozenset(meta.key for meta in listed), need=needed_now)
        recently = store_time(self._store) - _MARK_AGE if marks else None
        return [
            *(self._asset(meta, is_in_use=meta.key not in unneeded) for meta in listed),
            *(self._asset(meta, is_in_use=recently is None or meta.modified_at > recently) for meta in marks),
        ]

    def end(self, asset: Asset) -> None:
        """Delete the object, unless a job needs it by now; see ``shared_objects``.

        Raises:
            CloudspotError: a job needs the object, or it does not belong to cloudspot.
        """
        if is_reapers_mark(asset.id):
            self._store.delete(asset.id)
            return
        if not keys.is_shared(asset.id):
            raise CloudspotError(f"{asset.id} is not one of cloudspot's keys, so it is not deleted")
        if not delete_unneeded(self._store, [asset.id], by=new_reaper(), need=needed_now):
            raise CloudspotError(f"{asset.id}: a job needs it now")

    def _asset(self, meta: ObjectMeta, *, is_in_use: bool) -> Asset:
        kind = "staged agent" if meta.key.startswith(keys.agents_prefix()) else "code bundle"
        return Asset(
            kind=_MARK if is_reapers_mark(meta.key) else kind,
            id=meta.key,
            where=self._store.url,
            store_url=self._label,
            created_at=meta.modified_at,
            is_in_use=is_in_use,
            detail=f"{meta.size / 1e6:.1f} MB" if meta.size else "",
        )


def _is_ours(key: str) -> bool:
    return keys.job_of(key) is not None or keys.is_shared(key)
