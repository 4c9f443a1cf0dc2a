"""The emulated Compute Engine refuses what the real one refuses."""

import copy

import pytest
import requests

from cloudspot.model import EndReason
from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.filters import matching, page

PROJECT = "my-project-123"
ZONE = "us-central1-a"
PROPERTIES = {
    "machineType": "n2-standard-4",
    "disks": [
        {
            "boot": True,
            "autoDelete": True,
            "initializeParams": {
                "sourceImage": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts",
                "diskSizeGb": "20",
                "diskType": "pd-balanced",
            },
        }
    ],
    "networkInterfaces": [{"network": "global/networks/default"}],
}
SPOT = {"provisioningModel": "SPOT", "automaticRestart": False}
BULK = {"count": "2", "namePattern": "web-#", "instanceProperties": PROPERTIES}
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
NODE = f"cloudspot-node@{PROJECT}.iam.gserviceaccount.com"


def attached(machine_type, accelerator, count):
    """Return what changes a request for machines into one with accelerators attached."""
    return {
        "instanceProperties.machineType": machine_type,
        "instanceProperties.guestAccelerators": [{"acceleratorType": accelerator, "acceleratorCount": count}],
        "instanceProperties.scheduling": {"onHostMaintenance": "TERMINATE"},
    }


class Api:
    """A plain HTTP client of the project."""

    def __init__(self, cloud, token):
        self._base = f"{cloud.url}/compute/v1/projects/{PROJECT}"
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {token}"

    def __call__(self, method, path, body=None, **query):
        answer = self._session.request(method, f"{self._base}/{path}", json=body, params=query)
        return answer.status_code, answer.json()

    def get(self, path, **query):
        status, value = self("GET", path, **query)
        assert status == 200, value
        return value

    def post(self, path, body=None, **query):
        status, value = self("POST", path, body, **query)
        assert status == 200, value
        return value

    def refused(self, method, path, body=None, **query):
        status, value = self(method, path, body, **query)
        return status, value["error"]["errors"][0]["reason"], value["error"]["message"]


@pytest.fixture
def api(cloud, compute_door):
    return Api(cloud, compute_door.identities.issue(f"you@{PROJECT}.iam.gserviceaccount.com"))


def changed(value, change):
    """Return the value with each path in ``change`` set, or removed where it is None."""
    value = copy.deepcopy(value)
    for path, new in change.items():
        *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        inner = value
        for step in steps:
            inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]
        if new is None:
            del inner[last]
        else:
            inner[last] = new
    return value


