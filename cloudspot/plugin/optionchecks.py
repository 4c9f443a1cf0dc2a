"""Checks of a provider's table in the job file that need no request: names, duplicates, prices, tags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cloudspot.jobfile.tables import FieldError
from cloudspot.model import DATA_CACHE

OWN_TAG_PREFIX: Final = "cloudspot-"
_NUM_SHOWN: Final = 5


class NameRule(NamedTuple):
    """The format of the names in one option."""

    kind: str
    """The kind with its article, such as ``a region``."""
    pattern: str
    """A regular expression that the whole name must match."""
    example: str


class OptionChecks:
    """Checks the options of ``[providers.NAME]``; every error names the option."""

    def __init__(self, provider: str, names: Mapping[str, NameRule]) -> None:
        """Keep the provider's name and the rule for each option that holds one or several names."""
        self._provider = provider
        self._names = names

    def error(self, field: str, text: str) -> FieldError:
        """Return the error for ``providers.NAME.<field>`` with the message ``text``."""
        return FieldError(("providers", self._provider, field), text)

    def require_valid_names(self, options: msgspec.Struct) -> None:
        """Refuse names that cannot exist.

        Raises:
            FieldError: a name is invalid. All methods that begin with ``require`` raise this error.
        """
        for field, rule in self._names.items():
            value = getattr(options, field)
            for name in (value,) if isinstance(value, str) else value or ():
                if re.fullmatch(rule.pattern, name) is None:
                    text = f'"{name}" is not {rule.kind}; expected one such as {rule.example}'
                    raise self.error(field, text)

    def require_unique(self, **values: Sequence[str]) -> None:
        """Refuse an option that contains the same value twice; ``values`` holds the options by name."""
        for field, named in values.items():
            for i, value in enumerate(named):
                if value in named[:i]:
                    raise self.error(field, f'names "{value}" twice')

    def require_zones_in(self, regions: Sequence[str], zones: Sequence[str]) -> None:
        """Refuse a zone outside the named regions (if any are named), and a region without a zone."""
        wrong = [zone for zone in zones if regions and region_of(zone, regions) is None]
        if wrong:
            raise self.error("zones", f'"{wrong[0]}" is not in region {" or ".join(regions)}')
        self._require_each(regions, "zones", [region_of(zone, regions) for zone in zones])

    def require_ids_in(self, regions: Sequence[str], **ids: Sequence[str]) -> None:
        """Refuse ids, given by option, that are not written as these ``regions`` require.

        With ``regions``, an id is written ``REGION/ID``; without, it is written alone.
        """
        for field, named in ids.items():
            named_regions = [one.rpartition("/")[0] for one in named]
            for id_, region in zip(named, named_regions, strict=True):
                if not regions and region:
                    raise self.error(field, f'"{id_}" names a region, which is for jobs with regions')
                if regions and region not in regions:
                    raise self.error(
                        field, f'"{id_}" is in none of the regions; expected one such as {regions[0]}/ID'
                    )
            self._require_each(regions, field, named_regions)

    def _require_each(self, regions: Sequence[str], field: str, found: Collection[str | None]) -> None:
        lacking = [region for region in regions if found and region not in found]
        if lacking:
            raise self.error(field, f"none is in {lacking[0]}; name one for each region, or leave all out")

    def require_prices_in(self, regions: Sequence[str], field: str, prices: Mapping[str, float]) -> None:
        """Refuse a price of 0 or less, and a price for ``REGION/TYPE`` with an unknown region."""
        self.require_positive_prices(field, prices)
        for name in prices:
            region, slash, _ = name.partition("/")
            if slash and region not in regions:
                raise self.error(field, f'"{name}" is for a region that is not in regions')

    def require_positive_prices(self, field: str, prices: Mapping[str, float]) -> None:
        """Refuse a price of 0 or less."""
        for name, price in prices.items():
            if price <= 0:
                raise self.error(field, f'the price of "{name}" must be > 0, got {price:g}')

    def require_free_tags(
        self,
        field: str,
        tags: Collection[str],
        *,
        most: int,
        prefix: str = OWN_TAG_PREFIX,
        reserved: Collection[str] = (),
    ) -> None:
        """Refuse more than ``most`` tags, and tags that cloudspot or the cloud sets itself.

        ``prefix`` is reserved by the cloud, in addition to cloudspot's own prefix; ``reserved`` holds
        complete names.
        """
        if len(tags) > most:
            raise self.error(field, f"expected at most {most}, got {len(tags)}")
        for name in tags:
            if name.startswith((OWN_TAG_PREFIX, prefix)) or name in reserved:
                raise self.error(field, f'"{name}" is reserved; choose another name')

    def one_a_zone(
        self, field: str, kind: str, found: Iterable[tuple[str, str]], *, is_named: bool, zones: Sequence[str]
    ) -> dict[str, str]:
        """Return an id, such as a subnet's, for each of ``zones``, or for all zones if ``zones`` is empty.

        ``found`` holds pairs of a zone and an id. If ``is_named``, the option ``field`` names these ids, and
        a zone may have only one. ``kind`` is the kind of resource, such as ``subnet``.
        """
        chosen: dict[str, str] = {}
        for zone, id_ in sorted(found, key=lambda pair: pair[1]):
            if zone in chosen and is_named:
                raise self.error(field, f"{chosen[zone]} and {id_} are both in {zone}")
            chosen.setdefault(zone, id_)
        lacking = [zone for zone in zones if zone not in chosen]
        if lacking:
            raise self.error("zones", f'no {kind} in "{lacking[0]}"; there are {", ".join(sorted(chosen))}')
        return {zone: id_ for zone, id_ in chosen.items() if not zones or zone in zones}

    def unknown_region(
        self, field: str, region: str, known: Collection[str], *, where: str = ""
    ) -> FieldError:
        """Return the error for a region that is not in ``known``, whose regions come from ``where``."""
        names = ", ".join(sorted(known)[:_NUM_SHOWN])
        more = ", ..." if len(known) > _NUM_SHOWN else ""
        advice = _did_you_mean(region, known) or f"; there are {names}{more}"
        return self.error(field, f'there is no region "{region}"{where}{advice}')

    def unknown_type(self, field: str, name: str, known: Collection[str], *, where: str) -> FieldError:
        """Return the error for a machine type that the regions in ``where`` lack."""
        return self.error(field, f'{where} has no "{name}"{_did_you_mean(name, known)}')


def region_of(zone: str, regions: Iterable[str]) -> str | None:
    """Return the region of a zone whose name begins with the region's name, or None."""
    return max((one for one in regions if zone.startswith(one)), key=len, default=None)


def ids_in(region: str, ids: Iterable[str]) -> tuple[str, ...]:
    """Return the ids in the entries written ``REGION/ID`` for this region."""
    return tuple(one.removeprefix(f"{region}/") for one in ids if one.startswith(f"{region}/"))


def prices_in(region: str, prices: Mapping[str, float]) -> dict[str, float]:
    """Return the region's prices by machine type; a price for ``REGION/TYPE`` overrides a general price."""
    own = {name.partition("/")[2]: price for name, price in prices.items() if name.startswith(f"{region}/")}
    return {name: price for name, price in prices.items() if "/" not in name} | own


def _did_you_mean(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def data_cache_variable(provider: str, path: str | None) -> dict[str, str]:
    """Return the boot profile's variable that holds the path in ``providers.NAME.data_cache``.

    Raises:
        FieldError: the path is not absolute.
    """
    if path is None:
        return {}
    if not path.startswith("/"):
        raise FieldError(("providers", provider, "data_cache"), f'"{path}" must be an absolute path')
    return {DATA_CACHE: path}
