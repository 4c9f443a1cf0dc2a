"""The emulated IAM, Cloud Functions and Cloud Scheduler refuse what Google's do."""

from __future__ import annotations

import base64
import sys

import pytest
import requests

from cloudspot_gcp_sandbox import strict_iam
from cloudspot_gcp_sandbox.cloud import BUCKET, NODE
from cloudspot_gcp_sandbox.strict_compute import PROJECT

HERE = f"projects/{PROJECT}/locations/us-central1"
ROLE = {"roleId": "mine", "role": {"title": "mine", "includedPermissions": ["compute.instances.list"]}}
FILTERS = [
    {"attribute": "serviceName", "value": "compute.googleapis.com"},
    {"attribute": "methodName", "value": "compute.instances.preempted"},
]

pytestmark = [pytest.mark.full, pytest.mark.enclosed]


@pytest.fixture
def ask(project):
    """``ask(it, method, path, ...)``: status and answer, as the project's owner."""

    def send(it, method, path, body=None, **parameters):
        url = it.compute.partition("/compute/")[0]
        answer = it.session.request(method, f"{url}/{path}", json=body, params=parameters)
        return answer.status_code, answer.json()

    return send


def test_policies_take_the_newest_etag_version_3_and_what_exists_only(project, ask):
    with project() as it:
        get, put = f"v1/projects/{PROJECT}:getIamPolicy", f"v1/projects/{PROJECT}:setIamPolicy"
        # Who does not ask for version 3 does not see the condition, and cannot write back what was seen.
        status, old = ask(it, "POST", get, {})
        assert (status, old["version"], "condition" in old["bindings"][0]) == (200, 1, False)
        assert ask(it, "POST", put, {"policy": old})[0] == 400
        _, new = ask(it, "POST", get, {"options": {"requestedPolicyVersion": 3}})
        assert "condition" in new["bindings"][0]
        binding = {"role": "roles/run.invoker", "members": [f"serviceAccount:{NODE}"]}
        changed = {**new, "bindings": [*new["bindings"], binding]}
        assert ask(it, "POST", put, {"policy": changed})[0] == 200
        assert ask(it, "POST", put, {"policy": changed})[0] == 409  # by its etag
        for unknown in (
            {**binding, "role": f"projects/{PROJECT}/roles/none"},
            {**binding, "members": [f"serviceAccount:none@{PROJECT}.iam.gserviceaccount.com"]},
        ):
            _, seen = ask(it, "GET", f"storage/v1/b/{BUCKET}/iam")
            status, refusal = ask(it, "PUT", f"storage/v1/b/{BUCKET}/iam", {**seen, "bindings": [unknown]})
            assert status == 400
            assert "does not exist" in refusal["error"]["message"]


def test_a_deleted_roles_id_is_taken_and_a_new_account_is_unknown_for_a_while(project, ask):
    strict_iam.LAG_SECONDS = 3600.0  # This process is the test's alone.
    with project() as it:
        roles = f"v1/projects/{PROJECT}/roles"
        assert ask(it, "POST", roles, ROLE)[0] == 200
        assert ask(it, "POST", roles, ROLE)[0] == 409
        assert ask(it, "DELETE", f"{roles}/mine")[0] == 200
        status, refusal = ask(it, "POST", roles, ROLE)
        assert (status, "deleted state" in refusal["error"]["message"]) == (400, True)
        account = {"accountId": "driver", "serviceAccount": {}}
        status, made = ask(it, "POST", f"v1/projects/{PROJECT}/serviceAccounts", account)
        assert status == 200
        assert not it.cloud.iam.exists(made["email"])
        assert ask(it, "POST", f"v1/projects/{PROJECT}/serviceAccounts", {"accountId": "tiny"})[0] == 400


def test_functions_and_schedules_that_google_would_not_take_are_refused(project, ask):
    with project() as it:
        functions, jobs = f"v2/{HERE}/functions", f"v1/{HERE}/jobs"
        _, given = ask(it, "POST", f"{functions}:generateUploadUrl", {"environment": "GEN_2"})
        sent = it.session.put(given["uploadUrl"], data=b"x", headers={"content-type": "application/zip"})
        assert sent.status_code == 403  # for the credentials beside the URL's own
        assert requests.put(given["uploadUrl"], data=b"x", timeout=30).status_code == 403
        trigger = {"eventType": "google.cloud.audit.log.v1.written", "eventFilters": FILTERS[:1]}
        body = {
            "buildConfig": {
                "runtime": f"python{sys.version_info[0]}{sys.version_info[1]}",
                "entryPoint": "drive",
            },
            "serviceConfig": {"serviceAccountEmail": NODE},
            "eventTrigger": {**trigger, "serviceAccountEmail": NODE},
        }
        status, refusal = ask(it, "POST", functions, body, functionId="f")
        assert (status, "serviceName and methodName" in refusal["error"]["message"]) == (400, True)
        body["eventTrigger"]["eventFilters"] = FILTERS
        body["buildConfig"]["source"] = {"storageSource": given["storageSource"]}
        assert ask(it, "POST", functions, body, functionId="f")[0] == 404  # Nothing was uploaded.
        job = {
            "name": f"{HERE}/jobs/j",
            "schedule": "every 5 minutes",
            "httpTarget": {
                "uri": "https://f.a.run.app",
                "httpMethod": "POST",
                "body": base64.b64encode(b"{}").decode(),
                "oidcToken": {"serviceAccountEmail": NODE},
            },
        }
        assert ask(it, "POST", jobs, job)[0] == 200
        assert ask(it, "POST", jobs, job)[0] == 409
        for wrong in ({"schedule": "every 5 mins"}, {"attemptDeadline": "1s"}, {"retries": 1}):
            assert ask(it, "PATCH", f"{jobs}/j", wrong, updateMask=next(iter(wrong)))[0] == 400
        assert ask(it, "DELETE", f"{jobs}/j")[0] == 200
        assert ask(it, "POST", f"{jobs}/j:run", {})[0] == 404
