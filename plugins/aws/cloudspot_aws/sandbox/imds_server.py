"""EC2's instance metadata service of one emulated machine, as strict as the real one.

Sources: EC2 user guide, "Use the Instance Metadata Service to access instance metadata", "Instance
metadata categories", "Spot Instance interruption notices", "EC2 instance rebalance recommendations",
"View tags for your EC2 instances using instance metadata" (checked 2026-11). From memory: a directory that is
asked for without its last slash is listed all the same.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Final

from cloudspot.testing.emulation import Answer, MachineView, MetadataService, Request
from cloudspot_aws.sandbox.credentials import Credentials, RoleKeys

MIN_TOKEN_SECONDS: Final = 1
MAX_TOKEN_SECONDS: Final = 21600
CREDENTIAL_SECONDS: Final = 6 * 3600.0
"""How long a role's credentials hold where the facts say nothing."""
RENEWED_BEFORE_SECONDS: Final = 300.0
"""New credentials appear so long before the old ones expire."""
VERSIONS: Final = (
    "1.0",
    "2007-01-19",
    "2007-03-01",
    "2007-08-29",
    "2007-10-10",
    "2007-12-15",
    "2008-02-01",
    "2008-09-01",
    "2009-04-04",
    "2011-01-01",
    "2011-05-01",
    "2012-01-12",
    "2014-02-25",
    "2014-11-05",
    "2015-10-20",
    "2016-04-19",
    "2016-06-30",
    "2016-09-02",
    "2018-03-28",
    "2018-08-17",
    "2018-09-24",
    "2019-10-01",
    "2020-10-27",
    "2021-01-03",
    "2021-03-23",
    "2021-07-15",
    "2022-09-24",
    "2024-04-11",
    "latest",
)

_PASS_HEADER = "x-aws-ec2-metadata-token"  # noqa: S105 # the name of a header
_LIFE_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
}
_PAGE = """\
<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
	"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>{0} - {1}</title>
 </head>
 <body>
  <h1>{0} - {1}</h1>
 </body>
</html>
"""

Tree = Mapping[str, Any]
"""Directories by name; a leaf is its text."""


