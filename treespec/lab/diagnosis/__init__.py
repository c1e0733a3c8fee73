"""Why a run is slow: what holds it back, from its times and its acceptance, with the setting to change."""

from treespec.lab.diagnosis.diagnose import Diagnosis, diagnose
from treespec.lab.diagnosis.evidence import Evidence, of_stats, of_trace
from treespec.lab.diagnosis.speed import Cause

__all__ = ["Cause", "Diagnosis", "Evidence", "diagnose", "of_stats", "of_trace"]
