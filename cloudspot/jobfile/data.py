"""``[data.NAME]``: inputs named by URL, which are fetched to the machine's disk or read in place."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Final, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import msgspec

from cloudspot.host.names import is_safe_name
from cloudspot.jobfile.rules import Url, text_like
from cloudspot.jobfile.tables import CREDENTIAL_NAME, FieldError
from cloudspot.jobfile.tables import Path as FieldPath

_HTTP: Final = ("http", "https")
_SIGNATURE: Final = re.compile(r"(?i)(.*(signature|credential|token)|sig|se|policy)")
"""The query parameters of signed URLs; anyone who has such a URL has access."""

DataName = Annotated[
    str,
    text_like(
        "[a-z][a-z0-9_-]{0,31}",
        '"{}" must be up to 32 lower-case letters, digits, "-" and "_", such as "images"',
    ),
]
_DataPath = Annotated[
    str,
    text_like(
        r"(?!~|//)(?!(?:[^\u0000]*/)?\.\.(?:/|$))(?!/*(?:\./*)*$)[^\u0000]+",
        '"{}" must be a path below the working directory, such as "data/images", or absolute',
    ),
]
_Sha256 = Annotated[str, text_like("[0-9a-f]{64}", 'expected 64 hexadecimal digits in lower case, got "{}"')]


class DataSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[data.NAME]``: an input of the training, named by a URL.

    The name has up to 32 lower-case letters, digits, hyphens and underscores, and begins with a letter.
    """

    url: Url
    """The location of the input. A URL that ends with ``/`` stands for everything below it, any other URL for
    one object or file: ``"file:///data/corpus/"`` or ``"file:///data/train.tar"``, or the same in a bucket. A
    web server's URL, ``"https://host/file"``, names one file. Each machine reads the input with its own
    permissions; the URL must not contain credentials."""
    mode: Literal["stage", "stream"] = "stage"
    """With ``"stage"``, the input is fetched to each machine's disk; see ``wait``. With ``"stream"``, the
    training reads the input in place, with any library and with the machine's permissions; the variable
    ``CLOUDSPOT_DATA_NAME`` (see ``path``) holds the URL, and ``path``, ``sha256`` and ``wait = false`` are
    not allowed."""
    path: _DataPath | None = None
    """The path at which the training finds the input: a directory if the URL ends with ``/``, otherwise a
    file. It is relative to the working directory, or absolute; nothing else may exist there. The default is
    ``data/NAME``. The variable ``CLOUDSPOT_DATA_NAME`` (in capitals, with ``_`` for each hyphen) holds the
    absolute path."""
    wait: bool = True
    """Whether the training waits for the input. If not, the input is fetched while the training runs, and
    appears at its path once it is complete; the training has to check for it."""
    sha256: _Sha256 | None = None
    """The SHA-256 hash of a single file, in lower-case hexadecimal; a file with another hash is not used."""

    @property
    def scheme(self) -> str:
        """The URL's scheme."""
        return self.url.partition("://")[0]

    @property
    def is_http(self) -> bool:
        """Whether the input is on a web server and not in a store."""
        return self.scheme in _HTTP

    @property
    def is_staged(self) -> bool:
        """Whether the input is fetched to each machine's disk."""
        return self.mode == "stage"

    @property
    def is_tree(self) -> bool:
        """Whether the input is a directory of files and not a single file."""
        return self.url.endswith("/")

    @property
    def shown_url(self) -> str:
        """The URL without its query, which may contain secrets."""
        return urlunsplit(urlsplit(self.url)._replace(query="", fragment="")) if self.is_http else self.url

    def path_or_default(self, name: str) -> str:
        """Return the path of the input with that name."""
        return posixpath.normpath(self.path or f"data/{name}")


def variable_of(name: str) -> str:
    """Return the name of the environment variable that holds an input's path."""
    return f"CLOUDSPOT_DATA_{name.upper().replace('-', '_')}"


def check_data(inputs: Mapping[str, DataSpec]) -> None:
    """Check the rules that types cannot express.

    Raises:
        FieldError: a rule is broken; the message names the field, and never shows a URL that may contain a
            password.
    """
    names: dict[str, str] = {}
    for name, spec in inputs.items():
        at = ("data", name)
        if (other := names.setdefault(variable_of(name), name)) != name:
            raise FieldError(at, f"has the variable {variable_of(name)} of data.{other}; rename one of them")
        _check_url((*at, "url"), spec)
        _check_path((*at, "path"), spec)
        for field in ("path", "sha256"):
            if not spec.is_staged and getattr(spec, field) is not None:
                raise FieldError(
                    (*at, field), 'cannot be given with mode = "stream": no file comes to the disk'
                )
        if not spec.is_staged and not spec.wait:
            raise FieldError((*at, "wait"), 'cannot be given with mode = "stream": nothing is fetched')
        if spec.sha256 is not None and spec.is_tree:
            raise FieldError((*at, "sha256"), "is the hash of one file, but the URL ends with a slash")
    staged = {name: spec for name, spec in inputs.items() if spec.is_staged}
    paths = sorted((f"{spec.path_or_default(name)}/", name) for name, spec in staged.items())
    for (path, name), (below, other) in pairwise(paths):
        if below.startswith(path):
            raise FieldError(
                ("data", other, "path"), f'"{below[:-1]}" is where data.{name} goes; name another'
            )


def _check_url(at: FieldPath, one: DataSpec) -> None:
    if not one.is_http:
        path = one.url.partition("://")[2].partition("/")[2].strip("/")
        if not one.is_tree and not path:
            raise FieldError(at, f'"{one.url}" names no object; for all that lies below it: "{one.url}/"')
        if one.scheme == "file" and not one.is_tree and "/" not in path:
            raise FieldError(at, f'"{one.url}" lies in the root directory; put it into a directory')
        return
    if not re.fullmatch(r"[!-~]+", one.url):
        raise FieldError(at, "must be printable ASCII without spaces; write other characters as %C3%A4")
    try:
        parts = urlsplit(one.url)
        _ = parts.port
    except ValueError as error:
        raise FieldError(at, f"is not a URL that can be asked for: {error}") from None
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if _SIGNATURE.fullmatch(name) or CREDENTIAL_NAME.fullmatch(name):
            found = f'has a parameter "{name}", which looks like a credential that anyone could read in the'
            raise FieldError(at, f"{found} store; use the URL of its bucket")
    if one.is_tree or not parts.path.strip("/") or not parts.hostname:
        raise FieldError(at, f'"{one.shown_url}" names no file; a web server has no listing to go by')


def _check_path(at: FieldPath, one: DataSpec) -> None:
    if one.path is not None and not is_safe_name(posixpath.normpath(one.path).removeprefix("/")):
        raise FieldError(at, f'"{one.path}" is longer than paths can be')
