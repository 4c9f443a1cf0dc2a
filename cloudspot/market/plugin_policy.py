"""Market policies that plugins bring: their base class, and the check of what they choose."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import msgspec
import numpy as np

from cloudspot.calls.guard import Guarded
from cloudspot.errors import PluginError
from cloudspot.jobfile.tables import convert
from cloudspot.market.hazards import Hazards
from cloudspot.market.situation import NOTHING, Ints, MarketPolicy, Situation
from cloudspot.registry import policy_maker


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a policy that has none."""


class PluginPolicy(Guarded, ABC):
    """The base class of a policy that the hook ``cloudspot_market_policy`` returns.

    A driver asks it at each launch, and about once a minute while the job trains. It may be asked by several
    drivers at once, on different computers: whatever it knows has to come from its options and the situation.
    """

    name: ClassVar[str]
    """As in ``spot.policy`` and the entry point."""
    options_type: ClassVar[type[msgspec.Struct]] = NoOptions
    """The type of the table ``[spot.options]``; all its fields have defaults."""

    def __init__(self, usual: Hazards, options: Any) -> None:
        """Keep how soon machines are usually lost, and the options. Does no I/O."""
        self.usual = usual
        self.options = options

    @abstractmethod
    def choose(self, situation: Situation) -> Ints:
        """Choose, as ``MarketPolicy.choose``.

        A driver asks about one run, a simulation about many at once. ``NOTHING`` makes a job wait that has no
        machine; one that has some keeps them. On-demand instead of spot, or spot instead of on-demand, moves
        the nodes, at most once in 15 minutes. Spot in another zone than the one held changes nothing.
        """


def plugin_policy(name: str, options: Mapping[str, object], usual: Hazards) -> MarketPolicy:
    """Return a plugin's policy; what it must not choose raises PluginError.

    Raises:
        PluginError: no plugin brings it, or it is broken.
        SpecError: its options are wrong.
    """

    def make(class_: type[PluginPolicy]) -> PluginPolicy:
        return class_(usual, convert(dict(options), class_.options_type, at=("spot", "options")))

    return _Checked(name, _maker_of(name)(make))


def _broken(name: str, why: str) -> PluginError:
    return PluginError(f'market policy "{name}" is broken: {why}')


@cache
def _maker_of(name: str) -> Callable[[Callable[[type[PluginPolicy]], PluginPolicy]], PluginPolicy]:
    return policy_maker(name, PluginPolicy)  # type: ignore[type-abstract]


@dataclass(frozen=True)
class _Checked:
    """A policy of a plugin; what it must not choose is told as its mistake."""

    name: str
    policy: PluginPolicy

    def choose(self, situation: Situation) -> Ints:
        """Return the policy's choice, checked."""
        chosen = np.asarray(self.policy.choose(situation))
        held, num_zones = situation.held, len(situation.is_up)
        if chosen.shape != held.shape or chosen.dtype.kind not in "iu":
            raise _broken(
                self.name, f"it returned {chosen.dtype} of shape {chosen.shape}, not {held.shape} integers"
            )
        wrong = (chosen < NOTHING) | (chosen >= num_zones)
        if wrong.any():
            raise _broken(self.name, f"it chose {chosen[wrong][0]}; there are {num_zones} zones")
        is_up = situation.is_up[np.maximum(chosen, 0), np.arange(len(chosen))] if num_zones else chosen < 0
        wrong = (chosen >= 0) & ~is_up & (chosen != held)
        if wrong.any():
            raise _broken(self.name, f"it chose zone {chosen[wrong][0]}, which has no machine to give")
        return chosen.astype(np.intp)
