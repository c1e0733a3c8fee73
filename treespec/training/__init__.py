"""Training drafters for a model on text that the model wrote itself."""

from treespec.training.evaluate import Evaluation
from treespec.training.options import TrainingConfig, parse_settings
from treespec.training.train import TrainingResult, train

__all__ = ["Evaluation", "TrainingConfig", "TrainingResult", "parse_settings", "train"]
