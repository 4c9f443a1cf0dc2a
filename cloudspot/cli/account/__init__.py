"""``cloudspot setup``: the record of what it has made, the work on the parts, and the config file."""
