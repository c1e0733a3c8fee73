"""Training drafters for a model on text that the model wrote itself."""

from treespec.training.adapt import Adapted, adapt, adaptation
from treespec.training.evaluate import Evaluation
from treespec.training.export import export_head
from treespec.training.options import TrainingConfig, parse_settings
from treespec.training.train import TrainingResult, train

__all__ = [
    "Adapted",
    "Evaluation",
    "TrainingConfig",
    "TrainingResult",
    "adapt",
    "adaptation",
    "export_head",
    "parse_settings",
    "train",
]
