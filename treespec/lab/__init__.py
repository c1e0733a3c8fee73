"""What looks at runs: traces, diagnosis, settings, the self-test, measurements. Decoding needs none of it."""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.lab.diagnosis import diagnose
    from treespec.lab.selftest.check import check
    from treespec.lab.selftest.report import CheckReport
    from treespec.lab.setting import load_setting, save_setting
    from treespec.lab.trace import TraceFile, read_trace

__all__ = ["CheckReport", "TraceFile", "check", "diagnose", "load_setting", "read_trace", "save_setting"]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "diagnosis": "diagnose",
        "selftest.check": "check",
        "selftest.report": "CheckReport",
        "setting": "load_setting save_setting",
        "trace": "TraceFile read_trace",
    },
)
