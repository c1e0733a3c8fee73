"""`python -m benchmarks.ablation`."""

from benchmarks.ablation.run import main

main()
