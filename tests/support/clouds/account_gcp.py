"""The emulated Google Cloud's project after a job, by its REST APIs; and what must be true of it."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path

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


# --- a project that has only an administrator -------------------------------------------------------

_TOGETHER = (
    *("--set", "nodes=2", "--set", 'providers.gcp.placement_policy="auto"'),
    *("--set", 'providers.gcp.machine_types=["c2-standard-4"]'),
)
STEPS = (
    ("run", "--name", "three", "--detach", "--provider", "gcp", *_TOGETHER, "{job}"),
    ("attach", "three"),
)
"""What a submitter does on this cloud besides."""


def _ask(method, service, path, **options):
    from cloudspot_gcp.clients import GcpClients, endpoint

    clients = GcpClients()
    return clients.ask_json(
        method, f"{endpoint(service)}/{path.replace('PROJECT', clients.project)}", **options
    )


def make_submitter():
    """Make a service account with a key; return the variables that lead to the project as it, and its name."""
    _ask("POST", "serviceusage", "v1/projects/PROJECT/services/iam.googleapis.com:enable", json={})
    made = _ask("POST", "iam", "v1/projects/PROJECT/serviceAccounts", json={"accountId": "ada-submits"})
    key = _ask("POST", "iam", f"v1/{made['name']}/keys", json={})
    path = Path(os.environ["CLOUDSPOT_CONFIG"]).with_name("ada.json")
    path.write_bytes(base64.b64decode(key["privateKeyData"]))
    return {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}, f"serviceAccount:{made['email']}"


def list_all():
    """Return the names of all that a setup makes, and of all that jobs and drivers do."""
    found = {
        "accounts": [
            one["email"] for one in _ask("GET", "iam", "v1/projects/PROJECT/serviceAccounts")["accounts"]
        ],
        "roles": [one["name"] for one in _ask("GET", "iam", "v1/projects/PROJECT/roles").get("roles", ())],
    }
    asked = {"options": {"requestedPolicyVersion": 3}}
    services = ("cloudresourcemanager", "compute", "storage", "cloudfunctions", "cloudscheduler")
    url = "v1/projects/PROJECT/services/{}.googleapis.com"
    states = [_ask("GET", "serviceusage", url.format(one))["state"] for one in services]
    if states != ["ENABLED"] * len(states):
        return {**found, "granted": [], "buckets": [], "networks": ["default"], "others": []}
    here = "projects/PROJECT/locations/us-central1"
    policy = _ask("POST", "cloudresourcemanager", "v1/projects/PROJECT:getIamPolicy", json=asked)
    buckets = _ask("GET", "storage", "storage/v1/b?project=PROJECT").get("items", ())
    networks = _ask("GET", "compute", "compute/v1/projects/PROJECT/global/networks")["items"]
    return {
        **found,
        "granted": [(one["role"], one["members"]) for one in policy.get("bindings", ())],
        "buckets": [one["name"] for one in buckets],
        "networks": [one["name"] for one in networks],
        "others": [
            *_ask("GET", "compute", "compute/v1/projects/PROJECT/global/firewalls")["items"],
            *_ask("GET", "cloudfunctions", f"v2/{here}/functions").get("functions", ()),
            *_ask("GET", "cloudscheduler", f"v1/{here}/jobs").get("jobs", ()),
        ],
    }


def list_images():
    """Return the names of the images that jobs' setups are on."""
    listed = _ask("GET", "compute", "compute/v1/projects/PROJECT/global/images").get("items", ())
    return [one["name"] for one in listed if "cloudspot-setup" in one.get("labels", {})]
