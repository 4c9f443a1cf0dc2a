"""Whole jobs: submitted, listed, read, resumed, forked, copied and removed; and who drives them."""
