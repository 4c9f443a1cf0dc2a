"""Jobs in a store: inspect them, compare them with this computer's notes, export them and move them."""
