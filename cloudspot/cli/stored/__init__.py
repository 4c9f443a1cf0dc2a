"""Jobs that a store holds: looked at, compared with this computer's notes, exported and moved."""
