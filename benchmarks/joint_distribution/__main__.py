"""`python -m benchmarks.joint_distribution`."""

from benchmarks.joint_distribution.run import main

main()
