"""`python -m benchmarks.simulator`."""

from benchmarks.simulator.run import main

main()
