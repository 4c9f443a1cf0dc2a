"""Which addresses are globally routable."""

import pytest

from cloudspot.host.public_addresses import AddressRefused, is_public, public_addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "100.100.100.200", "100.127.255.255", "192.0.0.192", "192.0.2.1",
        "198.18.0.1", "203.0.113.1", "192.88.99.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
        "::", "::1", "::7f00:1", "fe80::1", "fe80::1%eth0", "fec0::1", "fd00:ec2::254", "fc00::1", "ff02::1",
        "2001:db8::1", "2001::1", "3fff::1", "100::1", "64:ff9b:1::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "2002:a9fe:a9fe::", "2002:7f00:1::1", "64:ff9b::a9fe:a9fe",
        "64:ff9b::a00:1", "::ffff:100.100.100.200",
    ],
)  # fmt: skip
def test_what_only_a_machine_its_network_or_its_cloud_reaches_is_not(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.63.255.255", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::1",
     "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)  # fmt: skip
def test_what_the_internet_routes_is(address):
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1.", "169.254.169.254.", "localhost."])
def test_a_dot_at_the_end_hides_no_address(host):
    with pytest.raises(AddressRefused):
        public_addresses(host, 80)
