"""``python -m cloudspot``: the command line."""

from cloudspot.cli.main import main

main()
