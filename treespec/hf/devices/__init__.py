"""Where a model's weights are: on several devices, on disk, in several processes."""
