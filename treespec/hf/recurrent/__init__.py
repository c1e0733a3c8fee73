"""Tree passes through layers that keep a state: every node reads its ancestors and what was committed, no sibling."""
