"""Machines of the emulated Google Cloud: made by a bulk insert, seen from inside by curl and google-auth."""

from __future__ import annotations

import json
import os
import time

import pytest
import requests

from cloudspot.boot.script import ending_command
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.provider import GcpProvider
from cloudspot_gcp.shutdownscript import SCRIPT
from cloudspot_gcp_sandbox.catalogue import BARE_IMAGE
from cloudspot_gcp_sandbox.cloud import BUCKET, NODE
from cloudspot_gcp_sandbox.machinetokens import MachineTokens
from cloudspot_gcp_sandbox.strict_compute import PROJECT

pytestmark = pytest.mark.full


enclosed = pytest.mark.enclosed
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
SPOT = {
    "provisioningModel": "SPOT",
    "instanceTerminationAction": "DELETE",
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": False,
}
READ = (
    'read_it() { curl -sf -H "Metadata-Flavor: Google" "http://metadata.google.internal/computeMetadata/v1/$1"'
    " && echo; }\n"
)
SPOT = {
    "provisioningModel": "SPOT",
    "instanceTerminationAction": "DELETE",
    "onHostMaintenance": "TERMINATE",
    "automaticRestart": False,
}


@enclosed
def test_a_machine_knows_who_it_is_and_reads_attributes_that_come_later(project):
    with project() as it:
        script = (
            f"{READ} read_it instance/name; read_it project/project-id; hostname; read_it instance/zone | tail -c 4\n"
            "read_it instance/network-interfaces/0/ip; echo asked\n"
            "until read_it instance/attributes/late; do sleep 0.05; done; echo up"
        )
        name = it.run(script)
        it.wait_for_console(name, "asked\n")
        (shown,) = it.instances()
        path = f"{it.compute}/zones/{shown['zone'].rpartition('/')[2]}/instances/{name}/setMetadata"
        items = [*shown["metadata"]["items"], {"key": "late", "value": "but here"}]
        body = {"items": items, "fingerprint": shown["metadata"]["fingerprint"]}
        answer = it.session.post(path, json=body)
        assert answer.status_code == 200, answer.text
        lines = [line for line in it.wait_for_console(name, "up\n") if line]
        address = shown["networkInterfaces"][0]["networkIP"]
        zone = shown["zone"][-3:]
        assert lines[:8] == [name, PROJECT, name, zone, address, "asked", "but here", "up"]


@enclosed
def test_curl_without_the_header_is_refused_at_the_real_address(project):
    ask = "curl -s -o /dev/null -w '%{http_code}\\n' http://169.254.169.254/computeMetadata/v1/instance/name"
    header = "-H 'Metadata-Flavor: Google'"
    with project() as it:
        name = it.run(f"{ask}; {ask} {header} -H 'X-Forwarded-For: 10.0.0.1'; {ask} {header}; echo up")
        assert it.wait_for_console(name, "up\n")[:3] == ["403", "403", "200"]


@enclosed
def test_google_auth_takes_the_accounts_token_from_the_metadata_and_the_apis_take_it(project):
    code = (
        "import google.auth, os\n"
        "from google.auth.transport.requests import AuthorizedSession, Request\n"
        "credentials, project = google.auth.default(scopes=['https://www.googleapis.com/auth/cloud-platform'])\n"
        "print(type(credentials).__module__, project)\n"
        "session = AuthorizedSession(credentials)\n"
        "url = os.environ['STORAGE_EMULATOR_HOST'] + '/upload/storage/v1/b/%s/o?uploadType=media&name=it'\n"
        f"print(session.post(url % '{BUCKET}', data=b'hello').status_code)\n"
        "print(credentials.service_account_email)\n"
    )
    with project() as it:
        name = it.run(f"python - <<'END'\n{code}END\necho up")
        lines = it.wait_for_console(name, "up\n")
        assert lines[:4] == [f"google.auth.compute_engine.credentials {PROJECT}", "200", NODE, "up"]
        url = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/{BUCKET}/o/it?alt=media"
        assert it.session.get(url).content == b"hello"
        made_up = {"Authorization": "Bearer ya29.c.made-up.x"}
        assert requests.get(url, headers=made_up).status_code == 401
        bare = it.run(f"{READ} read_it instance/service-accounts/default/token || echo none", serviceAccounts=[],
                      name="cs-digits-0a1b2c3d-1-1")  # fmt: skip
        assert it.wait_for_console(bare, "none\n")[0] == "none"


