"""`python -m treespec.commands`."""

from treespec.commands import main

if __name__ == "__main__":  # Processes of a study import this too.
    main()
