"""Checks of a provider's table in the job file that need no request: names, duplicates, prices, tags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from cloudspot.jobfile.tables import FieldError

OWN_TAG_PREFIX: Final = "cloudspot-"
_NUM_SHOWN: Final = 5


class NameRule(NamedTuple):
    """What the names in one option look like."""

    kind: str
    """With its article, such as ``a region``."""
    pattern: str
    """A regular expression for the whole name."""
    example: str


class OptionChecks:
    """Checks the options of ``[providers.NAME]``; every error names the option."""

    def __init__(self, provider: str, names: Mapping[str, NameRule]) -> None:
        """Keep the provider's name and the rule for each option that holds one name or several."""
        self._provider = provider
        self._names = names

    def error(self, field: str, text: str) -> FieldError:
        """Return the error that says what is wrong with ``providers.NAME.<field>``."""
        return FieldError(("providers", self._provider, field), text)

    def require_valid_names(self, options: msgspec.Struct) -> None:
        """Refuse a name that cannot exist.

        Raises:
            FieldError: so do all methods of this class that begin with ``require``.
        """
        for field, rule in self._names.items():
            value = getattr(options, field)
            for name in (value,) if isinstance(value, str) else value or ():
                if re.fullmatch(rule.pattern, name) is None:
                    text = f'"{name}" is not {rule.kind}; expected one such as {rule.example}'
                    raise self.error(field, text)

    def require_unique(self, **values: Sequence[str]) -> None:
        """Refuse an option, given by its name, that holds the same value twice."""
        for field, named in values.items():
            for i, value in enumerate(named):
                if value in named[:i]:
                    raise self.error(field, f'names "{value}" twice')

    def require_zones_in(self, region: str | None, zones: Sequence[str]) -> None:
        """Refuse a zone whose name does not begin with the region's; None: no region is named."""
        wrong = [zone for zone in zones if not zone.startswith(region or "")]
        if wrong:
            raise self.error("zones", f'"{wrong[0]}" is not in region {region}')

    def require_positive_prices(self, field: str, prices: Mapping[str, float]) -> None:
        """Refuse a price of nothing or less."""
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
        """Refuse more than ``most`` tags, and those that cloudspot or the cloud sets itself.

        ``prefix`` is the cloud's own, beside cloudspot's; ``reserved`` are whole names.
        """
        if len(tags) > most:
            raise self.error(field, f"expected at most {most}, got {len(tags)}")
        for name in tags:
            if name.startswith((OWN_TAG_PREFIX, prefix)) or name in reserved:
                raise self.error(field, f'"{name}" is reserved; choose another name')

    def one_a_zone(
        self, field: str, kind: str, found: Iterable[tuple[str, str]], *, is_named: bool, zones: Sequence[str]
    ) -> dict[str, str]:
        """Return an id, such as a subnet's, for each of the zones (none: for each that has one).

        ``found`` are zones, each with an id; ``is_named`` says that the option ``field`` names these ids, at
        most one a zone. ``kind`` is what they are of, such as ``subnet``.
        """
        chosen: dict[str, str] = {}
        for zone, one in sorted(found, key=lambda pair: pair[1]):
            if zone in chosen and is_named:
                raise self.error(field, f"{chosen[zone]} and {one} are both in {zone}")
            chosen.setdefault(zone, one)
        lacking = [zone for zone in zones if zone not in chosen]
        if lacking:
            raise self.error("zones", f'no {kind} in "{lacking[0]}"; there are {", ".join(sorted(chosen))}')
        return {zone: one for zone, one in chosen.items() if not zones or zone in zones}

    def unknown_region(
        self, field: str, region: str, known: Collection[str], *, where: str = ""
    ) -> FieldError:
        """Return the error for a region that is not among the known ones, which come from ``where``."""
        names = ", ".join(sorted(known)[:_NUM_SHOWN])
        more = ", ..." if len(known) > _NUM_SHOWN else ""
        advice = _did_you_mean(region, known) or f"; there are {names}{more}"
        return self.error(field, f'there is no region "{region}"{where}{advice}')

    def unknown_type(self, field: str, name: str, known: Collection[str], *, where: str) -> FieldError:
        """Return the error for a machine type that the regions in ``where`` do not have."""
        return self.error(field, f'{where} has no "{name}"{_did_you_mean(name, known)}')


def _did_you_mean(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f'; did you mean "{near[0]}"?' if near else ""