def launch(api, **change):
    """Make machines, and return the operation."""
    return api.post("regions/us-central1/instances/bulkInsert", changed(BULK, change))


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"colour": "red"}, 400, 'Unknown name "colour"'),
        ({"instanceProperties.colour": "red"}, 400, "Unknown name \"colour\" at 'instanceProperties'"),
        ({"count": "two"}, 400, "Invalid value at 'count'"),
        ({"count": "0"}, 400, "within the range: [1, 1000]"),
        ({"minCount": "3"}, 400, "within the range: [1, count]"),
        ({"namePattern": "web"}, 400, "One sequence of # is needed"),
        ({"namePattern": "Web-#"}, 400, "Must be a match of regex"),
        ({"perInstanceProperties": {"a": {}, "b": {}}}, 400, "Exactly one of it and perInstanceProperties"),
        ({"namePattern": None, "perInstanceProperties": {"a": {}}}, 400, "There must be as many as count"),
        ({"instanceProperties": None}, 400, "It is needed"),
        ({"locationPolicy.locations": {"us-central1-a": {}}}, 400, "It is not a zone of us-central1"),
        ({"locationPolicy.locations": {"zones/us-east1-b": {}}}, 400, "It is not a zone of us-central1"),
        (
            {
                "locationPolicy.locations": {
                    f"zones/us-central1-{one}": {"preference": "DENY"} for one in "abcf"
                }
            },
            400,
            "Location policy leaves no zone of us-central1",
        ),
        ({"locationPolicy.targetShape": "ROUND"}, 400, "TYPE_ENUM"),
        ({"locationPolicy.targetShape": "BALANCED"}, 501, "supports only ANY_SINGLE_ZONE"),
        ({"instanceProperties.machineType": "z9-huge"}, 400, "The referenced machine type does not exist"),
        (
            {"instanceProperties.machineType": "zones/us-central1-a/machineTypes/n2-standard-4"},
            400,
            "machine type does not exist",
        ),
        ({"instanceProperties.machineType": "t2a-standard-4"}, 400, "architecture is not the machine type's"),
        ({"instanceProperties.disks": []}, 400, "Boot disk must be specified"),
        ({"instanceProperties.disks.0.initializeParams.sourceImage": "gone"}, 404, "was not found"),
        (
            {"instanceProperties.disks.0.initializeParams.diskSizeGb": "9"},
            400,
            "Requested disk size cannot be smaller than the image size (10 GB)",
        ),
        (
            {"instanceProperties.disks.0.initializeParams.diskType": "hyperdisk-balanced"},
            400,
            "hyperdisk-balanced disk type cannot be used by n2-standard-4 machine type",
        ),
        (
            {
                "instanceProperties.machineType": "g2-standard-4",
                "instanceProperties.disks.0.initializeParams.diskType": "pd-standard",
            },
            400,
            "pd-standard disk type cannot be used by g2-standard-4 machine type",
        ),
        (
            {
                "instanceProperties.machineType": "a3-highgpu-8g",
                "instanceProperties.disks.0.initializeParams.diskType": "pd-standard",
            },
            400,
            "pd-standard disk type cannot be used by a3-highgpu-8g machine type",
        ),
        (
            {"instanceProperties.machineType": "g4-standard-48"},
            400,
            "pd-balanced disk type cannot be used by g4-standard-48 machine type",
        ),
        (
            {"instanceProperties.disks.0.initializeParams.diskSizeGb": "65537"},
            400,
            "Disk size must be at most 65536 GB",
        ),
        ({"instanceProperties.disks.0.type": "SCRATCH"}, 400, "Boot disk must be a persistent disk"),
        ({"instanceProperties.networkInterfaces": []}, 400, "At least one network interface is required"),
        (
            {
                "instanceProperties.networkInterfaces.0": {
                    "subnetwork": "regions/us-east1/subnetworks/default"
                }
            },
            400,
            "It is not in the region us-central1",
        ),
        (
            {"instanceProperties.scheduling": {"provisioningModel": "SPOT"}},
            400,
            "must have automaticRestart be false",
        ),
        (
            {"instanceProperties.scheduling": {**SPOT, "onHostMaintenance": "MIGRATE"}},
            400,
            "Spot VMs must have onHostMaintenance TERMINATE",
        ),
        (
            {"instanceProperties.scheduling": {**SPOT, "maxRunDuration": {"seconds": "29"}}},
            400,
            "from 30 seconds to 120 days",
        ),
        (
            {"instanceProperties.scheduling": {"instanceTerminationAction": "DELETE"}},
            400,
            "It needs a spot VM or a limit of its run time",
        ),
        (
            {"instanceProperties.scheduling": {"preemptionNoticeDuration": {"seconds": "120"}}},
            400,
            "Spot VMs alone have it",
        ),
        (
            {
                "instanceProperties.scheduling": {
                    "maxRunDuration": {"seconds": "60"},
                    "terminationTime": "2026-12-01T00:00:00Z",
                }
            },
            400,
            "Only one of it and maxRunDuration can be set",
        ),
        (
            {"instanceProperties.scheduling": {**SPOT, "provisioningModel": "STANDARD", "preemptible": True}},
            400,
            "'STANDARD'. For preemptible, only allowed provisioning_model value is SPOT",
        ),
        (
            {
                "instanceProperties.machineType": "a3-highgpu-1g",
                "instanceProperties.scheduling": {"onHostMaintenance": "TERMINATE"},
            },
            400,
            "'STANDARD'. a3-highgpu-1g machines need FLEX_START or SPOT",
        ),
        (
            attached("n1-standard-4", "nvidia-tesla-t4", 8),
            400,
            "'8'. Number of accelerator cards attached to an instance must be one of [1, 2, 4]",
        ),
        (
            attached("n1-standard-16", "nvidia-tesla-v100", 1),
            400,
            "'1'. At most 12 vCPUs can be used along with 1 accelerator cards in an instance",
        ),
        (
            attached("n1-standard-64", "nvidia-tesla-p100", 2),
            400,
            "'2'. At most 32 vCPUs can be used along with 2 accelerator cards in an instance",
        ),
        (
            attached("n2-standard-4", "nvidia-tesla-t4", 1),
            400,
            "[nvidia-tesla-t4, n2-standard-4] features are not compatible for creating instance",
        ),
        (
            {"locationPolicy.locations": {"zones/us-central1-ai1a": {}}},
            400,
            "It is not a zone of us-central1",
        ),
        (
            {"instanceProperties.machineType": "g2-standard-4"},
            400,
            "Instances with guest accelerators do not support live migration",
        ),
        ({"instanceProperties.labels": {"Job": "x"}}, 400, "Label key"),
        ({"instanceProperties.labels": {"job": "a/b"}}, 400, "Label value"),
        ({"instanceProperties.metadata.items": [{"key": "a b", "value": ""}]}, 400, "(TYPE_STRING), "),
        (
            {"instanceProperties.metadata.items": [{"key": "a", "value": ""}] * 2},
            400,
            "Keys are unique",
        ),
        (
            {"instanceProperties.metadata.items": [{"key": "a", "value": "x" * 262145}]},
            400,
            "more than 262144 bytes",
        ),
        (
            {
                "instanceProperties.metadata.items": [
                    {"key": key, "value": "x" * 262144} for key in ("a", "b", "c")
                ]
            },
            400,
            "All have more than 524288 bytes",
        ),
        (
            {"instanceProperties.serviceAccounts": [{"email": "nobody", "scopes": [SCOPE]}]},
            400,
            "was not found",
        ),
        (
            {"instanceProperties.serviceAccounts": [{"email": NODE, "scopes": ["devstorage.read_write"]}]},
            400,
            "One or more of the service account scopes are invalid: 'devstorage.read_write'",
        ),
        ({"instanceProperties.tags.items": [f"tag-{i}" for i in range(65)]}, 400, "At most 64 tags"),
        ({"instanceProperties.tags.items": ["A"]}, 400, "Must be a match of regex"),
        ({"instanceProperties.resourcePolicies": ["gone"]}, 404, "resourcePolicies/gone' was not found"),
    ],
)
def test_a_launch_that_compute_engine_refuses_is_refused(cloud, api, change, status, words):
    found = api.refused("POST", "regions/us-central1/instances/bulkInsert", changed(BULK, change))
    assert found[0] == status
    assert words in found[2]
    assert cloud.host.machines == {}


