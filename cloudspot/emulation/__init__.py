"""An emulated cloud on one host: the base of the sandboxes, with machines that really boot."""
