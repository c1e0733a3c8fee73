"""`python -m benchmarks.demo`."""

from benchmarks.demo.run import main

main()