@pytest.mark.parametrize(
    ("machine_type", "accelerator", "count"),
    [
        ("n1-standard-8", "nvidia-tesla-v100", 1),
        ("n1-standard-16", "nvidia-tesla-v100", 2),
        ("n1-standard-96", "nvidia-tesla-v100", 8),
        ("n1-standard-32", "nvidia-tesla-t4", 1),
        ("n1-standard-96", "nvidia-tesla-t4", 4),
        ("n1-standard-16", "nvidia-tesla-p100", 1),
    ],
)
def test_a_machine_within_the_limits_of_its_accelerators_is_made(api, machine_type, accelerator, count):
    launch(api, **attached(machine_type, accelerator, count))
    assert len(
        api.get("aggregated/instances")["items"][
            "zones/us-central1-c" if "v100" not in accelerator else "zones/us-central1-a"
        ]
    )


def test_four_p100_have_smaller_machines_in_one_zone(api):
    """Source: "GPU machine types", N1+P100 GPUs (as of 2026-04-14; checked 2026-11)."""
    large = changed(BULK, {**attached("n1-standard-96", "nvidia-tesla-p100", 4), "count": "1"})
    status, _, message = api.refused("POST", "zones/us-east1-c/instances/bulkInsert", large)
    assert (status, "At most 64 vCPUs can be used along with 4 accelerator cards" in message) == (400, True)
    assert api.post("zones/us-east1-b/instances/bulkInsert", large)["status"] == "DONE"


