"""What a recording may show: names and values of an allow-list, and nothing that belongs to an account."""

import json
from datetime import datetime, timezone

import pytest

from cloudspot.plugin.apirecording import ApiExchange
from cloudspot_gcp.options import DEFAULT_IMAGE
from cloudspot_prove.clouds import cloud_of
from cloudspot_prove.masking import Allowed, Mask
from cloudspot_prove.recording import Recorder, read_lines

ALLOWED = Allowed(
    names=lambda service: frozenset(
        {"Account", "State", "Name", "Tags", "Key", "Value", "Size", "Instances"}
    ),
    values=frozenset({"Size", "State.Name"}),
    texts=lambda service: frozenset({"cloudspot-job", "running"}),
    segments=frozenset({"v1", "projects", "zones", "instances", "start"}),
    named_by=frozenset({"zones"}),
)
PLANTED = {
    "number": "123456789012",
    "name": "acme-research",
    "address": "203.0.113.77",
    "mail": "ada@example.com",
    "secret": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "url": "https://compute.googleapis.com/compute/v1/projects/acme-research/zones/europe-west4-a",
}


@pytest.fixture
def mask():
    return Mask(b"k" * 32, ALLOWED)


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("place", ["value", "name of a field", "value that may be shown", "deep", "path"])
def test_nothing_that_belongs_to_an_account_is_on_the_disk(tmp_path, mask, planted, place):
    answers = {
        "value": {"Account": planted},
        "name of a field": {"Tags": {planted: "x"}},
        "value that may be shown": {"Size": planted.replace(" ", ",") + ";"},
        "deep": {"Instances": [[{"Tags": [{"Key": "cloudspot-job", "Value": planted}]}]]},
        "path": None,
    }
    action = f"GET /v1/projects/{planted}" if place == "path" else "Describe"
    recorder = Recorder(tmp_path / "a.jsonl", mask, step="launch", began=0.0)
    recorder(
        ApiExchange(
            service="s",
            action=action,
            request=answers[place],
            answer=answers[place],
            status=200,
            code="",
            seconds=0.1,
        )
    )
    text = (tmp_path / "a.jsonl").read_text()
    assert planted not in text
    assert planted not in json.dumps(json.loads(text))
    assert "acme" not in text


def test_an_account_number_is_masked_as_a_number_too(mask):
    assert mask.tree({"Account": 123456789012}, "s") == {"Account": "~number"}


def test_a_text_has_one_pseudonym_in_a_recording_and_another_one_in_the_next(mask):
    first, second = mask.tree({"Account": "acme", "Value": "acme"}, "s").values()
    assert first == second
    assert first.startswith("~")
    assert Mask(b"other" * 8, ALLOWED).tree("acme", "s") != first


def test_what_the_list_allows_is_shown(mask):
    answer = {"State": {"Name": "pending"}, "Size": 65, "Key": "cloudspot-job", "Value": None, "Tags": []}
    assert mask.tree(answer, "s") == answer


def test_times_and_bytes_are_of_their_kind_only(mask):
    told = {
        "Name": datetime(2026, 1, 1, tzinfo=timezone.utc),
        "Value": "2026-11-30T10:00:00Z",
        "Account": b"x",
    }
    assert mask.tree(told, "s") == {"Name": "~time", "Value": "~time", "Account": "~bytes"}


def test_a_path_shows_its_own_words_and_zones(mask):
    shown = mask.action("POST /v1/projects/acme/zones/us-east1-b/instances/m1:start", "s")
    method, _, path = shown.partition(" ")
    parts = path.split("/")
    assert (method, parts[1:3], parts[4:7]) == (
        "POST",
        ["v1", "projects"],
        ["zones", "us-east1-b", "instances"],
    )
    assert parts[3].startswith("~")
    assert parts[7].endswith(":start")
    assert parts[7].startswith("~")


def test_an_answer_that_comes_again_is_written_once_and_read_as_it_was(tmp_path, mask):
    recorder = Recorder(tmp_path / "a.jsonl", mask, step="launch", began=0.0)
    for state in ("running", "running", "pending"):
        answer = {"State": {"Name": state}}
        recorder(
            ApiExchange(
                service="s", action="Describe", request={}, answer=answer, status=200, code="", seconds=0.1
            )
        )
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["answer"] is None for line in lines] == [False, True, False]
    states = [one.answer["State"]["Name"] for one in read_lines(tmp_path / "a.jsonl")]
    assert states == ["running", "running", "pending"]


def test_a_line_that_a_kill_has_cut_short_is_passed_over(tmp_path, mask):
    path = tmp_path / "a.jsonl"
    recorder = Recorder(path, mask, step="launch", began=0.0)
    exchange = ApiExchange(service="s", action="A", request={}, answer={}, status=200, code="", seconds=0.1)
    recorder(exchange)
    recorder(exchange)
    path.write_bytes(path.read_bytes()[:-20])
    assert len(list(read_lines(path))) == 1


def test_the_default_image_of_google_cloud_is_shown_with_its_public_project_and_no_other_project():
    mask = Mask(b"k" * 32, cloud_of("gcp").allowed())
    family = DEFAULT_IMAGE.rpartition("/")[2]
    shown = mask.action(f"GET /compute/v1/{DEFAULT_IMAGE}", "compute")
    assert shown == f"GET /compute/v1/projects/deeplearning-platform-release/global/images/family/{family}"
    assert "acme-research" not in mask.action("GET /compute/v1/projects/acme-research", "compute")
