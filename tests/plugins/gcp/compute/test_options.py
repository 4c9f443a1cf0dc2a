import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile.tables import convert
from cloudspot.plugin.machinetags import store_digest
from cloudspot_gcp import attributes
from cloudspot_gcp.lookups import wanted_regions
from cloudspot_gcp.options import DEFAULT_IMAGE, GcpOptions, check_options


def read(**table):
    options = convert(table, GcpOptions, at=("providers", "gcp"))
    check_options(options)
    return options


def test_the_table_may_be_empty():
    options = read()
    assert options.image_or_default == DEFAULT_IMAGE
    assert options.service_account == "cloudspot-node"
    assert (options.logs, options.preemption_notice, options.public_ip) == ("cloud-logging", 120.0, True)


def test_a_notice_is_written_as_a_duration():
    assert read(preemption_notice="120s").preemption_notice == 120.0
    assert read(preemption_notice=0).preemption_notice == 0.0


@pytest.mark.parametrize(
    ("table", "variable", "regions"),
    [
        ({}, None, ("us-central1",)),
        ({}, "europe-west4", ("europe-west4",)),
        ({"regions": ["us-east1", "us-west1"]}, "europe-west4", ("us-east1", "us-west1")),
        (
            {"zones": ["us-east1-b", "us-west1-a", "us-east1-c"]},
            "europe-west4",
            ("us-east1", "us-west1"),
        ),
    ],
)
def test_regions_are_the_options_the_zones_or_gclouds(monkeypatch, table, variable, regions):
    monkeypatch.delenv("CLOUDSDK_COMPUTE_REGION", raising=False)
    if variable is not None:
        monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", variable)
    assert wanted_regions(read(**table)) == regions


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"project": "123456789"},
            'providers.gcp.project: "123456789" is not a project\'s id; expected one such as my-project-123',
        ),
        (
            {"regions": ["iowa"]},
            'providers.gcp.regions: "iowa" is not a region; expected one such as us-central1',
        ),
        (
            {"zones": ["us-central1"]},
            'providers.gcp.zones: "us-central1" is not a zone; expected one such as us-central1-a',
        ),
        (
            {"regions": ["us-east1"], "zones": ["us-central1-a"]},
            'providers.gcp.zones: "us-central1-a" is not in us-east1',
        ),
        ({"regions": ["us-east1", "us-east1"]}, 'providers.gcp.regions: names "us-east1" twice'),
        (
            {"subnetworks": ["regions/us-east1/subnetworks/a", "regions/us-east1/subnetworks/b"]},
            'providers.gcp.subnetworks: names "us-east1" twice',
        ),
        (
            {"image": "ubuntu"},
            (
                'providers.gcp.image: "ubuntu" is not an image; expected one such as projects/PROJECT/global/images/NAME '
                "or projects/PROJECT/global/images/family/FAMILY"
            ),
        ),
        (
            {"scopes": ["cloud-platform"]},
            (
                'providers.gcp.scopes: "cloud-platform" is not a scope; expected one such as '
                "https://www.googleapis.com/auth/cloud-platform"
            ),
        ),
        (
            {"log_name": "a b"},
            'providers.gcp.log_name: "a b" is not the name of a log; expected one such as cloudspot-vision',
        ),
        (
            {"scopes": []},
            (
                "providers.gcp.scopes: is empty; expected for instance "
                '["https://www.googleapis.com/auth/cloud-platform"]'
            ),
        ),
        (
            {"preemption_notice": "60s"},
            'providers.gcp.preemption_notice: expected "120s" or 0, got 60 seconds',
        ),
        (
            {"on_demand_prices": {"big": 1.0}},
            (
                'providers.gcp.on_demand_prices: "big" is not a machine type; expected "g2-standard-8" or '
                '"us-central1/g2-standard-8"'
            ),
        ),
        (
            {"spot_prices": {"us-central1/g2-standard-8": 0}},
            'providers.gcp.spot_prices: the price of "us-central1/g2-standard-8" must be > 0, got 0',
        ),
        (
            {"labels": {"Team": "vision"}},
            'providers.gcp.labels: "Team" is not a label; expected a small letter, then at most 62 of a-z, 0-9, _ and -',
        ),
        (
            {"labels": {"cloudspot-job": "x"}},
            'providers.gcp.labels: "cloudspot-job" is reserved; choose another name',
        ),
        (
            {"labels": {"team": "a/b"}},
            'providers.gcp.labels: "a/b" is not a value for "team"; expected at most 63 of a-z, 0-9, _ and -',
        ),
        (
            {"labels": {f"l{i}": "" for i in range(41)}},
            "providers.gcp.labels: expected at most 40, got 41",
        ),
        (
            {"disk_type": "floppy"},
            (
                'providers.gcp.disk_type: expected one of "hyperdisk-balanced", "pd-balanced", "pd-ssd", '
                '"pd-standard"; got "floppy"'
            ),
        ),
        ({"zone": "us-central1-a"}, "providers.gcp.zone: unknown field; did you mean providers.gcp.zones?"),
    ],
)
def test_what_can_be_seen_to_be_wrong_is_refused_by_its_field(table, message):
    with pytest.raises(SpecError) as error:
        read(**table)
    assert str(error.value) == message


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_id", ["digits-1", "1", "9-lives-2", "d" * 30, "d" * 31, "a" * 40 + "-1"])
def test_a_machines_name_says_its_launch_and_rank_and_whose_it_is(job_id):
    name = attributes.machine_name(job_id, "gs://bucket", 12, 3)
    assert attributes.launch_and_rank(name) == (12, 3)
    assert attributes.is_of_job(name, job_id)
    assert attributes.digest_in(name) == store_digest("gs://bucket")
    assert attributes.job_of(name) == (job_id if len(job_id) <= 30 else None)


def test_jobs_of_long_ids_with_one_beginning_have_machines_of_their_own():
    first, second = ("d" * 50 + end for end in "ab")
    name = attributes.machine_name(first, "", 1, 0)
    assert not attributes.is_of_job(name, second)
    assert attributes.is_of_job(name, first)


def test_a_job_is_not_taken_for_one_whose_id_it_begins_with():
    name = attributes.machine_name("digits-1", "", 1, 0)
    assert not attributes.is_of_job(name, "digits")
    assert not attributes.is_of_job(name, "digits-11")


@pytest.mark.parametrize("name", ["web-1-2", "cs-web-1-2", "cs-digits-1-60e73611-1", "gke-60e73611-1-0", ""])
def test_other_peoples_machines_are_nobodys_node(name):
    assert attributes.launch_and_rank(name) is None
    assert attributes.job_of(name) is None
    assert attributes.digest_in(name) == ""
