"""A store around another store: the base class of stores that repeat, count or fail requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeVar

from cloudspot.calls import LinkRequest, LinkResult
from cloudspot.interfaces import Data, ObjectStore, Upload
from cloudspot.jobstore.layout import keys
from cloudspot.model import ObjectMeta, ObjectPage, UnfinishedUpload

T = TypeVar("T")


class WrappedStore(ObjectStore):
    """Passes every call on to the inner store; requests go through ``_call``, which subclasses override.

    ``presign_get`` makes no request.
    """

    _is_checked: ClassVar[bool] = False  # the inner store makes this check

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self.inner = inner

    @property
    def canonical_url(self) -> str:
        return self.inner.canonical_url

    def establish(self) -> str | None:
        return self._call("establish", keys.STORE_ID, self.inner.establish)

    def find_id(self) -> str | None:
        return self._call("get", keys.STORE_ID, self.inner.find_id)

    def hold_to(self, store_id: str | None = None) -> None:
        self.inner.hold_to(store_id)

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        self._call("put", key, lambda: self.inner.put(key, data, if_absent=if_absent))

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: self.inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._call("get_range", key, lambda: self.inner.get_range(key, start, length))

    def get_range_into(self, key: str, start: int, buffer: bytearray | memoryview) -> int:
        return self._call("get_range", key, lambda: self.inner.get_range_into(key, start, buffer))

    def head(self, key: str) -> ObjectMeta:
        return self._call("head", key, lambda: self.inner.head(key))

    def list_page(
        self, prefix: str, *, after: str | None = None, limit: int = 1000, cursor: str = ""
    ) -> ObjectPage:
        given = {"cursor": cursor} if cursor else {}
        return self._call(
            "list_page", prefix, lambda: self.inner.list_page(prefix, after=after, limit=limit, **given)
        )

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.inner.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            self._call("delete_many", keys[0], lambda: self.inner.delete_many(keys))

    def close(self) -> None:
        self.inner.close()

    def open_upload(self, key: str, *, if_absent: bool = False) -> Upload:
        return self._call("open_upload", key, lambda: self.inner.open_upload(key, if_absent=if_absent))

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        return iter(self._call("unfinished_uploads", "", lambda: tuple(self.inner.unfinished_uploads())))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._call("abort_upload", upload.key, lambda: self.inner.abort_upload(upload))

    def presign_get(self, key: str, *, seconds: float) -> str:
        return self.inner.presign_get(key, seconds=seconds)

    def link(self, request: LinkRequest) -> LinkResult:
        return self.inner.link(request)

    def _call(self, method: str, key: str, request: Callable[[], T]) -> T:
        """Make a request; for a listing, ``key`` is the prefix."""
        return request()
