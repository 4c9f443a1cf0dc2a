"""Look up the inputs in a job's ``[data]`` before anything is bought."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudspot.calls.retrying import retry
from cloudspot.cli.screen import output
from cloudspot.errors import AuthError, CloudspotError, PluginError, SpecError, TransientError
from cloudspot.host.size_text import size_text
from cloudspot.interfaces import Provider
from cloudspot.jobfile.amounts import money_text
from cloudspot.jobfile.data import DataSpec
from cloudspot.jobfile.spec import JobSpec
from cloudspot.jobstore.code.bundle import code_files
from cloudspot.jobstore.inputs.inputs import open_input
from cloudspot.model import GIB, Capability, Offer
from cloudspot.plugin.launchrequests import DEFAULT_EXTRA_GIB


@dataclass(frozen=True)
class FoundInput:
    """An input as seen from this computer."""

    name: str
    spec: DataSpec
    num_files: int = 0
    num_bytes: int = 0
    unread: str = ""
    """Why the input cannot be read from here; empty if it was read."""


def find_inputs(spec: JobSpec, provider: Provider) -> tuple[FoundInput, ...]:
    """List the job's inputs with the submitter's permissions, and warn of those that only machines may read.

    Raises:
        SpecError: there is nothing under a URL, or an input cannot be staged.
        PluginError: no plugin for a URL's scheme is installed.
    """
    staged = {name: one for name, one in spec.data.items() if one.is_staged}
    is_here = Capability.THIS_COMPUTER in provider.capabilities
    for name, data in staged.items():
        path = data.path_or_default(name)
        if path.startswith("/") and is_here:
            raise SpecError(
                f'data.{name}.path: "{path}" would be the same for all machines on this computer; use a '
                "path below the working directory"
            )
    inputs = tuple(_find(name, one, provider) for name, one in spec.data.items())
    for item in inputs:
        if item.unread:
            then = "fails" if item.spec.wait else "trains without it"
            output.warn(f"{_where(item)} {item.unread}; a machine that cannot read it, either, {then}")
    num_bytes = sum(one.num_bytes for one in inputs)
    if 0 < spec.resources.disk < num_bytes:
        there = f"resources.disk is {size_text(spec.resources.disk)}"
        output.warn(f"data: the inputs have {size_text(num_bytes)}, but {there}; increase it")
    has_own_disk = is_here or spec.providers.get(provider.name, {}).get("disk")
    if not (spec.resources.disk or has_own_disk) and num_bytes > DEFAULT_EXTRA_GIB * GIB:
        output.warn(
            f"data: the inputs have {size_text(num_bytes)}, but resources.disk is not set; set it, unless "
            "the machines have their own disks for inputs"
        )
    return inputs


def check_places(spec: JobSpec, workdir: Path) -> None:
    """Raise SpecError if an input would overlap with the code in the directory."""
    staged = {name: one for name, one in spec.data.items() if one.is_staged}
    code = code_files(workdir) if staged else ()
    for name, one in staged.items():
        path = one.path_or_default(name)
        for file in code:
            if f"{file}/".startswith(f"{path}/") or f"{path}/".startswith(f"{file}/"):
                raise SpecError(
                    f'data.{name}.path: the code has "{file}" there; choose another path, or exclude '
                    "that file in .cloudspotignore"
                )


def _find(name: str, spec: DataSpec, provider: Provider) -> FoundInput:
    if spec.scheme == "file" and Capability.THIS_COMPUTER not in provider.capabilities:
        return FoundInput(name, spec, unread="is on each machine's own disk, so it was not checked here")
    try:
        if not spec.is_staged:
            retry(open_input(spec).look, sleep=time.sleep)
            return FoundInput(name, spec)
        files = retry(open_input(spec).wanted, sleep=time.sleep)
    except (AuthError, TransientError) as error:
        return FoundInput(name, spec, unread=f"cannot be read from here ({error})")
    except PluginError:
        raise
    except CloudspotError as error:
        raise SpecError(f"data.{name}.url: {spec.shown_url}: {error}") from error
    return FoundInput(name, spec, len(files), sum(file.size for file in files))


def _where(found: FoundInput) -> str:
    return f"data.{found.name}: {found.spec.shown_url}"


def inputs_text(found: Sequence[FoundInput], offers: Sequence[Offer]) -> Iterator[str]:
    """Yield a line for each input, and one about the data that each new machine fetches and its cost."""
    for item in found:
        size = f"{item.num_files} file(s), {size_text(item.num_bytes)}"
        access = size if item.spec.is_staged else "read in place, each time the training reads it"
        yield f"{_where(item)}: {'not read from here' if item.unread else access}"
    if not found:
        return
    dearest, texts = max(offers, key=lambda offer: offer.transfer_price_per_gib), []
    per_gib, away = dearest.transfer_price_per_gib, "outside the bucket's region"
    if staged := [one for one in found if one.spec.is_staged]:
        known = "" if all(not one.unread for one in staged) else " plus the unread inputs"
        num_bytes = sum(one.num_bytes for one in staged)
        later = sum(one.num_bytes for one in staged if not one.spec.wait)
        text = f"each new machine fetches {size_text(num_bytes - later)}{known} before it trains"
        if any(not one.spec.wait for one in staged):
            text += f" and {size_text(later)} during the training"
        if per_gib:
            text += f", for up to {money_text(num_bytes / GIB * per_gib, dearest.currency)} {away}"
        texts.append(text)
    if per_gib and len(staged) < len(found):
        texts.append(
            f"each GiB read in place costs a machine up to {money_text(per_gib, dearest.currency)} {away}"
        )
    yield "; ".join([*texts, "further charges of other stores for reading are unknown"])


def inputs_json(found: Sequence[FoundInput]) -> list[dict[str, Any]]:
    """Return the inputs for ``--json``, with null for values that could not be read from here."""
    return [
        {
            "name": one.name,
            "url": one.spec.shown_url,
            "mode": one.spec.mode,
            "wait": one.spec.wait,
            "files": None if one.unread or not one.spec.is_staged else one.num_files,
            "bytes": None if one.unread or not one.spec.is_staged else one.num_bytes,
            "unread": one.unread or None,
        }
        for one in found
    ]
