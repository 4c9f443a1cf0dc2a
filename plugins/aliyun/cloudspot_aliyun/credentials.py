"""Finds the keys that sign requests: the environment's, a profile's, or those of the machine's RAM role.

The module uses only the standard library, because every agent carries it. Both SDKs have their own providers
for the role, which send no session token and so get 403 on a machine in hardened metadata mode. Sources:
"Manage access credentials" of Alibaba Cloud's SDKs (the names of variables), "Configure profiles" of
    its command line (``~/.aliyun/config.json``), ECS user guide, "Instance RAM roles" (checked 2026-11).
"""

from __future__ import annotations

import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from cloudspot.errors import AuthError, CloudspotError, SpecError, TransientError
from cloudspot.plugin.answers import UNREADABLE, moment
from cloudspot_aliyun.metadata import EcsMetadata

KEY_ID: Final = "ALIBABA_CLOUD_ACCESS_KEY_ID"
KEY_SECRET: Final = "ALIBABA_CLOUD_ACCESS_KEY_SECRET"  # noqa: S105 # the name of a variable
SECURITY_TOKEN: Final = "ALIBABA_CLOUD_SECURITY_TOKEN"  # noqa: S105 # the name of a variable
PROFILE: Final = "ALIBABA_CLOUD_PROFILE"
ROLE: Final = "ALIBABA_CLOUD_ECS_METADATA"
"""The environment variable that names the machine's role; by default, the metadata service names it."""
CONFIG_FILE: Final = Path("~/.aliyun/config.json")
LONGEST_LEAD: Final = timedelta(minutes=15)
"""How long before its expiry a role's key is renewed; a short-lived key is renewed in the last quarter of its
life. The service offers the next key half an hour before the expiry (from memory of the docs).
"""
RETRY_SECONDS: Final = 30.0
"""How long to wait before asking the metadata service again if it has no newer key."""
_PRODUCT_NAME: Final = Path("/sys/class/dmi/id/product_name")


@dataclass(frozen=True)
class Credentials:
    """A key that signs requests."""

    access_key_id: str
    access_key_secret: str = field(repr=False)
    security_token: str = field(default="", repr=False)
    """The token of a temporary key; empty for a permanent key."""
    expires_at: datetime | None = None
    """None if the key never expires or its expiry is not known."""


class CredentialsSource(ABC):
    """A source of keys. Thread-safe."""

    @abstractmethod
    def get(self) -> Credentials:
        """Return the key with which to sign now.

        Raises:
            AuthError: no key was found.
            TransientError: the machine's metadata service does not answer.
        """

    def renew(self, refused: str) -> bool:
        """Replace the key with the id ``refused``, which has expired; return whether there is another one.

        A service may find a key expired before this object does, if the clock is wrong or the machine slept.
        """
        try:
            return self.get().access_key_id != refused
        except CloudspotError:
            return False


class EnvironmentCredentials(CredentialsSource):
    """The key in the environment."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    def get(self) -> Credentials:
        """Return the environment's current key."""
        key_id, secret = self._environ.get(KEY_ID, ""), self._environ.get(KEY_SECRET, "")
        if not key_id or not secret:
            raise AuthError(f"{KEY_ID} and {KEY_SECRET} must both be set, but only one of them is")
        return Credentials(key_id.strip(), secret.strip(), self._environ.get(SECURITY_TOKEN, "").strip())


class ProfileCredentials(CredentialsSource):
    """The key of a profile of Alibaba Cloud's command line; the file is read again when it changes."""

    def __init__(self, path: Path, name: str | None) -> None:
        self._path = path
        self._name = name
        self._lock = threading.Lock()
        self._read_at: int | None = None
        self._held: Credentials | None = None

    def get(self) -> Credentials:
        """Return the profile's current key.

        Raises:
            AuthError: the profile has no key.
            SpecError: the file cannot be read.
        """
        with self._lock:
            try:
                changed_at = self._path.stat().st_mtime_ns
            except OSError as error:
                raise SpecError(f"{self._path} cannot be read: {error.strerror}") from error
            if self._held is None or changed_at != self._read_at:
                self._held = _keys_of(read_profile(self._path, self._name), self._path)
                self._read_at = changed_at
            return self._held