def test_a_bulk_insert_in_a_region_uses_no_ai_zone(cloud, api):
    assert "us-central1-ai1a" in {one.rpartition("/")[2] for one in api.get("regions/us-central1")["zones"]}
    spot = {"instanceProperties.scheduling": {**SPOT, "onHostMaintenance": "TERMINATE"}}
    hyperdisk = {"instanceProperties.disks.0.initializeParams.diskType": "hyperdisk-balanced"}
    launch(api, **spot, **hyperdisk, **{"instanceProperties.machineType": "a4-highgpu-8g"})
    assert {one.zone.rpartition("/")[2] for one in cloud.listed().values()} == {"us-central1-b"}


@pytest.mark.parametrize(
    ("request_id", "status"),
    [
        ("not-a-uuid", 400),
        ("00000000-0000-0000-0000-000000000000", 400),
        ("6f2a4c7e-51d8-4d8b-9a35-0c3e8a6f1b27", 200),
    ],
)
def test_a_request_id_is_a_uuid(api, request_id, status):
    path = "regions/us-central1/instances/bulkInsert"
    assert api("POST", path, BULK, requestId=request_id)[0] == status


def test_a_request_id_gives_the_same_operation_in_its_region_for_an_hour_and_is_for_one_request(cloud, api):
    request_id = "6f2a4c7e-51d8-4d8b-9a35-0c3e8a6f1b27"

    def ask(region, **change):
        path = f"regions/{region}/instances/bulkInsert"
        return api("POST", path, changed(BULK, change), requestId=request_id)

    first = ask("us-central1")[1]
    assert ask("us-central1")[1]["name"] == first["name"]
    assert first["clientOperationId"] == request_id
    status, value = ask("us-central1", count="1")
    assert (status, "used for another request" in value["error"]["message"]) == (400, True)
    assert ask("us-east1")[1]["name"] != first["name"]
    assert len(cloud.alive) == 4
    cloud.now += 3600
    assert ask("us-central1")[1]["name"] != first["name"]
    assert len(cloud.alive) == 6


def test_names_by_a_pattern_pass_over_those_that_are_taken(cloud, api):
    launch(api)
    launch(api)
    assert sorted(cloud.host.machines) == ["web-1", "web-2", "web-3", "web-4"]


