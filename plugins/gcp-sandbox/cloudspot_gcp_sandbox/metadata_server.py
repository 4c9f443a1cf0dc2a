"""Compute Engine's metadata server for one emulated machine, as strict as the real server.

Sources: Compute Engine documentation, "About VM metadata", "Predefined metadata keys", "View and query VM
metadata" (the header, ``recursive``, ``alt``, ``wait_for_change``, ``last_etag``, ``timeout_sec``, refused
X-Forwarded-For), "Authenticate workloads to Google APIs"; for the values that Google's guest agents read:
GoogleCloudPlatform/guest-agent, google-guest-agent and compute-image-packages (checked 2026-11). From memory:
the redirect of a directory without its last slash, the texts of errors, and that guest attributes are
disabled. The real server ignores unknown parameters; here they are refused.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs, unquote

from cloudspot.emulation.cloud import Answer, MachineView, MetadataService, Request
from cloudspot_gcp_sandbox.machinetokens import TOKEN_SECONDS, MachineTokens

ROOT: Final = "computeMetadata"
VERSION: Final = "v1"
MAX_WAIT_SECONDS: Final = 3600.0
RENEWED_BEFORE_SECONDS: Final = 300.0
"""A token that expires within this time is replaced at the next request."""
_PARAMETERS: Final = frozenset(
    {
        "alt",
        "audience",
        "format",
        "last_etag",
        "licenses",
        "recursive",
        "scopes",
        "timeout_sec",
        "wait_for_change",
    }
)
_LISTS: Final = frozenset(
    {
        "access-configs",
        "disks",
        "forwarded-ips",
        "forwarded-ipv6s",
        "ip-aliases",
        "licenses",
        "network-interfaces",
        "target-instance-ips",
    }
)
"""The directories that become lists in recursive responses."""
_PAGE: Final = """\
<!DOCTYPE html>
<html lang=en>
  <title>Error {0} ({1})!!1</title>
  <p><b>{0}.</b> <ins>That's an error.</ins>
  <p>{2} <ins>That's all we know.</ins>
