import msgspec
import pytest

from cloudspot.errors import SpecError
from cloudspot.jobfile.spec import spec_from_json
from cloudspot.model import DATA_CACHE
from cloudspot.plugin.optionchecks import NameRule, OptionChecks, ids_in, prices_in, region_of
from cloudspot.registry import open_provider


class Options(msgspec.Struct, kw_only=True):
    region: str | None = None
    zones: tuple[str, ...] = ()


CHECKS = OptionChecks(
    "cirrus",
    {
        "region": NameRule("a region", r"[a-z]+-\d", "sky-1"),
        "zones": NameRule("a zone", r"[a-z]+-\d[a-z]", "sky-1a"),
    },
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(region="Sky"), 'region: "Sky" is not a region; expected one such as sky-1'),
        (Options(region="sky-12"), 'region: "sky-12" is not a region; expected one such as sky-1'),
        (Options(zones=("sky-1a", "x")), 'zones: "x" is not a zone; expected one such as sky-1a'),
    ],
)
def test_a_name_that_cannot_exist_is_refused(options, message):
    with pytest.raises(SpecError) as error:
        CHECKS.require_valid_names(options)
    assert str(error.value) == f"providers.cirrus.{message}"


def test_names_that_can_exist_and_options_left_out_pass():
    CHECKS.require_valid_names(Options())
    CHECKS.require_valid_names(Options(region="sky-1", zones=("sky-1a", "sky-1b")))


def refusal(check, *args, **kwargs):
    with pytest.raises(SpecError) as error:
        check(*args, **kwargs)
    return str(error.value).removeprefix("providers.cirrus.")


def test_a_value_may_be_named_once():
    CHECKS.require_unique(zones=("a", "b"), regions=())
    assert refusal(CHECKS.require_unique, zones=("a", "b", "a")) == 'zones: names "a" twice'


def test_zones_are_in_the_region_if_one_is_named():
    CHECKS.require_zones_in((), ("sky-1a",))
    CHECKS.require_zones_in(["sky-1"], ("sky-1a",))
    assert refusal(CHECKS.require_zones_in, ["sky-1"], ("sky-1a", "sea-1a")) == (
        'zones: "sea-1a" is not in region sky-1'
    )


def test_each_of_several_regions_has_a_zone_if_any_has():
    regions = ["sky-1", "sky-12"]
    CHECKS.require_zones_in(regions, ())
    CHECKS.require_zones_in(regions, ("sky-1a", "sky-12a"))
    assert refusal(CHECKS.require_zones_in, regions, ("sky-12a",)) == (
        "zones: none is in sky-1; name one for each region, or leave all out"
    )
    assert [region_of(zone, regions) for zone in ("sky-1a", "sky-12a", "sea-1a")] == ["sky-1", "sky-12", None]


def test_ids_are_given_with_their_region_where_there_are_several():
    regions = ["sky-1", "sky-2"]
    CHECKS.require_ids_in((), nets=("n-1",))
    CHECKS.require_ids_in(regions, nets=("sky-1/n-1", "sky-2/n-2"), groups=())
    assert ids_in("sky-2", ("sky-1/n-1", "sky-2/n-2")) == ("n-2",)
    assert refusal(CHECKS.require_ids_in, (), nets=("sky-1/n-1",)).startswith(
        'nets: "sky-1/n-1" names a region'
    )
    assert refusal(CHECKS.require_ids_in, regions, nets=("n-1",)) == (
        'nets: "n-1" is in none of the regions; expected one such as sky-1/ID'
    )
    assert refusal(CHECKS.require_ids_in, regions, nets=("sky-1/n-1",)).startswith("nets: none is in sky-2")


def test_a_price_for_a_region_goes_before_that_for_all():
    prices = {"big": 1.0, "small": 0.5, "sky-2/big": 2.0}
    CHECKS.require_prices_in(["sky-1", "sky-2"], "prices", prices)
    assert prices_in("sky-1", prices) == {"big": 1.0, "small": 0.5}
    assert prices_in("sky-2", prices) == {"big": 2.0, "small": 0.5}
    assert refusal(CHECKS.require_prices_in, [], "prices", prices) == (
        'prices: "sky-2/big" is for a region that is not in regions'
    )
    assert refusal(CHECKS.require_prices_in, [], "prices", {"big": 0.0}).startswith("prices: the price of")


def test_a_price_is_above_0():
    CHECKS.require_positive_prices("prices", {"big": 0.5})
    assert refusal(CHECKS.require_positive_prices, "prices", {"big": 0.0}) == (
        'prices: the price of "big" must be > 0, got 0'
    )


@pytest.mark.parametrize("tag", ["cloudspot-job", "sys:x", "Name"])
def test_tags_that_cloudspot_or_the_cloud_sets_are_reserved(tag):
    assert refusal(
        CHECKS.require_free_tags, "tags", {tag: "x"}, most=2, prefix="sys:", reserved={"Name"}
    ) == (f'tags: "{tag}" is reserved; choose another name')


def test_tags_are_counted():
    CHECKS.require_free_tags("tags", {"a": "", "b": ""}, most=2)
    assert refusal(CHECKS.require_free_tags, "tags", {"a": "", "b": ""}, most=1) == (
        "tags: expected at most 1, got 2"
    )


def test_an_unknown_region_comes_with_the_nearest_or_with_some_that_there_are():
    known = [f"sky-{i}" for i in range(7)]
    assert str(CHECKS.unknown_region("region", "skie-1", known)) == (
        'providers.cirrus.region: there is no region "skie-1"; did you mean "sky-1"?'
    )
    assert str(CHECKS.unknown_region("region", "moon", known, where=" in this SDK")) == (
        'providers.cirrus.region: there is no region "moon" in this SDK; there are sky-0, sky-1, sky-2, sky-3, '
        "sky-4, ..."
    )
    assert str(CHECKS.unknown_region("region", "moon", ["sky-1"])).endswith("; there are sky-1")


def test_an_unknown_type_comes_with_the_nearest_if_there_is_one():
    assert str(CHECKS.unknown_type("types", "bigg", ["big", "small"], where="sky-1")) == (
        'providers.cirrus.types: sky-1 has no "bigg"; did you mean "big"?'
    )
    assert str(CHECKS.unknown_type("types", "xyz", ["big"], where="sky-1")) == (
        'providers.cirrus.types: sky-1 has no "xyz"'
    )


@pytest.mark.parametrize("name", ["local", "aws", "gcp", "aliyun", "kubernetes"])
def test_every_provider_tells_its_machines_where_inputs_are_kept(name, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    regions = {
        "aws": {"region": "us-east-1"},
        "aliyun": {"region": "cn-beijing"},
        "gcp": {"project": "p-12345"},
    }
    table = {**regions.get(name, {}), "data_cache": "/mnt/fast"}
    spec = spec_from_json({"name": "x", "run": {"entrypoint": "t.py"}, "providers": {name: table}})
    assert open_provider(name, spec).boot_profile().environment[DATA_CACHE] == "/mnt/fast"
    spec = spec_from_json(
        {"name": "x", "run": {"entrypoint": "t.py"}, "providers": {name: {**table, "data_cache": "fast"}}}
    )
    with pytest.raises(SpecError, match=rf'providers.{name}.data_cache: "fast" must be an absolute path'):
        open_provider(name, spec).boot_profile()
