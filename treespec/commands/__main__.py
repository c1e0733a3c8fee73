"""`python -m treespec.commands`."""

from treespec.commands import main

main()