"""
_TITLES: Final = {
    301: "Moved Permanently",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
}

Tree = Mapping[str, Any]
"""A directory: its entries by name. A leaf is a text, a list (of lines, or of JSON) or a number."""


class GceMetadata(MetadataService):
    """One machine's metadata server."""

    server_version: ClassVar[str] = "Metadata Server for VM"

    def __init__(
        self,
        view: MachineView,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(view)
        self._now = now
        self._monotonic = monotonic
        self._token: tuple[str, float] | None = None
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        """Answer one request; a long poll waits."""
        path, _, query = request.path.partition("?")
        if request.method == "PUT" and path.startswith(f"/{ROOT}/{VERSION}/instance/guest-attributes/"):
            return _refuse(403, "Guest attributes endpoint access is disabled.")
        if request.method not in {"GET", "HEAD"}:
            return _refuse(405, f"The request method <code>{request.method}</code> is inappropriate.")
        # A request through a proxy does not come from the machine itself.
        if "x-forwarded-for" in request.headers:
            return _refuse(403, "Request with X-Forwarded-For header is not allowed.")
        parts = [unquote(part) for part in path.split("/") if part]
        if not parts:
            return _make("computeMetadata/\n", "application/text")
        if parts[0] != ROOT or parts[1:2] not in ([], [VERSION]):
            return _refuse(404, f"The requested URL <code>{path}</code> was not found on this server.")
        if request.headers.get("metadata-flavor") != "Google":
            return _refuse(403, "Missing Metadata-Flavor:Google header.")
        asked = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
        problem = _problem(asked)
        if problem is not None:
            return _refuse(400, problem)
        if parts == [ROOT]:
            return _make(f"{VERSION}/\n", "application/text")
        is_directory = path.endswith("/")
        if _is_set(asked, "wait_for_change"):
            return self._wait(parts[2:], asked, is_directory=is_directory)
        return self._look(parts[2:], asked, is_directory=is_directory)

    # --- waiting ----------------------------------------------------------------------------------

    def _wait(self, parts: Sequence[str], asked: Mapping[str, str], *, is_directory: bool) -> Answer:
        end = self._monotonic() + min(float(asked.get("timeout_sec", MAX_WAIT_SECONDS)), MAX_WAIT_SECONDS)
        answer = self._look(parts, asked, is_directory=is_directory)
        etag = asked.get("last_etag", answer.headers.get("ETag"))
        while answer.status == 200 and answer.headers["ETag"] == etag:
            left = end - self._monotonic()
            if left <= 0:
                break
            # The wait is short, because a change just before it would be missed.
            self.view.wait_for_change(min(left, 0.25))
            answer = self._look(parts, asked, is_directory=is_directory)
        return answer

    # --- values -----------------------------------------------------------------------------------

    def _look(self, parts: Sequence[str], asked: Mapping[str, str], *, is_directory: bool) -> Answer:
        missing = _refuse(404, "The requested URL was not found on this server.")
        if parts[:2] == ["instance", "service-accounts"] and len(parts) == 4:
            if parts[3] == "token":
                return self._give_token(parts[2], asked) or missing
            if parts[3] == "identity":
                return self._give_identity(parts[2], asked) or missing
        node: Any = self._tree()
        for part in parts:
            if not isinstance(node, Mapping) or part not in node:
                return missing
            node = node[part]
        if isinstance(node, Mapping):
            if not is_directory:
                where = "/".join(("", ROOT, VERSION, *parts, ""))
                return _refuse(301, "Moved.", {"Location": f"http://metadata.google.internal{where}"})
            if _is_set(asked, "recursive"):
                return _recursive(node, asked, is_raw=parts[-1:] == ["attributes"])
            names = (f"{name}/" if isinstance(node[name], Mapping) else name for name in sorted(node))
            return _make("".join(f"{name}\n" for name in names), "application/text")
        if is_directory:
            return missing
        if asked.get("alt") == "json" or isinstance(node, (list, int)):
            return _make(json.dumps(node), "application/json")
        return _make(str(node), "application/text")

    def _give_token(self, account: str, asked: Mapping[str, str]) -> Answer | None:
        known = {**self._accounts(), "default": self._default_account()}
        facts = known.get(account)
        if facts is None:
            return None
        allowed = set(facts["scopes"].splitlines())
        wanted = asked.get("scopes", "")
        scopes = [one for one in wanted.split(",") if one] or sorted(allowed)
        with self._lock:
            now = self._now()
            if self._token is None or self._token[1] - now < RENEWED_BEFORE_SECONDS:
                seconds = float(self.view.facts.get("token-seconds", TOKEN_SECONDS))
                tokens = MachineTokens(str(self.view.facts["token-seed"]))
                issued = tokens.issue(facts["email"], scopes=scopes, expires_at=now + seconds)
                self._token = (issued, now + seconds)
            token, expires_at = self._token
        value = {"access_token": token, "expires_in": int(expires_at - now), "token_type": "Bearer"}
        return _make(json.dumps(value), "application/json")

    def _give_identity(self, account: str, asked: Mapping[str, str]) -> Answer | None:
        """Return the machine's identity as a JWT; Google would sign it with a published key."""
        known = {**self._accounts(), "default": self._default_account()}
        own = known.get(account)
        if own is None:
            return None
        if not asked.get("audience"):
            return _refuse(400, "non-empty audience parameter required")
        facts, now = self.view.facts, int(self._now())
        claims: dict[str, Any] = {
            "aud": asked["audience"],
            "azp": str(facts["id"]),
            "email": own["email"],
            "email_verified": True,
            "exp": now + 3600,
            "iat": now,
            "iss": "https://accounts.google.com",
            "sub": str(facts["id"]),
        }
        if asked.get("format") == "full":
            claims["google"] = {
                "compute_engine": {
                    "instance_id": str(facts["id"]),
                    "instance_name": facts["name"],
                    "project_id": facts["project-id"],
                    "project_number": facts["numeric-project-id"],
                    "zone": facts["zone"],
                }
            }
        tokens = MachineTokens(str(facts["token-seed"]))
        return _make(tokens.identity(claims), "text/html")

    def _tree(self) -> Tree:
        facts = self.view.facts
        project = {
            "attributes": {},
            "numeric-project-id": facts["numeric-project-id"],
            "project-id": facts["project-id"],
        }
        return {
            "instance": self._instance(),
            "oslogin": {"authenticate": {"sessions": {}}},
            "project": project,
            "universe": {"universe-domain": "googleapis.com"},
        }

    def _instance(self) -> Tree:
        facts = self.view.facts
        number, scheduling = facts["numeric-project-id"], facts["scheduling"]
        is_spot = scheduling.get("provisioningModel") == "SPOT"
        public = facts.get("access-configs", ())
        interface = {
            "access-configs": {str(i): one for i, one in enumerate(public)},
            "dhcpv6-refresh": "",
            "dns-servers": "169.254.169.254",
            "forwarded-ips": {},
            "forwarded-ipv6s": {},
            "gateway": str(ipaddress.ip_interface(f"{facts['ip']}/20").network[1]),
            "ip": facts["ip"],
            "ip-aliases": {},
            "mac": "42:01:" + ":".join(f"{int(part):02x}" for part in facts["ip"].split(".")),
            "mtu": 1460,
            "network": f"projects/{number}/networks/default",
            "subnetmask": "255.255.240.0",
            "target-instance-ips": {},
        }
        disk = {
            "device-name": facts.get("disk-name", "persistent-disk-0"),
            "index": 0,
            "interface": "SCSI",
            "mode": "READ_WRITE",
            "type": "PERSISTENT-BALANCED",
        }
        accounts = self._accounts()
        return {
            "attributes": self.view.tags,
            "cpu-platform": "Intel Cascade Lake",
            "description": "",
            "disks": {"0": disk},
            "guest-attributes": {},
            "hostname": facts["hostname"],
            "id": facts["id"],
            "image": facts["image"],
            "licenses": {"0": {"id": "5926592092274602096"}},
            "machine-type": f"projects/{number}/machineTypes/{facts['machine-type']}",
            "maintenance-event": facts.get("maintenance-event", "NONE"),
            "name": facts["name"],
            "network-interfaces": {"0": interface},
            "preempted": _flag(self.view.notice is not None and is_spot),
            "remaining-cpu-time": -1,
            "scheduling": {
                "automatic-restart": _flag(bool(scheduling.get("automaticRestart"))),
                "on-host-maintenance": scheduling.get("onHostMaintenance", "MIGRATE"),
                "preemptible": _flag(is_spot),
            },
            "service-accounts": {**accounts, "default": self._default_account()} if accounts else {},
            "tags": list(facts.get("tags", ())),
            "virtual-clock": {"drift-token": "0"},
            "zone": f"projects/{number}/zones/{facts['zone']}",
        }

    def _accounts(self) -> dict[str, dict[str, str]]:
        return {
            one["email"]: {
                "aliases": "default",
                "email": one["email"],
                "scopes": "".join(f"{scope}\n" for scope in one["scopes"]),
            }
            for one in self.view.facts.get("service-accounts", ())
        }

    def _default_account(self) -> dict[str, str] | None:
        return next(iter(self._accounts().values()), None)


def _problem(asked: Mapping[str, str]) -> str | None:
    unknown = sorted(set(asked) - _PARAMETERS)
    if unknown:
        return f"Unknown parameter {unknown[0]}."
    for name in ("recursive", "wait_for_change"):
        if asked.get(name, "false").lower() not in {"true", "false"}:
            return f"Invalid value for {name}."
    if asked.get("alt", "json") not in {"json", "text"}:
        return "Invalid value for alt."
    if not re.fullmatch(r"[0-9]{1,6}", asked.get("timeout_sec", "0")):
        return "Invalid value for timeout_sec."
    return None


def _is_set(asked: Mapping[str, str], name: str) -> bool:
    """Return whether a flag is set; Google's own Python clients write ``True``."""
    return asked.get(name, "").lower() == "true"


def _recursive(node: Tree, asked: Mapping[str, str], *, is_raw: bool) -> Answer:
    if asked.get("alt", "json") == "text":
        return _make("".join(f"{path} {value}\n" for path, value in _flat(node, "")), "application/text")
    return _make(json.dumps(_value(node, is_raw=is_raw)), "application/json")


def _value(node: Any, *, is_raw: bool = False, name: str = "") -> Any:
    """Return the JSON value at a path, with the user's own names unchanged."""
    if not isinstance(node, Mapping):
        # In a recursive response, lines of text become a list.
        return node.splitlines() if name in {"scopes", "aliases", "dns-servers"} else node
    if name in _LISTS:
        return [_value(node[key]) for key in sorted(node)]
    is_raw = is_raw or name in {"attributes", "service-accounts"}
    return {
        key if is_raw else _camel(key): _value(value, is_raw=name == "attributes", name=key)
        for key, value in node.items()
    }


def _flat(node: Tree, prefix: str) -> list[tuple[str, Any]]:
    found = []
    for name in sorted(node):
        value = node[name]
        found += _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(part.capitalize() for part in rest)


def _flag(is_so: bool) -> str:  # noqa: FBT001 # a converter
    return "TRUE" if is_so else "FALSE"


def _make(text: str, kind: str) -> Answer:
    body = text.encode()
    headers = {
        "Metadata-Flavor": "Google",
        "ETag": hashlib.sha256(body).hexdigest()[:16],
        "X-XSS-Protection": "0",
        "X-Frame-Options": "SAMEORIGIN",
    }
    return Answer(200, body, kind, headers)


def _refuse(status: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    page = _PAGE.format(status, _TITLES[status], text).encode()
    return Answer(status, page, "text/html; charset=UTF-8", {"Metadata-Flavor": "Google", **(headers or {})})
