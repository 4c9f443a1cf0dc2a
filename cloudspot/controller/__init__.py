"""The controller: observe, decide, act; any number of them at once, and none needs to live."""
