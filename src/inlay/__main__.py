"""`python -m inlay`: the same as `inlay`."""

from inlay.cli.main import main

main()
