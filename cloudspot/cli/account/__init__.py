"""The code of ``cloudspot setup``: the record of its work, the parts of an account, and the config file."""
