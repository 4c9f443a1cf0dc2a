import base64
import gzip

import msgspec
import pytest
from support.records.made_records import Records
from support.worlds.groups import group_of

from cloudspot.errors import ProvisionError, SpecError
from cloudspot.model import LaunchRequest, Resources
from cloudspot.plugin.launchrequests import boot_disk_gib, decode_request, pack_script
from cloudspot.plugin.machinetags import launch_of, store_digest, tags_of

GIB = 2**30


class Body(msgspec.Struct, kw_only=True, omit_defaults=True):
    region: str
    count: int
    extra: str | None = None


def group(**fields):
    offer = Records.offer("sky-1a", image_gib=20)
    return group_of(offer, **{"num_nodes": 2, "launch": 3, "min_nodes": 1, "max_seconds": 3600.4, **fields})


def test_a_request_is_read_back_as_it_was_written_without_what_is_left_out():
    request = LaunchRequest(provider="cirrus", body=msgspec.to_builtins(Body(region="sky-1", count=2)))
    assert request == LaunchRequest(provider="cirrus", body={"region": "sky-1", "count": 2})
    assert decode_request(request, Body) == Body(region="sky-1", count=2)


def test_a_request_of_another_form_can_never_work():
    with pytest.raises(ProvisionError) as error:
        decode_request(LaunchRequest(provider="other", body={"region": "sky-1"}), Body)
    assert type(error.value) is ProvisionError
    assert str(error.value).startswith("the stored request of provider 'other' cannot be read here: ")
    with pytest.raises(
        ProvisionError, match=r"of provider 'other' by cloudspot-other 1\.2 cannot be read here: "
    ):
        decode_request(LaunchRequest(provider="other", body={}, made_by="cloudspot-other 1.2"), Body)


@pytest.mark.parametrize(
    ("wanted", "disk", "size"),
    [
        (0, 0, 20 + 50),
        (0, 100 * GIB + 1, 20 + 101),
        (30 * GIB, 100 * GIB, 30),
        (30 * GIB + 1, 0, 31),
        (5 * GIB, 0, 20),
    ],
)
def test_the_boot_disk_is_as_the_options_say_or_has_room_on_top_of_the_image(wanted, disk, size):
    assert boot_disk_gib(group(resources=Resources(disk_bytes=disk)), wanted_bytes=wanted) == size


def test_a_script_is_compressed_only_if_it_is_too_long_and_always_to_the_same_bytes():
    script = "#!/bin/sh\n" + "true\n" * 100
    size = len(script)
    assert pack_script(script, most=size, service="Cirrus") is None
    packed = pack_script(script, most=size - 1, service="Cirrus")
    assert gzip.decompress(base64.b64decode(packed)).decode() == script
    assert pack_script(script, most=size - 1, service="Cirrus") == packed


def test_a_script_that_is_too_long_even_when_compressed_is_refused():
    with pytest.raises(
        SpecError, match=r"^the boot script has 12 bytes and \d+ compressed; Cirrus accepts 11: "
    ):
        pack_script("#!/bin/sh\n:\n", most=11, service="Cirrus")


def test_the_tags_tell_whose_a_machine_is_and_the_store_only_if_it_is_known():
    assert tags_of(group()) == {
        "cloudspot-job": "digits-1",
        "cloudspot-launch": "3",
        "cloudspot-num-nodes": "2",
        "cloudspot-max-seconds": "3600",
        "MASTER_PORT": "29500",
    }
    assert tags_of(group(store_url="myc://bucket"))["cloudspot-store"] == "myc://bucket"


@pytest.mark.parametrize(
    ("tags", "launch"), [({"cloudspot-launch": "12"}, 12), ({"cloudspot-launch": "x"}, 0), ({}, 0)]
)
def test_a_launch_tag_that_was_tampered_with_names_launch_0(tags, launch):
    assert launch_of(tags) == launch


def test_stores_are_told_apart_by_eight_letters():
    assert store_digest("s3://bucket/a") != store_digest("s3://bucket/b")
    assert len(store_digest("s3://bucket/a")) == 8
