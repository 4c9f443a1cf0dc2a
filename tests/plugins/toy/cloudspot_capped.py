"""A market policy of a plugin, as docs/market.md shows it."""

import msgspec
import numpy as np

from cloudspot.hookspecs import hookimpl
from cloudspot.market.plugin_policy import PluginPolicy
from cloudspot.market.situation import NOTHING, ON_DEMAND

cloudspot_api_version = 2


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    max_share: float = 0.5


class Capped(PluginPolicy):
    """Takes spot below a share of the price on demand, or waits; on-demand once there is no time to wait."""

    name = "capped"
    options_type = Options

    def choose(self, situation):
        s = situation
        prices = np.where(s.is_up & (s.prices <= self.options.max_share), s.prices, np.inf)
        cheapest = np.where(np.isfinite(prices).any(axis=0), prices.argmin(axis=0), NOTHING)
        waits = s.slack - s.look_hours > 2 * s.start_hours
        return np.where(s.held != NOTHING, s.held, np.where(waits, cheapest, ON_DEMAND))


@hookimpl
def cloudspot_market_policy(name):
    return Capped if name == "capped" else None