def test_what_fell_short_is_told_by_the_operations_of_its_group(cloud, api):
    cloud.faults.capacity["*", "*", "*"] = 1
    operation = launch(api)
    assert operation["status"] == "DONE"
    assert [one["code"] for one in operation["error"]["errors"]] == ["VM_MIN_COUNT_NOT_REACHED"]
    group = f'operationGroupId = "{operation["operationGroupId"]}"'
    scopes = api.get("aggregated/operations", filter=group)["items"]
    inserts = scopes[f"zones/{ZONE}"]["operations"]
    assert [one["operationType"] for one in inserts] == ["insert", "insert"]
    codes = [error["code"] for one in inserts for error in one.get("error", {}).get("errors", ())]
    assert codes == ["ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"]
    assert scopes["zones/us-east1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert cloud.alive == []


def test_an_operation_runs_until_it_is_done(cloud, api):
    cloud.compute.operation_seconds = 5.0
    name = launch(api)["name"]
    path = f"regions/us-central1/operations/{name}"
    assert api.get(path)["status"] == api.post(f"{path}/wait")["status"] == "RUNNING"
    cloud.now += 5.0
    assert api.get(path)["status"] == "DONE"
    assert api.refused("GET", "regions/us-east1/operations/" + name)[:2] == (404, "notFound")
    assert api.refused("POST", "regions/us-central1/operations/none/wait")[:2] == (404, "notFound")


def test_a_machine_that_shuts_itself_down_stays_stopped_until_it_is_deleted(cloud, api):
    launch(api)
    cloud.host.end("web-1", EndReason.SELF)
    assert api.get(f"zones/{ZONE}/instances/web-1")["status"] == "TERMINATED"
    assert api("DELETE", f"zones/{ZONE}/instances/web-1")[1]["status"] == "DONE"
    assert api.refused("GET", f"zones/{ZONE}/instances/web-1")[:2] == (404, "notFound")
    assert api.refused("DELETE", f"zones/{ZONE}/instances/web-1")[:2] == (404, "notFound")


@pytest.mark.parametrize(("action", "status"), [("DELETE", 404), ("STOP", 200)])
def test_a_machine_that_is_preempted_is_deleted_or_stopped_as_was_asked_for(cloud, api, action, status):
    launch(api, **{"instanceProperties.scheduling": {**SPOT, "instanceTerminationAction": action}})
    api.post(f"zones/{ZONE}/instances/web-1/simulateMaintenanceEvent")
    assert cloud.host.reclaimed == [("web-1", 30.0)]
    assert api("GET", f"zones/{ZONE}/instances/web-1")[0] == status
    found = api.get("aggregated/operations", filter='operationType = "compute.instances.preempted"')
    (operation,) = found["items"][f"zones/{ZONE}"]["operations"]
    assert (operation["user"], operation["targetLink"].rpartition("/")[2]) == ("system", "web-1")


def test_a_machine_is_stopping_while_it_ends_and_its_deletion_runs(cloud, api):
    launch(api)
    cloud.host.ends_at_once = False
    operation = api("DELETE", f"zones/{ZONE}/instances/web-1")[1]
    assert operation["status"] == "RUNNING"
    assert api.get(f"zones/{ZONE}/instances/web-1")["status"] == "STOPPING"
    cloud.host.end("web-1", EndReason.TERMINATED)
    assert api.get(f"zones/{ZONE}/operations/{operation['name']}")["status"] == "DONE"


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [("setMetadata", "fingerprint", {"items": []}), ("setLabels", "labelFingerprint", {"labels": {}})],
)
def test_what_has_changed_meanwhile_is_not_overwritten(api, method, field, value):
    launch(api)
    path = f"zones/{ZONE}/instances/web-1/{method}"
    assert api.refused("POST", path, {**value, field: "AAAA"})[:2] == (412, "conditionNotMet")
    machine = api.get(f"zones/{ZONE}/instances/web-1")
    own = machine["metadata"]["fingerprint"] if field == "fingerprint" else machine["labelFingerprint"]
    assert api("POST", path, {**value, field: own})[0] == 200


def test_a_placement_policy_holds_its_machines_and_only_those_that_can_be_placed(api):
    policy = {"name": "near", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    path = "regions/us-central1/resourcePolicies"
    assert api.post(path, policy)["status"] == "DONE"
    assert api.refused("POST", path, policy)[:2] == (409, "alreadyExists")
    wrong = changed(BULK, {"instanceProperties.resourcePolicies": ["near"]})
    burstable = changed(wrong, {"instanceProperties.machineType": "e2-standard-4"})
    found = api.refused("POST", "regions/us-central1/instances/bulkInsert", burstable)
    assert "Compact placement does not support e2-standard-4" in found[2]
    launch(api, **{"instanceProperties.resourcePolicies": ["near"]})
    assert api.refused("DELETE", f"{path}/near")[:2] == (400, "resourceInUseByAnotherResource")


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "zones/us-central1-x", 404, "notFound"),
        ("GET", "regions/us-central2", 404, "notFound"),
        ("GET", "zones/us-central1-x/instances", 400, "invalid"),
        ("GET", "zones/us-central1-a/machineTypes/z9-huge", 404, "notFound"),
        ("GET", "global/networks/gone", 404, "notFound"),
        ("GET", "zones/us-central1-a/colours", 404, "notFound"),
        ("GET", "global/routes", 501, "notImplemented"),
        ("GET", "zones/us-central1-a/instances?maxResults=501", 400, "badRequest"),
        ("GET", "zones/us-central1-a/instances?colour=red", 400, "badRequest"),
        ("GET", "zones/us-central1-a/instances?filter=name+eq+a+AND+zone+%3D+b", 400, "badRequest"),
        ("GET", "zones/us-central1-a/instances?orderBy=size", 400, "badRequest"),
    ],
)
def test_what_is_not_there_or_not_understood_is_refused_and_never_an_empty_answer(
    api, method, path, status, reason
):
    assert api.refused(method, path)[:2] == (status, reason)


