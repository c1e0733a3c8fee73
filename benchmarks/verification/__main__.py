"""`python -m benchmarks.verification`."""

from benchmarks.verification.run import main

main()
