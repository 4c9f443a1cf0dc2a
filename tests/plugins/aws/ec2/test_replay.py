"""A recording of the real SDK's requests, made again: it replays clean, and ten planted differences are named."""

import copy

import msgspec
import pytest
from support.worlds.groups import group_of

from cloudspot.plugin import apirecording
from cloudspot.testing import plaincalls
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.provider import AwsProvider
from cloudspot_prove.clouds import cloud_of
from cloudspot_prove.differences import find_differences
from cloudspot_prove.masking import Mask
from cloudspot_prove.recording import Head, Recorder, read_head, read_lines, write_whole
from cloudspot_prove.replay import replay

pytestmark = pytest.mark.full


@pytest.fixture
def recording(cloud, monkeypatch, tmp_path):
    """Record a launch, its listing and its end; leave an account that has nothing of it."""
    recorder = Recorder(
        tmp_path / "a.jsonl", Mask(b"k" * 32, cloud_of("aws").allowed()), step="launch", began=cloud.now
    )
    monkeypatch.setattr(apirecording, "_observers", [recorder])
    provider = AwsProvider(AwsOptions(region="us-east-1", instance_types=["m6a.large"]))
    provider._clients = AwsClients(region="us-east-1")
    provisioner = provider.provisioner()
    offer = plaincalls.offers(provisioner, group_of(cloud.offer(provisioner)).resources)[0]
    (machine,) = plaincalls.create(provisioner, provisioner.render(group_of(offer)), token="token")
    assert [one.id for one in plaincalls.instances(provisioner)] == [machine.id]
    plaincalls.terminate(provisioner, [machine.id])
    plaincalls.instances(provisioner)
    monkeypatch.setattr(apirecording, "_observers", [])
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    whole = tmp_path / "whole.jsonl"
    write_whole(whole, Head(provider="aws", versions={}), read_lines(tmp_path / "a.jsonl"))
    return whole


def replayed(lines):
    return find_differences(list(replay(cloud_of("aws"), lines)))


def test_a_recording_replays_clean_and_holds_no_name_of_the_account(cloud, recording, monkeypatch):
    lines = list(read_lines(recording))
    actions = {one.action for one in lines}
    assert {"RunInstances", "DescribeInstances", "TerminateInstances", "DescribeSubnets"} <= actions
    assert read_head(recording).provider == "aws"
    text = recording.read_text()
    assert [one for one in ("123456789012", "subnet-", "i-0", "172.31.") if one in text] == []
    monkeypatch.setattr(apirecording, "_observers", [])
    assert replayed(lines) == []


def find(lines, action):
    return next(i for i, one in enumerate(lines) if one.action == action and not one.code)


def change(lines, action, edit):
    i = find(lines, action)
    answer = copy.deepcopy(lines[i].answer)
    edit(answer)
    lines[i] = msgspec.structs.replace(lines[i], answer=answer)


def machine_of(answer):
    return answer["Instances"][0]


def test_ten_differences_that_are_planted_in_a_recording_are_all_named(cloud, recording, monkeypatch):
    monkeypatch.setattr(apirecording, "_observers", [])
    lines = list(read_lines(recording))
    change(lines, "RunInstances", lambda answer: machine_of(answer).update(OutpostArn="~1"))
    change(lines, "RunInstances", lambda answer: machine_of(answer).pop("Hypervisor"))
    change(lines, "RunInstances", lambda answer: machine_of(answer).update(AmiLaunchIndex="~2"))
    change(lines, "RunInstances", lambda answer: machine_of(answer)["Placement"].update(HostId="~3"))
    change(lines, "DescribeSubnets", lambda answer: answer["Subnets"].reverse())
    change(lines, "DescribeSpotPriceHistory", lambda answer: answer["SpotPriceHistory"].reverse())
    change(lines, "DescribeInstanceTypes", lambda answer: answer["InstanceTypes"][0].pop("BareMetal"))
    i = find(lines, "TerminateInstances")
    lines[i] = msgspec.structs.replace(lines[i], seconds=90.0)
    i = find(lines, "DescribeSubnets")
    lines[i] = msgspec.structs.replace(lines[i], status=202)
    i = find(lines, "DescribeInstances")
    late = msgspec.structs.replace(lines[i], answer={"Reservations": []}, at=lines[i].at - 40)
    lines.insert(i, late)
    found = {(one.kind, one.action, one.where) for one in replayed(lines)}
    assert found >= {
        ("field", "RunInstances", "Instances[].OutpostArn"),
        ("field", "RunInstances", "Instances[].Hypervisor"),
        ("field", "RunInstances", "Instances[].AmiLaunchIndex"),
        ("field", "RunInstances", "Instances[].Placement.HostId"),
        ("field", "DescribeInstanceTypes", "InstanceTypes[].BareMetal"),
        ("order", "DescribeSubnets", "Subnets"),
        ("order", "DescribeSpotPriceHistory", "SpotPriceHistory"),
        ("code", "DescribeSubnets", "202"),
        ("delay", "TerminateInstances", "the answer"),
        ("delay", "DescribeInstances", "what is new"),
    }
    assert len(found) == 10