@pytest.mark.parametrize("header", [None, "Bearer ya29.unknown", "Basic abc"])
def test_a_request_without_a_good_token_is_refused(cloud, header):
    headers = {} if header is None else {"Authorization": header}
    answer = requests.get(f"{cloud.url}/compute/v1/projects/{PROJECT}", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["status"] == "UNAUTHENTICATED"


def test_another_project_is_not_there(cloud, api):
    api._base = f"{cloud.url}/compute/v1/projects/another-project"
    assert api.refused("GET", "zones")[:2] == (404, "notFound")


def test_an_answer_may_be_asked_for_in_part(api):
    launch(api)
    assert api.get(f"zones/{ZONE}/instances", fields="items(name,status)") == {
        "items": [{"name": "web-1", "status": "RUNNING"}, {"name": "web-2", "status": "RUNNING"}]
    }


def test_several_requests_come_in_one_as_gcloud_sends_them(cloud, api):
    launch(api)
    part = "Content-Type: application/http\r\nContent-ID: <{}>\r\n\r\nGET {} HTTP/1.1\r\n\r\n\r\n"
    where = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
    parts = [part.format(1, f"{where}/web-1?fields=name"), part.format(2, f"{where}/gone")]
    body = "".join(f"--mark\r\n{one}" for one in parts) + "--mark--\r\n"
    answer = api._session.post(
        f"{cloud.url}/batch/compute/v1",
        data=body,
        headers={"Content-Type": 'multipart/mixed; boundary="mark"'},
    )
    assert answer.status_code == 200
    assert '{"name": "web-1"}' in answer.text
    assert "HTTP/1.1 404" in answer.text


def test_all_calls_are_recorded_with_what_they_came_to(cloud, api):
    api.get("zones")
    api.refused("GET", "zones/us-central1-x")
    calls = [(call.service, call.action, call.error) for call in cloud.faults.calls]
    assert calls == [
        ("compute", "compute.zones.list", None),
        ("compute", "compute.zones.get", "notFound"),
    ]
    assert {call.access_key for call in cloud.faults.calls} == {f"you@{PROJECT}.iam.gserviceaccount.com"}


# --- filters --------------------------------------------------------------------------------------

ITEMS = [
    {"name": "a", "labels": {"job": "one"}, "zone": "x/zones/z", "scheduling": {"preemptible": True}},
    {"name": "ab", "labels": {"job": "two"}, "zone": "x/zones/y", "scheduling": {"preemptible": False}},
    {"name": "b", "zone": "x/zones/z"},
]


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", "a ab b"),
        ("name = a", "a"),
        ('name != "a"', "ab b"),
        ("name:a", "a ab"),
        ("labels.job:*", "a ab"),
        ("labels.job = one", "a"),
        ("scheduling.preemptible = true", "a"),
        ("name eq a.*", "a ab"),
        ("name ne a.*", "b"),
        ("name eq a", "a"),
        ('(name = "a") OR (name = "b")', "a b"),
        ("(name:a) (labels.job = two)", "ab"),
        ("(name:a) AND NOT (labels.job = two)", "a"),
        ('(zone = "x/zones/z") AND ((name = a) OR (name = ab))', "a"),
        ("zone:zones/z", ""),  # of a URL a part finds nothing
    ],
)
def test_a_filter_lets_through_what_it_says(expression, names):
    assert " ".join(one["name"] for one in matching(ITEMS, expression)) == names


