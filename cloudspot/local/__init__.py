"""The embedded provider: machines as process trees on this host, which it also reclaims."""