@enclosed
def test_a_token_of_a_machine_is_refused_when_it_has_run_out(project):
    with project() as it:
        name = it.run("sleep 1000")
        tokens = MachineTokens(it.host.directory(name).record().guest.facts["token-seed"])
        url = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/{BUCKET}"
        for left, status in ((-1.0, 401), (60.0, 200)):
            token = tokens.issue(NODE, scopes=[SCOPE], expires_at=time.time() + left)
            assert requests.get(url, headers={"Authorization": f"Bearer {token}"}).status_code == status


@enclosed
def test_a_preemption_is_a_long_poll_then_the_power_button_then_the_end(project):
    where = "http://169.254.169.254/computeMetadata/v1/instance/preempted"
    version = f'curl -s -o /dev/null -D - -H "Metadata-Flavor: Google" {where} | tr -d "\\r" | sed -n "s/^ETag: //p"'
    ask = "instance/preempted?wait_for_change=true&timeout_sec=600&last_etag=$E"
    script = f'{READ} E=$({version}); echo waiting; read_it "{ask}"; echo heard; sleep 1000'
    at_end = "#!/bin/bash\necho the script runs; sleep 0.3"
    with project() as it:
        name = it.run(script, attributes={"shutdown-script": at_end}, scheduling=SPOT)
        it.wait_for_console(name, "waiting\n")
        # The button is pressed half a minute before the end.
        it.host.reclaim(name, notice_seconds=31.0)
        lines = it.wait_for_console(name, "the shutdown script ended")
        assert [line for line in lines if line][:6] == [
            "waiting",
            "TRUE",
            "heard",
            "init: powering off",
            "init: the shutdown script runs",
            "the script runs",
        ]
        it.wait_until(lambda: it.instances() == [])
        assert it.operations().count("compute.instances.preempted") == 1


@enclosed
def test_the_shutdown_script_of_the_plugin_does_nothing_where_no_agent_was_installed(project):
    with project() as it:
        name = it.run("shutdown -h now", attributes={"shutdown-script": SCRIPT})
        lines = it.wait_for_console(name, "the shutdown script ended")
        assert "init: the shutdown script ended with status 0" in lines
        it.wait_until(lambda: [one["status"] for one in it.instances()] == ["TERMINATED"])
        assert "compute.instances.guestTerminate" in it.operations()


@enclosed
@pytest.mark.parametrize("scheduling", [SPOT, {"provisioningModel": "STANDARD"}])
def test_of_a_machine_that_ends_itself_nothing_is_left_though_nobody_looks(project, scheduling):
    profile = GcpProvider(GcpOptions(project=PROJECT)).boot_profile()
    with project() as it:
        name = it.run(f"echo over\n{ending_command(profile)}", scheduling=scheduling)
        it.wait_until(lambda: it.instances() == [])
        assert "over" in it.host.console(name)
        assert "delete" in it.operations()


@enclosed
def test_images_have_what_they_are_said_to_have(project):
    ask = "for p in python3 /opt/conda/bin/python; do $p -c 'import cloudspot; print(1)' 2>&1 | tail -1; done; echo up"
    with project() as it:
        ready, bare = it.run(ask), it.run(ask, image=BARE_IMAGE, name="cs-digits-0a1b2c3d-1-1")
        assert it.wait_for_console(ready, "up\n")[:2] == ["1", "1"]
        assert "No module named 'cloudspot'" in it.wait_for_console(bare, "up\n")[0]


@enclosed
def test_the_trail_tells_machines_from_the_submitter(project, tmp_path):
    with project() as it:
        url = f"http://$(echo $STORAGE_EMULATOR_HOST | cut -d/ -f3)/storage/v1/b/{BUCKET}/o"
        token = "$(read_it instance/service-accounts/default/token | cut -d'\"' -f4)"
        name = it.run(f'{READ} curl -sf -H "Authorization: Bearer {token}" {url} >/dev/null; echo up')
        it.wait_for_console(name, "up\n")
        lines = (tmp_path / "gcp" / "cloud" / "requests.jsonl").read_text().splitlines()
    seen = [(one["by"], one["action"], one["rights"], one["resource"]) for one in map(json.loads, lines)]
    insert = next(one for one in seen if one[1] == "compute.regionInstances.bulkInsert")
    assert (insert[0], "compute.instances.create" in insert[2]) == ("user", True)
    where = f"projects/_/buckets/{BUCKET}"
    assert ("machine", "storage.objects.list", ["storage.objects.list"], where) in seen