@pytest.mark.parametrize(
    "expression",
    ["name", "name =", "= a", "(name = a", "name = a)", "name eq a name = b", "name ~ a", "name > a", "'a'"],
)
def test_a_filter_that_is_not_understood_is_refused(expression):
    with pytest.raises(ApiError, match="Invalid list filter expression"):
        matching(ITEMS, expression)


def test_pages_follow_each_other_and_end():
    first, token = page(ITEMS, {"maxResults": 2})
    assert [one["name"] for one in first] == ["a", "ab"]
    second, end = page(ITEMS, {"maxResults": 2, "pageToken": token})
    assert ([one["name"] for one in second], end) == (["b"], None)
    with pytest.raises(ApiError, match="pageToken"):
        page(ITEMS, {"pageToken": "none"})


def test_a_disk_is_deleted_only_if_no_machine_has_it(api):
    launch(api)
    listed = api.get(f"zones/{ZONE}/disks")["items"]
    assert [(one["name"], len(one["users"])) for one in listed] == [("web-1", 1), ("web-2", 1)]
    refusal = api.refused("DELETE", f"zones/{ZONE}/disks/web-1")
    assert refusal[:2] == (400, "resourceInUseByAnotherResource")
    api.post(f"zones/{ZONE}/disks", {"name": "alone", "sizeGb": "10"})
    assert api.refused("POST", f"zones/{ZONE}/disks", {"name": "alone"})[:2] == (409, "alreadyExists")
    assert api("DELETE", f"zones/{ZONE}/disks/alone")[0] == 200
    assert api.refused("DELETE", f"zones/{ZONE}/disks/alone")[:2] == (404, "notFound")


# --- images that are made of machines -------------------------------------------------------------

IMAGE = {"name": "trained", "sourceDisk": f"zones/{ZONE}/disks/web-1", "labels": {"for": "tests"}}
IMAGES = "global/images"


def boot_from(path, gib="20"):
    """Return what changes a request for machines into one for others that start from the image."""
    parameters = "instanceProperties.disks.0.initializeParams"
    return {"namePattern": "new-#", f"{parameters}.sourceImage": path, f"{parameters}.diskSizeGb": gib}


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"name": "Trained"}, 400, "Invalid value at 'name'"),
        ({"name": "a" * 64}, 400, "Invalid value at 'name'"),
        ({"name": None}, 400, "Required field 'name' not specified"),
        ({"colour": "red"}, 400, 'Unknown name "colour"'),
        ({"labels": {"Job": "x"}}, 400, "Label key"),
        ({"labels": {"job": "a/b"}}, 400, "Label value"),
        ({"sourceDisk": None}, 400, "Must specify exactly one source for an image."),
        ({"sourceImage": "global/images/x"}, 400, "Must specify exactly one source for an image."),
        ({"sourceDisk": "web-1"}, 400, "The URL is malformed"),
        ({"sourceDisk": f"zones/{ZONE}/disks/gone"}, 404, f"zones/{ZONE}/disks/gone' was not found"),
        ({"sourceDisk": "zones/us-central1-b/disks/web-1"}, 404, "was not found"),
        ({"sourceDisk": f"projects/other-1/zones/{ZONE}/disks/web-1"}, 404, "projects/other-1/"),
        ({"sourceDisk": f"zones/{ZONE}/disks/alone"}, 501, "copies only machines' disks"),
        ({"sourceDisk": None, "sourceImage": "global/images/x"}, 501, "supports only"),
        ({"storageLocations": ["eu"]}, 501, "supports only"),
    ],
)
def test_an_image_that_compute_engine_refuses_is_refused(api, change, status, words):
    launch(api)
    api.post(f"zones/{ZONE}/disks", {"name": "alone", "sizeGb": "10"})
    found = api.refused("POST", IMAGES, changed(IMAGE, change), forceCreate="true")
    assert found[0] == status
    assert words in found[2]
    assert api.get(IMAGES)["items"] == []


