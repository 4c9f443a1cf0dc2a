"""AWS emulated on one host: moto made as strict as the real one, with machines that really boot."""