class RoleCredentials(CredentialsSource):
    """The keys of the machine's RAM role, from its metadata; they are renewed before they expire."""

    def __init__(
        self,
        metadata: EcsMetadata | None = None,
        *,
        role: str | None = None,
        is_last_resort: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        """Do no I/O. The default ``role`` is the machine's.

        If this is the last source to try, a metadata service that never answered means that there are no
        keys.
        """
        self._metadata = metadata or EcsMetadata()
        self._is_last_resort = is_last_resort
        self._role = role
        self._now = now
        self._lock = threading.Lock()
        self._held: Credentials | None = None
        self._renew_at: datetime | None = None

    def get(self) -> Credentials:
        """Return the role's key; if two are valid, the newer.

        Raises:
            AuthError: the machine has no role.
            TransientError: the metadata service does not answer, and the last key has expired.
        """
        with self._lock:
            now = self._now()
            if self._held is not None and (self._renew_at is None or now < self._renew_at):
                return self._held
            return self._fetch(now)

    def renew(self, refused: str) -> bool:
        """Ask the metadata service for a key other than ``refused``; return whether it has one."""
        with self._lock:
            if self._held is not None and self._held.access_key_id != refused:
                return True
            self._held = None
            try:
                return self._fetch(self._now()).access_key_id != refused
            except CloudspotError:
                return False

    def _fetch(self, now: datetime) -> Credentials:
        held = self._held
        try:
            fetched = self._ask()
        except CloudspotError as error:
            if held is None and self._is_last_resort:
                raise AuthError(
                    "no Alibaba Cloud credentials found; run `aliyun configure`, "
                    f"set {KEY_ID} and {KEY_SECRET}, or give the machine a RAM role ({error})"
                ) from error
            if held is None or (held.expires_at is not None and held.expires_at <= now):
                raise
            fetched = held  # The held key is still valid.
        self._held = fetched
        self._is_last_resort = False
        if fetched.expires_at is None:
            self._renew_at = None
        else:
            lead = min(LONGEST_LEAD, (fetched.expires_at - now) / 4)
            self._renew_at = fetched.expires_at - lead
            if fetched == held:
                self._renew_at = now + timedelta(seconds=RETRY_SECONDS)
        return fetched

    def _ask(self) -> Credentials:
        path = "meta-data/ram/security-credentials/"
        role = self._role or (self._metadata.get(path) or "").strip()
        answer = self._metadata.get(path + role) if role else None
        if answer is None:
            what = f"no RAM role {role!r}" if role else "no RAM role"
            raise AuthError(f"this machine has {what}; attach one, or set {KEY_ID} and {KEY_SECRET}")
        try:
            key = json.loads(answer)
            if key["Code"] != "Success":
                raise TransientError(
                    f"the metadata service has no key of role {role} now: {str(key['Code'])[:80]}"
                )
            expires_at = moment(key["Expiration"])
            if expires_at is None:
                raise ValueError("the key's expiry time is missing")
            return Credentials(
                str(key["AccessKeyId"]), str(key["AccessKeySecret"]), str(key["SecurityToken"]), expires_at
            )
        except UNREADABLE as error:
            # The error's message may contain part of the response, and so of the key.
            raise TransientError("the metadata service's answer about the role cannot be read") from error


def find_credentials(
    *,
    environ: Mapping[str, str] = os.environ,
    config_file: Path = CONFIG_FILE,
    metadata: EcsMetadata | None = None,
) -> CredentialsSource:
    """Return the first source that exists: the environment, a profile, or the machine's role.

    The role is not tried here; if the machine has none, an error is raised at the first use.

    Raises:
        SpecError: the named profile does not exist, or has an unsupported mode.
    """
    if environ.get(KEY_ID) or environ.get(KEY_SECRET):
        return EnvironmentCredentials(environ)
    path, name = config_file.expanduser(), environ.get(PROFILE)
    if name or path.exists():
        profile = read_profile(path, name)
        mode = profile.get("mode", "AK")
        if mode == "EcsRamRole":
            return RoleCredentials(metadata, role=profile.get("ram_role_name") or None)
        if mode in {"AK", "StsToken"}:
            if name or profile.get("access_key_id"):
                return ProfileCredentials(path, name)
        elif name or not environ.get(ROLE):
            raise SpecError(
                f"profile {profile.get('name')!r} of {path} has mode {mode!r}; expected AK, StsToken or "
                f"EcsRamRole: choose another with {PROFILE}, or set {KEY_ID} and {KEY_SECRET}"
            )
    role = environ.get(ROLE) or None
    return RoleCredentials(metadata, role=role, is_last_resort=role is None and not is_on_ecs())


def is_on_ecs() -> bool:
    """Return whether this is an ECS instance, judged by the hardware's name; no request is made."""
    try:
        return "Alibaba Cloud" in _PRODUCT_NAME.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def read_profile(path: Path, name: str | None) -> Mapping[str, Any]:
    """Return a profile from the command line's file; it is empty if the file has no current profile.

    The default ``name`` is that of the current profile.

    Raises:
        SpecError: the file cannot be read, or has no such profile.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        profiles = {one["name"]: one for one in config.get("profiles") or ()}
        wanted = name or config.get("current") or "default"
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(f"{path} was not written by `aliyun configure`; correct or remove it") from error
    if wanted in profiles:
        found: Mapping[str, Any] = profiles[wanted]
        return found
    if name is None:
        return {}
    raise SpecError(f"{path} has no profile {name!r}; it has: {', '.join(sorted(profiles)) or 'none'}")


def _keys_of(profile: Mapping[str, Any], path: Path) -> Credentials:
    key_id, secret = profile.get("access_key_id"), profile.get("access_key_secret")
    if not key_id or not secret:
        raise AuthError(f"profile {profile.get('name')!r} of {path} has no key; run `aliyun configure`")
    return Credentials(str(key_id), str(secret), str(profile.get("sts_token") or ""))