def test_the_disk_of_a_running_machine_is_copied_only_by_force(api):
    launch(api)
    for query in ({}, {"forceCreate": "false"}):
        status, reason, message = api.refused("POST", IMAGES, IMAGE, **query)
        assert (status, reason) == (400, "resourceInUseByAnotherResource")
        assert "disks/web-1' is already being used by" in message
    assert api.post(IMAGES, IMAGE, forceCreate="true")["status"] == "RUNNING"


@pytest.mark.full
def test_an_image_takes_a_while_and_is_one_of_its_name_with_the_disk_of_its_machine(cloud, api):
    launch(api)
    operation = api.post(IMAGES, IMAGE, forceCreate="true")
    made = api.get(f"{IMAGES}/trained")
    assert (made["status"], made["diskSizeGb"], made["labels"]) == ("PENDING", "20", {"for": "tests"})
    assert api.refused("POST", IMAGES, IMAGE, forceCreate="true")[:2] == (409, "alreadyExists")
    request = changed(BULK, boot_from(f"projects/{PROJECT}/global/images/trained"))
    refused = api.refused("POST", "regions/us-central1/instances/bulkInsert", request)
    assert (refused[1], "images/trained' is not ready" in refused[2]) == ("resourceNotReady", True)
    cloud.now += 3.0
    assert api.get(f"global/operations/{operation['name']}")["status"] == "DONE"
    assert [one["status"] for one in api.get(IMAGES, filter='labels.for = "tests"')["items"]] == ["READY"]
    smaller = changed(request, boot_from(f"projects/{PROJECT}/global/images/trained", "19"))
    refused = api.refused("POST", "regions/us-central1/instances/bulkInsert", smaller)
    assert "Requested disk size cannot be smaller than the image size (20 GB)" in refused[2]
    api.post("regions/us-central1/instances/bulkInsert", request)
    machines = cloud.host.machines
    assert (machines["new-1"].disk, machines["new-1"].is_bare) == ("/disks/web-1", True)
    assert (machines["web-1"].disk, machines["web-1"].is_bare) == (None, True)


def test_an_image_whose_machine_ends_before_it_is_ready_has_failed(cloud, api):
    launch(api)
    operation = api.post(IMAGES, IMAGE, forceCreate="true")
    cloud.host.end("web-1", EndReason.SELF)
    assert api.get(f"zones/{ZONE}/instances/web-1")["status"] == "TERMINATED"
    cloud.now += 60.0
    assert api.get(f"{IMAGES}/trained")["status"] == "FAILED"
    failed = api.get(f"global/operations/{operation['name']}")
    assert [one["code"] for one in failed["error"]["errors"]] == ["RESOURCE_NOT_FOUND"]
    refused = api.refused("POST", IMAGES, {**IMAGE, "name": "late"}, forceCreate="true")
    assert (refused[0], "machines that stand" in refused[2]) == (501, True)


def test_an_image_is_deleting_while_its_deletion_runs(cloud, api):
    launch(api)
    api.post(IMAGES, IMAGE, forceCreate="true")
    cloud.now += 3.0
    cloud.compute.operation_seconds = 5.0
    first, again = (api("DELETE", f"{IMAGES}/trained")[1] for _ in range(2))
    assert (first["status"], again["name"]) == ("RUNNING", first["name"])
    assert api.get(f"{IMAGES}/trained")["status"] == "DELETING"
    cloud.now += 5.0
    assert api.refused("GET", f"{IMAGES}/trained")[:2] == (404, "notFound")
    assert api.refused("DELETE", f"{IMAGES}/trained")[:2] == (404, "notFound")


def test_only_ones_own_project_gets_and_loses_images(cloud, api):
    api._base = f"{cloud.url}/compute/v1/projects/ubuntu-os-cloud"
    assert api.refused("POST", IMAGES, IMAGE, forceCreate="true")[:2] == (404, "notFound")
    assert api.refused("DELETE", f"{IMAGES}/ubuntu-2204-jammy-v20261101")[:2] == (404, "notFound")
    assert api.get(f"{IMAGES}/ubuntu-2204-jammy-v20261101")["status"] == "READY"
