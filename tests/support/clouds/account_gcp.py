"""The emulated Google Cloud's project after a job, by its REST APIs; and what must be true of it."""

from __future__ import annotations

import os
import re

from support.clouds.sandboxed import NAME, Seen, check_streams, rights_taken

from cloudspot_gcp import permissions

BUCKET = "cloudspot-sandbox"
# No notice of two minutes, which would be trained through: a machine of this job is told with half a minute.
SETS = ("providers.gcp.preemption_notice=0",)
# What the condition in docs/gcp.md has the machines' account delete.
OWN = re.compile(r"projects/[^/]+/zones/[^/]+/instances/cs-[^/]+")
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


def look():
    """Return what the project's owner sees; inside."""
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    credentials, project = google.auth.default(scopes=SCOPES)
    session = AuthorizedSession(credentials)

    def base(service):
        return os.environ[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service}"]

    def pages(method, url, items, **asked):
        token = None
        while token is None or token:
            more = {**asked, **({"pageToken": token} if token else {})}
            where = {"params": more} if method == "GET" else {"json": more}
            answer = session.request(method, url, **where)
            answer.raise_for_status()
            value = answer.json()
            yield from value.get(items, ())
            token = value.get("nextPageToken", "")

    def everywhere(kind):
        answer = session.get(f"{base('COMPUTE')}projects/{project}/aggregated/{kind}")
        answer.raise_for_status()
        return [one for scope in answer.json()["items"].values() for one in scope.get(kind, ())]

    objects = pages("GET", f"{base('STORAGE')}b/{BUCKET}/o", "items", fields="items(name),nextPageToken")
    entries = pages(
        "POST",
        f"{base('LOGGING')}v2/entries:list",
        "entries",
        resourceNames=[f"projects/{project}"],
        filter=f'labels.job="{NAME}"',
        orderBy="timestamp asc",
        pageSize=1000,
    )
    streams = {}
    for entry in entries:
        labels = entry["labels"]
        line = {"seq": int(labels["seq"]), "text": entry.get("textPayload", "")}
        streams.setdefault(labels["stream"], []).append(line | ({"part": 1} if "part" in labels else {}))
    return {
        "instances": everywhere("instances"),
        "policies": everywhere("resourcePolicies"),
        "operations": everywhere("operations"),
        "streams": streams,
        "keys": [one["name"] for one in objects],
    }


def granted(role: str) -> set[str]:
    """Return the permissions of a role."""
    text = (permissions.DIRECTORY / f"role-{role}.yaml").read_text()
    return set(re.findall(r"^- (\S+)$", text, re.MULTILINE))


def check(seen: Seen) -> None:
    """Nothing that costs is left, every line is in Cloud Logging; no request took more than the roles grant."""
    account = seen.account
    assert (account["instances"], account["policies"]) == ([], [])
    # Each machine deletes itself when its agent has ended: one that only shuts down stays, with its disk. The
    # one that is taken is done before its time, or not quite.
    ends = {
        kind: {one["targetLink"] for one in account["operations"] if one["operationType"] == kind}
        for kind in ("delete", "compute.instances.preempted", "compute.instances.guestTerminate")
    }
    assert len(ends["delete"] | ends["compute.instances.preempted"]) == len(seen.machines)
    assert (len(ends["delete"]) >= len(seen.machines) - 1, ends["compute.instances.guestTerminate"]) == (
        True,
        set(),
    )
    deleted = [one for one in seen.trail if one["action"] == "compute.instances.delete"]
    assert {(one["by"], one["error"]) for one in deleted} == {("machine", None)}
    assert {"code", "index", "jobs"} <= {key.partition("/")[0] for key in account["keys"]}
    assert sorted(account["streams"]) == seen.machines
    check_streams(account["streams"], seen.show)
    bucket = f"projects/_/buckets/{BUCKET}"
    # Who names a service account for the machines acts as it, by a right on the account alone.
    for by, role, more in (("user", "submitter", {"iam.serviceAccounts.actAs"}), ("machine", "node", set())):
        taken = rights_taken(seen.trail, by)
        on_bucket = {(right, where) for right, where in taken if f"{where}/".startswith(f"{bucket}/")}
        on_own = {(right, where) for right, where in taken if by == "machine" and OWN.fullmatch(where)}
        assert {right for right, _ in taken - on_bucket - on_own} - granted(role) - more == set()
        assert {right for right, _ in on_own} == (granted("self-end") if by == "machine" else set())
        assert {right for right, _ in on_bucket} - granted("bucket") == set()
        # The comparison can fail: each of these was taken, and is missed when it is taken away.
        rights = {right for right, _ in taken}
        assert {"storage.objects.create", "storage.objects.get", "storage.objects.list"} <= rights
        assert ("compute.instances.create" in rights) == (by == "user")
        assert ("logging.logEntries.create" in rights) == (by == "machine")
    texts = "".join(seen.consoles.values())
    assert set(re.findall(r"shutdown script ended with status (\d+)", texts)) <= {"0"}
