"""The local site: pages that follow running jobs."""
