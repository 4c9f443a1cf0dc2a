"""Uploads of parts, as an agent makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from cloudspot.interfaces import ObjectStore
from cloudspot.jobstore.checkpoints import parts
from cloudspot.jobstore.checkpoints.shared_chunks import Sharing
from cloudspot.jobstore.layout.records import File, Part, SaveId
from cloudspot.jobstore.layout.seals import parse_seal

AT = datetime(2026, 11, 20, 6, 30, tzinfo=timezone.utc)


def upload_session(
    store: ObjectStore,
    job_id: str,
    seal: bytes | str,
    data: bytes | memoryview,
    *,
    sealed_at: datetime = AT,
    sharing: Sharing | None = None,
    must_yield: Callable[[], bool] = lambda: False,
    in_background: bool = False,
    **options: Any,
) -> Part:
    """Upload what a rank has sealed; the options are those of ``Upload``."""
    part = parts.session_part(parse_seal(seal, "the seal"), sealed_at=sealed_at)
    lend = partial(parts.lend_view, data if isinstance(data, memoryview) else memoryview(data))
    return parts.Upload(store, job_id, part, **options).run(
        lend, sharing=sharing, must_yield=must_yield, in_background=in_background
    )


def upload_files(
    store: ObjectStore,
    job_id: str,
    save: SaveId,
    root: Path,
    files: Sequence[File],
    directory: str,
    *,
    num_parts: int = 1,
    sealed_at: datetime = AT,
    evidence: str | None = None,
    check: Callable[[], None] = lambda: None,
    sharing: Sharing | None = None,
    in_background: bool = False,
    **options: Any,
) -> Part:
    """Upload the files of a node's checkpoint directory; the options are those of ``Upload``."""
    part = parts.directory_part(
        save, files, directory=directory, sealed_at=sealed_at, evidence=evidence, num_parts=num_parts
    )
    return parts.Upload(store, job_id, part, **options).run(
        partial(parts.lend_files, root, files), check=check, sharing=sharing, in_background=in_background
    )
