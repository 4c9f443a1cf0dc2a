"""Google's own descriptions, as the fakes hold requests to them."""

import pytest

from cloudspot_gcp_sandbox.apierror import ApiError
from cloudspot_gcp_sandbox.discovery import api

INSTANCES = "/compute/v1/projects/p/zones/z/instances"
BULK = "/compute/v1/projects/p/regions/r/instances/bulkInsert"


@pytest.mark.parametrize(
    ("name", "request_", "method_id", "path", "query"),
    [
        (
            "compute.v1",
            ("POST", INSTANCES, {"requestId": ["u"]}, {"name": "a", "scheduling": {"preemptible": True}}),
            "compute.instances.insert",
            {"project": "p", "zone": "z"},
            {"requestId": "u"},
        ),
        (
            "compute.v1",
            ("POST", BULK, {}, {"count": "2", "instanceProperties": {"labels": {"any": "thing"}}}),
            "compute.regionInstances.bulkInsert",
            {"project": "p", "region": "r"},
            {},
        ),
        (
            "compute.v1",
            ("GET", "/compute/v1/projects/p/global/images/family/debian-12", {}, None),
            "compute.images.getFromFamily",
            {"project": "p", "family": "debian-12"},
            {},
        ),
        (
            "compute.v1",
            ("GET", "/compute/v1/projects/p/aggregated/instances", {"maxResults": ["5"]}, None),
            "compute.instances.aggregatedList",
            {"project": "p"},
            {"maxResults": 5},
        ),
        (
            "storage.v1",
            ("GET", "/storage/v1/b/bucket/o/a%2Fb%20c", {"alt": ["media"], "generation": ["7"]}, None),
            "storage.objects.get",
            {"bucket": "bucket", "object": "a/b c"},
            {"alt": "media", "generation": 7},
        ),
        (
            "logging.v2",
            ("GET", "/v2/projects/p/logs", {"resourceNames": ["x/y", "z/w"]}, None),
            "logging.logs.list",
            {"parent": "projects/p"},
            {"resourceNames": ("x/y", "z/w")},
        ),
        (
            "logging.v2",
            ("POST", "/v2/entries:write", {}, {"entries": [{"insertId": "i"}], "dry_run": False}),
            "logging.entries.write",
            {},
            {},
        ),
    ],
)
def test_a_request_is_known_for_what_it_asks(name, request_, method_id, path, query):
    matched = api(name).check(*request_)
    assert (matched.method_id, matched.path, matched.query) == (method_id, path, query)
    assert not matched.is_upload


def test_content_that_is_uploaded_is_not_read_as_json():
    matched = api("storage.v1").check(
        "POST", "/upload/storage/v1/b/bucket/o", {"uploadType": ["media"], "ifGenerationMatch": ["0"]}
    )
    assert matched.is_upload
    assert (matched.method_id, matched.query["ifGenerationMatch"]) == ("storage.objects.insert", 0)


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (("GET", "/compute/v1/projects/p/zones/z/nothing", {}), 404, "was not found on this server"),
        (("PUT", INSTANCES, {}), 404, "was not found on this server"),
        (("GET", INSTANCES, {"zome": ["x"]}), 400, 'Unknown name "zome": Cannot bind query parameter'),
        (("GET", INSTANCES, {"filter": ["a", "b"]}), 400, "'filter' is not repeated and was given 2 times"),
        (("GET", INSTANCES, {"maxResults": ["many"]}), 400, "at 'maxResults' (TYPE_UINT32), \"many\""),
        (("GET", INSTANCES, {"prettyPrint": ["1"]}), 400, '(TYPE_BOOL), "1"'),
        (("GET", INSTANCES, {"alt": ["media"]}), 400, "does not support media download"),
        (("GET", INSTANCES + "/Upper_Case", {}), 400, "Must be a match of regex"),
        (("GET", INSTANCES, {}, {"name": "x"}), 400, "the method takes none"),
        (("POST", INSTANCES, {}, {"name": "a", "labls": {}}), 400, 'Unknown name "labls": Cannot find field'),
        (
            ("POST", INSTANCES, {}, {"name": "a", "scheduling": {"spot": True}}),
            400,
            "Unknown name \"spot\" at 'scheduling': Cannot find field",
        ),
        (
            ("POST", INSTANCES, {}, {"name": "a", "disks": [{"boot": "yes"}]}),
            400,
            "Invalid value at 'disks[0].boot' (TYPE_BOOLEAN), \"yes\"",
        ),
        (("POST", INSTANCES, {}, {"name": "a", "disks": {}}), 400, "'disks' (an array is expected)"),
        (
            ("POST", INSTANCES, {}, {"name": "a", "scheduling": 5}),
            400,
            "'scheduling' (an object is expected)",
        ),
        (("POST", INSTANCES, {}, {"name": "A"}), 400, "Invalid value at 'name'"),
        (("POST", INSTANCES, {}, {}), 400, "Required field 'name' not specified"),
        (("POST", BULK, {}, {"count": "9223372036854775808"}), 400, "at 'count' (TYPE_INT64)"),
        (
            ("POST", BULK, {}, {"instanceProperties": {"scheduling": {"provisioningModel": "CHEAP"}}}),
            400,
            "at 'instanceProperties.scheduling.provisioningModel' (TYPE_ENUM), \"CHEAP\"",
        ),
    ],
)
def test_what_the_description_does_not_allow_is_refused(request_, status, message):
    with pytest.raises(ApiError) as caught:
        api("compute.v1").check(*request_)
    assert caught.value.status == status
    assert message in caught.value.message
    assert caught.value.value()["error"]["code"] == status


def test_snake_case_serves_where_the_api_is_made_of_protocol_buffers_and_nowhere_else():
    api("logging.v2").check("POST", "/v2/entries:list", {}, {"resource_names": ["projects/p"]})
    api("storage.v1").check_value("Object", {"contentType": "text/plain"})
    with pytest.raises(ApiError, match="content_type"):
        api("storage.v1").check_value("Object", {"content_type": "text/plain"})


def test_a_fakes_own_answer_is_held_to_the_description_too():
    compute = api("compute.v1")
    compute.check_answer("compute.instances.insert", {"id": "7", "status": "DONE"})
    with pytest.raises(AssertionError, match=r"not a valid answer of compute\.instances\.insert"):
        compute.check_answer("compute.instances.insert", {"state": "DONE"})
