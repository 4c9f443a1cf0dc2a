"""Jobs in a store: look at them, compare them with this computer's notes, export them and move them."""
