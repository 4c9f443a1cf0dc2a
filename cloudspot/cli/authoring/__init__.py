"""For authors of plugins: the files of a new plugin, and the run of its kits."""
