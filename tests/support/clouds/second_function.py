"""The command line, for which a store's function has another name: deploys one beside the first, for the same store."""

from __future__ import annotations

import cloudspot.cli.commands.driver as driver_module
from cloudspot.cli.main import main
from cloudspot.plugin.driverinventory import driver_name

if __name__ == "__main__":
    driver_module.driver_name = lambda store_label: driver_name(f"{store_label} second")
    main()
