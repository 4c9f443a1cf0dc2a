import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile.tables import convert
from cloudspot.local.filestore import FileStore
from cloudspot_aws.options import DEFAULT_IMAGE, AwsOptions, check_options
from cloudspot_aws.provider import AwsProvider


def read(**table):
    options = convert(table, AwsOptions, at=("providers", "aws"))
    check_options(options)
    return options


def test_the_table_may_be_empty():
    options = read()
    assert options.image_or_default == DEFAULT_IMAGE
    assert options.train_python_or_default == "/opt/pytorch/bin/python"
    assert options.instance_profile == "cloudspot-node"
    assert (options.logs, options.log_group, options.log_retention_days) == ("cloudwatch", None, 30)


def test_an_image_of_ones_own_has_its_python_on_the_path():
    assert read(image="ami-0123456789abcdef0").train_python_or_default == "python3"
    assert read(image="ami-0123456789abcdef0", train_python="/venv/bin/python").train_python_or_default == (
        "/venv/bin/python"
    )


def test_logs_go_to_cloudwatch_or_stay_in_the_bucket(tmp_path):
    store = FileStore(f"file://{tmp_path}")
    sink = AwsProvider(read(log_retention_days=7)).log_sink(store, "digits-1")
    assert sink.group == "/cloudspot/digits-1"
    assert AwsProvider(read(log_group="/teams/vision")).log_sink(store, "digits-1").group == "/teams/vision"
    assert AwsProvider(read(logs="bucket")).log_sink(store, "digits-1") is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"region": "virginia"},
            'providers.aws.region: "virginia" is not a region; expected one such as us-east-1',
        ),
        (
            {"zones": ["us-east-1a", "a"]},
            'providers.aws.zones: "a" is not a zone; expected one such as us-east-1a',
        ),
        (
            {"region": "eu-west-1", "zones": ["us-east-1a"]},
            'providers.aws.zones: "us-east-1a" is not in region eu-west-1',
        ),
        (
            {"zones": ["us-east-1a", "us-east-1a"]},
            'providers.aws.zones: names "us-east-1a" twice',
        ),
        (
            {"instance_types": ["g5"]},
            'providers.aws.instance_types: "g5" is not an instance type; expected one such as g5.xlarge',
        ),
        (
            {"image": "ubuntu"},
            (
                'providers.aws.image: "ubuntu" is not an image; expected one such as ami-0123456789abcdef0 or '
                "/aws/service/.../ami-id"
            ),
        ),
        (
            {"subnets": ["vpc-1"]},
            'providers.aws.subnets: "vpc-1" is not a subnet; expected one such as subnet-0123456789abcdef0',
        ),
        (
            {"security_groups": ["default"]},
            'providers.aws.security_groups: "default" is not a security group; expected one such as sg-0123456789abcdef0',
        ),
        (
            {"limit_role": "admin"},
            (
                'providers.aws.limit_role: "admin" is not the ARN of a role; expected one such as '
                "arn:aws:iam::123456789012:role/cloudspot-limit"
            ),
        ),
        (
            {"log_group": "a b"},
            'providers.aws.log_group: "a b" is not a log group; expected one such as /teams/vision',
        ),
        (
            {"log_group": ""},
            'providers.aws.log_group: "" is not a log group; expected one such as /teams/vision',
        ),
        (
            {"log_retention_days": 2},
            (
                "providers.aws.log_retention_days: expected one of "
                "1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, "
                "1096, 1827, 2192, 2557, 2922, 3288, 3653; got 2"
            ),
        ),
        ({"disk_type": "io2"}, 'providers.aws.disk_iops: missing; disk_type = "io2" needs it'),
        (
            {"disk_type": "gp2", "disk_iops": 3000},
            'providers.aws.disk_iops: has no effect with disk_type = "gp2"',
        ),
        (
            {"disk_type": "io1", "disk_iops": 500, "disk_throughput": 200},
            'providers.aws.disk_throughput: works with disk_type = "gp3" only',
        ),
        (
            {"on_demand_prices": {"g5.xlarge": 0}},
            'providers.aws.on_demand_prices: the price of "g5.xlarge" must be > 0, got 0',
        ),
        ({"max_price": 0}, "providers.aws.max_price: expected a number > 0, got 0"),
        (
            {"tags": {"cloudspot-job": "x"}},
            'providers.aws.tags: "cloudspot-job" is reserved; choose another name',
        ),
        (
            {"tags": {"cost center": "x"}},
            (
                'providers.aws.tags: a machine cannot read the tag "cost center"; use letters, digits and '
                "+-=._:@ only"
            ),
        ),
        (
            {"instance_type": ["g5.xlarge"]},
            "providers.aws.instance_type: unknown field; did you mean providers.aws.instance_types?",
        ),
    ],
)
def test_a_wrong_option_is_named_with_what_was_found(table, message):
    with pytest.raises(SpecError) as error:
        read(**table)
    assert str(error.value) == message