class Imds(MetadataService):
    """One machine's service; its facts are what ``cloudspot_aws.sandbox.machines`` says of the instance.

    Beside those it reads ``role`` (the profile's role) with ``role-seed`` (see
    :mod:`cloudspot_aws.sandbox.credentials`), and ``credential-seconds``.
    """

    server_version: ClassVar[str] = "EC2ws"

    def __init__(
        self,
        view: MachineView,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        super().__init__(view)
        self._now = now
        self._tokens: dict[str, datetime] = {}
        self._credentials: Credentials | None = None
        self._updated_at = now()
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        path = request.path.partition("?")[0]
        if request.method == "PUT" and path.rstrip("/") == "/latest/api/token":
            return self._give_token(request)
        if request.method not in {"GET", "HEAD"}:
            return _refuse(405)
        refusal = self._check_token(request)
        if refusal is not None:
            return refusal
        return self._find(path)

    # --- tokens -----------------------------------------------------------------------------------

    def _give_token(self, request: Request) -> Answer:
        # What came through a proxy is not the machine's own (the guide: "Use IMDSv2").
        if "x-forwarded-for" in request.headers:
            return _refuse(403)
        text = request.headers.get(_LIFE_HEADER, "")
        if not re.fullmatch(r"[0-9]{1,5}", text) or not MIN_TOKEN_SECONDS <= int(text) <= MAX_TOKEN_SECONDS:
            return _refuse(400)
        token = "AQAEA" + secrets.token_urlsafe(37) + "=="
        with self._lock:
            now = self._now()
            self._tokens = {one: end for one, end in self._tokens.items() if end > now}
            self._tokens[token] = now + timedelta(seconds=int(text))
        hops = int(self.view.facts.get("http-put-response-hop-limit", 1))
        return Answer(200, token.encode(), headers={_LIFE_HEADER: text}, hop_limit=hops)

    def _check_token(self, request: Request) -> Answer | None:
        token = request.headers.get(_PASS_HEADER)
        if token is None:
            is_required = self.view.facts.get("http-tokens", "optional") == "required"
            return _refuse(401) if is_required else None
        with self._lock:
            end = self._tokens.get(token)
        return None if end is not None and end > self._now() else _refuse(401)

    # --- what there is ----------------------------------------------------------------------------

    def _find(self, path: str) -> Answer:
        parts = [part for part in path.split("/") if part]
        if not parts:
            return _text("\n".join(VERSIONS))
        version, *rest = parts
        if version not in VERSIONS:
            return _refuse(404)
        if rest == ["user-data"]:
            if not self.view.user_data:
                return _refuse(404)
            return Answer(200, self.view.user_data, "application/octet-stream")
        node: Any = {"dynamic": self._dynamic, "meta-data": self._meta_data, "user-data": ""}
        if not self.view.user_data:
            del node["user-data"]
        for part in rest:
            node = node() if callable(node) else node
            if not isinstance(node, Mapping) or part not in node:
                return _refuse(404)
            node = node[part]
        node = node() if callable(node) else node
        if not isinstance(node, Mapping):
            return _refuse(404) if path.endswith("/") else _text(str(node))
        # Directories end in a slash, but the top ones' names never did.
        slash = "/" if rest else ""
        return _text(
            "\n".join(
                name + (slash if callable(value) or isinstance(value, Mapping) else "")
                for name, value in sorted(node.items())
            )
        )

    def _meta_data(self) -> Tree:
        facts = self.view.facts
        names = (
            "ami-id",
            "ami-launch-index",
            "hostname",
            "instance-id",
            "instance-life-cycle",
            "instance-type",
            "local-ipv4",
            "mac",
            "reservation-id",
        )
        tree: dict[str, Any] = {name: str(facts[name]) for name in names if name in facts}
        tree["ami-manifest-path"] = "(unknown)"
        tree["instance-action"] = "none"
        tree["profile"] = "default-hvm"
        tree["local-hostname"] = tree["hostname"]
        tree["security-groups"] = "\n".join(facts.get("security-groups", ()))
        tree["placement"] = {"availability-zone": facts["availability-zone"], "region": facts["region"]}
        tree["services"] = {"domain": "amazonaws.com", "partition": "aws"}
        tree["network"] = {
            "interfaces": {
                "macs": {
                    facts["mac"]: {
                        "device-number": "0",
                        "local-hostname": tree["hostname"],
                        "local-ipv4s": tree["local-ipv4"],
                        "mac": facts["mac"],
                        "owner-id": facts["account"],
                        "subnet-id": facts["subnet-id"],
                    }
                }
            }
        }
        tree["events"] = {"maintenance": {"history": "[]", "scheduled": "[]"}}
        if facts.get("instance-metadata-tags") == "enabled":
            tree["tags"] = {"instance": self.view.tags}
        if facts.get("instance-profile"):
            tree["iam"] = self._iam()
        notice = self.view.notice
        if notice is not None and facts.get("instance-life-cycle") == "spot":
            at = _time(notice.deadline)
            tree["spot"] = {"instance-action": json.dumps({"action": notice.action, "time": at})}
            if notice.action == "terminate":
                tree["spot"]["termination-time"] = at
            tree["events"]["recommendations"] = {
                "rebalance": json.dumps({"noticeTime": _time(notice.given_at)})
            }
        return tree

    def _iam(self) -> Tree:
        facts = self.view.facts
        profile = facts["instance-profile"]
        info = {
            "Code": "Success",
            "LastUpdated": _time(self._updated_at),
            "InstanceProfileArn": f"arn:aws:iam::{facts['account']}:instance-profile/{profile}",
            "InstanceProfileId": "AIPAEMULATEDPROFILE00",
        }
        tree: dict[str, Any] = {"info": json.dumps(info, indent=2)}
        role = facts.get("role")
        if role:
            tree["security-credentials"] = {role: self._role_credentials()}
        return tree

    def _role_credentials(self) -> str:
        facts, now = self.view.facts, self._now()
        with self._lock:
            held = self._credentials
            if held is None or held.expires_at - now < timedelta(seconds=RENEWED_BEFORE_SECONDS):
                lifetime = timedelta(seconds=float(facts.get("credential-seconds", CREDENTIAL_SECONDS)))
                keys = RoleKeys(str(facts["role-seed"]))
                held = keys.issue(str(facts["instance-id"]), expires_at=now + lifetime)
                self._credentials, self._updated_at = held, now
        return json.dumps(
            {
                "Code": "Success",
                "LastUpdated": _time(self._updated_at),
                "Type": "AWS-HMAC",
                "AccessKeyId": held.access_key,
                "SecretAccessKey": held.secret_key,
                "Token": held.token,
                "Expiration": _time(held.expires_at),
            },
            indent=2,
        )

    def _dynamic(self) -> Tree:
        facts = self.view.facts
        document = {
            "accountId": facts["account"],
            "architecture": "x86_64",
            "availabilityZone": facts["availability-zone"],
            "billingProducts": None,
            "devpayProductCodes": None,
            "imageId": facts["ami-id"],
            "instanceId": facts["instance-id"],
            "instanceType": facts["instance-type"],
            "kernelId": None,
            "marketplaceProductCodes": None,
            "pendingTime": _time(self._updated_at),
            "privateIp": facts["local-ipv4"],
            "ramdiskId": None,
            "region": facts["region"],
            "version": "2017-09-30",
        }
        return {"instance-identity": {"document": json.dumps(document, indent=2)}}


def _text(text: str) -> Answer:
    return Answer(200, text.encode())


def _refuse(status: int) -> Answer:
    return Answer(status, _PAGE.format(status, _TITLES[status]).encode(), "text/html")


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
