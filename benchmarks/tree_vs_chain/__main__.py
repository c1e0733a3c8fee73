"""`python -m benchmarks.tree_vs_chain`."""

from benchmarks.tree_vs_chain.run import main

main()
