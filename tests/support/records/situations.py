"""What a market policy is asked, as its tests need it."""

import numpy as np

from cloudspot.market.situation import NOTHING, Situation


def at(**fields):
    """Return one run: a job of 10 h, due after 20 h, at its first hour with nothing held and one zone up."""
    is_up = np.array(fields.pop("is_up", [True]))
    zones = len(is_up)
    values = {
        "hours": 0.0,
        "length": 10.0,
        "deadline": 20.0,
        "start_hours": 0.5,
        "move_hours": 0.5,
        "look_hours": 0.1,
        "work_left": 10.0,
        "starting": 0.0,
        "held": NOTHING,
        "idle_hours": 0.0,
        "ages": [5.0] * zones,
        "loss_factors": [1.0] * zones,
        "badness": 1.0,
        "elsewhere": 0.5,
        "prices": [0.3] * zones,
        **fields,
    }
    for name in ("work_left", "starting", "idle_hours", "badness", "elsewhere"):
        values[name] = np.array([values[name]])
    for name in ("ages", "loss_factors", "prices"):
        values[name] = np.array(values[name], float)[:, np.newaxis]
    return Situation(**{**values, "held": np.array([values["held"]]), "is_up": is_up[:, np.newaxis]})
