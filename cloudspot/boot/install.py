"""The part of the boot script that fetches and verifies the agent's archive; it needs only Python."""

import hashlib
import io
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path


def install(fetch: Callable[[str, str, Path], None]) -> None:
    """Unpack the archive into ``<home>/archive`` if its hash is correct.

    The process's arguments name the store, the archive's key, its hash and ``home``. The member names need no
    check: the hash comes with this script, so the archive is the submitter's, whose code the machine runs
    anyway.
    """
    store_url, key, sha256, home = sys.argv[1:]
    fetched, unpacked = Path(home, "agent.tar"), Path(home, "archive")
    try:
        fetch(store_url, key, fetched)
    except Exception as error:  # noqa: BLE001 # its last line is shown on the console
        sys.exit(f"{key} cannot be fetched from {store_url}: {error}")
    data = fetched.read_bytes()
    fetched.unlink()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise OSError(f"{key} has the hash {found}, not {sha256}")
    shutil.rmtree(unpacked, ignore_errors=True)  # an image made from a machine has that machine's archive
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                file = unpacked / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())
