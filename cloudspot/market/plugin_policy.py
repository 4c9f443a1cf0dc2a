"""Market policies from plugins: their base class, and the validation of their choices."""

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
    """The options type of a policy that has no options."""


class PluginPolicy(Guarded, ABC):
    """The base class of a policy that the hook ``cloudspot_market_policy`` returns.

    A driver calls it at each launch, and about once a minute while the job trains. Several drivers on
    different computers may call it at once, so its choice must depend only on its options and the situation.
    """

    name: ClassVar[str]
    """The name in ``spot.policy`` and in the entry point."""
    options_type: ClassVar[type[msgspec.Struct]] = NoOptions
    """The type of the table ``[spot.options]``; all its fields must have defaults."""

    def __init__(self, usual: Hazards, options: Any) -> None:
        """Keep the usual hazards and the options. This does no I/O."""
        self.usual = usual
        self.options = options

    @abstractmethod
    def choose(self, situation: Situation) -> Ints:
        """Return the choice, as ``MarketPolicy.choose`` does.

        A driver passes one run, a simulation many at once. If the choice is ``NOTHING``, a job without
        machines waits, and a job with machines keeps them. A change from spot to on-demand, or the reverse,
        moves the nodes, at most once in 15 minutes. Choosing spot in a zone other than the held one changes
        nothing.
        """


def plugin_policy(name: str, options: Mapping[str, object], usual: Hazards) -> MarketPolicy:
    """Return a plugin's policy, whose choices are checked: an invalid choice raises PluginError.

    Raises:
        PluginError: no plugin has this policy, or the policy is broken.
        SpecError: the policy's options are invalid.
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
    """A plugin's policy whose invalid choices raise PluginError."""

    name: str
    policy: PluginPolicy

    def choose(self, situation: Situation) -> Ints:
        """Return the policy's choice after validating it."""
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
            raise _broken(self.name, f"it chose zone {chosen[wrong][0]}, which has no capacity")
        return chosen.astype(np.intp)
