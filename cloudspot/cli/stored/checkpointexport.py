"""Export a checkpoint: its weights for safetensors or torch, or the directory that the script wrote."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cloudspot import __version__
from cloudspot.cli.jobs import Job
from cloudspot.cli.screen.progressbar import transfer
from cloudspot.errors import CloudspotError, CorruptData, SpecError
from cloudspot.host.partial_files import partial_directory
from cloudspot.jobstore.checkpoints.fetching import fetch
from cloudspot.jobstore.checkpoints.safetensors import num_bytes_read, write_safetensors
from cloudspot.jobstore.checkpoints.tensors import Selection, choose, shared_state
from cloudspot.jobstore.layout import keys
from cloudspot.jobstore.layout.records import Manifest

SAFETENSORS, TORCH = ".safetensors", ".pt"


def export_checkpoint(
    job: Job, manifest: Manifest, target: Path, *, only: str | None, whole: bool
) -> dict[str, Any]:
    """Write the checkpoint to ``target``, completely or not at all; return the value for ``--json``.

    Raises:
        SpecError: the suffix of ``target`` does not suit the checkpoint.
        CloudspotError: the checkpoint has no such object, the file format cannot hold it, writing to the disk
            fails, or torch is missing.
        CorruptData: a chunk is missing or was changed; nothing was written.
    """
    if not target.parent.is_dir():
        raise SpecError(f"--to: there is no directory {target.parent}")
    size, tensors, left_out = manifest.size, None, []
    if manifest.kind == "directory":
        if only is not None or whole or target.suffix in (SAFETENSORS, TORCH):
            raise SpecError(
                f"checkpoint {manifest.id} is a directory that the script wrote itself; give only --to DIR"
            )
        _export_directory(job, manifest, target)
    elif target.suffix not in (SAFETENSORS, TORCH):
        raise SpecError(f"--to must end with {SAFETENSORS} or {TORCH}: got {str(target)!r}")
    else:
        selection = choose(manifest, only=only, whole=whole)
        tensors = len(selection.tensors)
        if target.suffix == TORCH:
            _export_torch(job, manifest, selection, target, nested=whole or len(selection.objects) > 1)
            size = target.stat().st_size
        else:
            chosen, metadata = selection.tensors, _metadata(job, manifest, whole=whole)
            with transfer("exporting", num_bytes_read(job.id, manifest, chosen)) as advance:
                size = write_safetensors(
                    job.store, job.id, manifest, chosen, target, metadata=metadata, progress=advance
                )
            left_out = list(selection.left_out)
    return {
        "file": str(target),
        "bytes": size,
        "checkpoint": str(manifest.id),
        "step": manifest.step,
        "tensors": tensors,
        "left_out": left_out,
    }


def _metadata(job: Job, manifest: Manifest, *, whole: bool) -> dict[str, str]:
    metadata = {
        "format": "pt",  # transformers refuses a file without it
        "job": job.id,
        "checkpoint": str(manifest.id),
        "step": str(manifest.step),
        "source": f"{job.store.url.rstrip('/')}/{keys.manifest(job.id, manifest.generation, manifest.step)}",
        "cloudspot": __version__,
    }
    return metadata | ({"state": json.dumps(shared_state(manifest))} if whole else {})


def _export_torch(job: Job, manifest: Manifest, selection: Selection, target: Path, *, nested: bool) -> None:
    if importlib.util.find_spec("torch") is None:
        raise CloudspotError(
            f"a {TORCH} file needs torch here; run: pip install torch (or export to {SAFETENSORS}, which "
            "does not need it)"
        )
    from cloudspot.train.errors import CheckpointError
    from cloudspot.train.state.torchfile import write_torch_file

    with _beside(target) as scratch:
        _fetch(job, manifest, scratch / "state")
        try:
            write_torch_file(scratch / "state", scratch / "file", objects=selection.objects, nested=nested)
        except CheckpointError as error:
            raise CorruptData(f"checkpoint {manifest.id}: {error}") from error
        (scratch / "file").replace(target)


def _export_directory(job: Job, manifest: Manifest, target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CloudspotError(f"--to: {target} already exists; remove it first or name another")
    names = {part.directory or "" for part in manifest.parts}
    with _beside(target) as scratch:
        _fetch(job, manifest, scratch)
        # Usually there is only one. If nodes used different directories, each directory goes below the
        # target.
        source = scratch / names.pop() if len(names) == 1 else scratch
        source.replace(target)


def _fetch(job: Job, manifest: Manifest, directory: Path) -> None:
    with transfer("downloading the checkpoint", manifest.size) as advance:
        fetch(job.store, job.id, manifest, directory, progress=advance)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a temporary directory on the target's file system; disk errors become CloudspotErrors."""
    try:
        with partial_directory(target.parent) as scratch:
            yield scratch
    except OSError as error:
        raise CloudspotError(f"cannot write {target}: {error.strerror or error}") from error
