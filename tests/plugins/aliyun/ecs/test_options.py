import re
from pathlib import Path

import pytest

from cloudspot.boot.script import ending_command
from cloudspot.errors import SpecError
from cloudspot.jobfile.tables import convert
from cloudspot_aliyun.options import AliyunOptions, check_options
from cloudspot_aliyun.provider import AliyunProvider


def read(**table):
    options = convert(table, AliyunOptions, at=("providers", "aliyun"))
    check_options(options)
    return options


def test_the_table_may_be_empty():
    options = read()
    assert (options.role, options.disk_type, options.logs) == ("cloudspot-node", "cloud_essd", "oss")
    assert (options.protected_hour, options.max_price, options.deployment_set) == (False, None, None)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"region": "杭州"}, 'region: "杭州" is not a region; expected one such as cn-hangzhou'),
        ({"zones": ["cn-hangzhou-i", "x"]}, 'zones: "x" is not a zone; expected one such as cn-hangzhou-i'),
        (
            {"region": "cn-beijing", "zones": ["cn-hangzhou-i"]},
            'zones: "cn-hangzhou-i" is not in region cn-beijing',
        ),
        ({"zones": ["cn-hangzhou-i", "cn-hangzhou-i"]}, 'zones: names "cn-hangzhou-i" twice'),
        (
            {"instance_types": ["g5.xlarge"]},
            'instance_types: "g5.xlarge" is not an instance type; expected one such as ecs.gn7i-c8g1.2xlarge',
        ),
        (
            {"vswitches": ["subnet-1"]},
            'vswitches: "subnet-1" is not a vSwitch; expected one such as vsw-bp1234567890abcdefgh',
        ),
        (
            {"security_groups": ["default"]},
            'security_groups: "default" is not a security group; expected one such as sg-bp1234567890abcdefgh',
        ),
        (
            {"security_groups": [f"sg-bp123456789{i}" for i in range(6)]},
            "security_groups: a machine has at most 5, got 6",
        ),
        ({"account": "me"}, 'account: "me" is not an account; expected one such as 1234567890123456'),
        (
            {"role": "acs:ram::1:role/x"},
            'role: "acs:ram::1:role/x" is not a RAM role; expected one such as cloudspot-node',
        ),
        (
            {"deployment_set": "cluster"},
            'deployment_set: "cluster" is not a deployment set; expected one such as "auto" or ds-bp1234567890abcdefgh',
        ),
        (
            {"image": "m-bp1", "image_family": "acs:x"},
            "image_family: has no effect with image; leave one of them out",
        ),
        ({"max_price": 1.2345}, "max_price: expected at most three decimals, got 1.2345"),
        (
            {"on_demand_prices": {"ecs.g7.large": 0}},
            'on_demand_prices: the price of "ecs.g7.large" must be > 0, got 0',
        ),
        (
            {"disk_type": "cloud_auto", "disk_performance": "PL1"},
            'disk_performance: works with disk_type = "cloud_essd" only',
        ),
        ({"tags": {"cloudspot-x": "1"}}, 'tags: "cloudspot-x" is reserved; choose another name'),
        ({"tags": {"": "1"}}, "tags: the name of a tag is empty"),
        ({"tags": {"a": "x" * 129}}, 'tags: "a": 129 characters are more than 128'),
        (
            {"tags": {"a": "https://example.com"}},
            'tags: "a": ECS allows neither http:// nor https:// in a tag',
        ),
        (
            {"tags": {"acs:a": "1"}},
            'tags: "acs:a": ECS reserves tags that begin with aliyun or acs:',
        ),
        ({"tags": {f"t{i}": "1" for i in range(13)}}, "tags: expected at most 12, got 13"),
        ({"spot_duration": 1}, "spot_duration: unknown"),
        ({"max_price": -1}, "max_price: expected a number > 0"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_with_its_field(table, message):
    with pytest.raises(SpecError) as error:
        read(**table)
    assert str(error.value).startswith(f"providers.aliyun.{message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "table",
    [
        {"region": "ap-southeast-1", "zones": ["ap-southeast-1a"]},
        {"region": "cn-wulanchabu", "zones": ["cn-wulanchabu-a"]},
        {"region": "cn-shanghai-finance-1", "zones": ["cn-shanghai-finance-1a"]},
        {"instance_types": ["ecs.gn7i-c8g1.2xlarge", "ecs.g7.large", "ecs.ebmgn7e.32xlarge"]},
        {"image": "ubuntu_24_04_x64_20G_alibase_20260101.vhd"},
        {"image_family": "acs:alibaba_cloud_linux_3_2104_lts_x64"},
        {"tags": {f"t{i}": "值" for i in range(12)}},
    ],
)
def test_names_of_all_sorts_are_taken(table):
    assert read(**table) is not None


def test_the_boot_profile_names_the_region_and_how_a_machine_ends():
    profile = AliyunProvider(
        AliyunOptions(region="cn-beijing", agent_python="/opt/x y/python")
    ).boot_profile()
    assert profile.environment == {"ALIBABA_CLOUD_REGION_ID": "cn-beijing"}
    assert "DeleteInstance" in profile.end_code
    assert ending_command(profile).startswith("'/opt/x y/python' -c ")
    assert ending_command(profile).endswith("; shutdown -h now")
    assert "def fetch(" in profile.fetch_code


def test_logs_stay_beside_the_checkpoints_where_they_are_asked_to():
    assert AliyunProvider(AliyunOptions(logs="bucket")).log_sink(None, "digits-1") is None


def test_the_chinese_page_tells_of_every_option_and_of_no_other():
    page = (Path(__file__).parents[4] / "docs" / "aliyun.zh.md").read_text()
    table = page.partition("| 字段 | 含义 |")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(AliyunOptions.__struct_fields__)
