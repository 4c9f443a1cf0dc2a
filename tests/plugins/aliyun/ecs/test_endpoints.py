"""Where the products of the control plane are asked."""

import pytest
from aliyunsdkcore.acs_exception.exceptions import ClientException
from aliyunsdkcore.http import protocol_type
from aliyunsdkcore.request import RpcRequest

from cloudspot_aliyun.clients import AliyunClients, _other_endpoints


@pytest.mark.parametrize(
    ("region", "vpc"),
    [
        ("cn-hangzhou", "vpc.aliyuncs.com"),
        ("cn-wulanchabu", "vpc.cn-wulanchabu.aliyuncs.com"),
        ("eu-central-1", "vpc.eu-central-1.aliyuncs.com"),
    ],
)
def test_each_product_is_asked_where_it_is(monkeypatch, region, vpc):
    monkeypatch.delenv("ECS_ENDPOINT", raising=False)
    assert _other_endpoints(region) == {
        "Ram": "ram.aliyuncs.com", "Sts": "sts.aliyuncs.com", "Vpc": vpc, "cr": f"cr.{region}.aliyuncs.com"
    }  # fmt: skip


def test_all_of_them_move_with_ecs(monkeypatch):
    monkeypatch.setenv("ECS_ENDPOINT", "http://10.0.0.1:8080")
    assert set(_other_endpoints("cn-hangzhou").values()) == {"10.0.0.1"}


@pytest.mark.parametrize("endpoint", ["https://127.0.0.1:1", "127.0.0.1:1"])
def test_an_endpoint_that_is_https_is_never_asked_in_the_clear(monkeypatch, endpoint):
    # The SDK compares the scheme by identity, and takes any other string for http.
    monkeypatch.setenv("ECS_ENDPOINT", endpoint)
    request = RpcRequest("Ecs", "2014-05-26", "DescribeRegions")
    with pytest.raises(ClientException, match="HTTPSConnectionPool"):
        AliyunClients(region="cn-hangzhou").ask_ecs(request)
    assert request.get_protocol_type() is protocol_type.HTTPS
