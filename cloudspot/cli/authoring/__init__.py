"""For plugin authors: the files of a new plugin, and runs of the test kits."""
