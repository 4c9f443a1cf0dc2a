"""What goes to machines and drivers with a job."""

import pytest

from cloudspot.errors import PluginError
from cloudspot.registry import driver_distributions, plugin_distributions


def test_machines_get_the_trackers_of_their_job():
    assert plugin_distributions("local", "file:///x") == ()
    assert plugin_distributions("local", trackers=("wandb", "mlflow")) == ("cloudspot-trackers",)
    with pytest.raises(PluginError, match='no tracker "aim" is installed'):
        plugin_distributions("local", trackers=("aim",))


def test_drivers_get_what_any_job_may_ask_of_them_such_as_the_shared_page():
    assert {"cloudspot-apprise", "cloudspot-ui"} <= {*driver_distributions("local", "file:///x")}
