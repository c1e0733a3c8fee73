"""These tests need a GPU; what they measured is printed at the end."""

from pathlib import Path

import pytest
import torch
from helpers.gpu import IS_GPU

torch.backends.cudnn.allow_tf32 = False  # Greedy texts are compared: convolutions in full float32.
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items) -> None:
    skip = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.cuda)
            is_for_gpus_alone = item.get_closest_marker("needs_gpu") is not None
            if not torch.cuda.is_available() and (IS_GPU or is_for_gpus_alone):
                item.add_marker(skip)


def pytest_terminal_summary(terminalreporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == "measured":
                        terminalreporter.write_line(value)
