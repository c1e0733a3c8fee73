"""Tools that look at runs: traces, diagnosis, settings, the self-test, measurements. Decoding needs none of them."""

from typing import TYPE_CHECKING

from treespec.registry import lazy

if TYPE_CHECKING:
    from treespec.lab.diagnosis import diagnose as diagnose
    from treespec.lab.selftest.check import check as check
    from treespec.lab.selftest.report import CheckReport as CheckReport
    from treespec.lab.setting import load_setting as load_setting
    from treespec.lab.setting import save_setting as save_setting
    from treespec.lab.trace import TraceFile as TraceFile
    from treespec.lab.trace import read_trace as read_trace

__getattr__, __dir__, __all__ = lazy(__name__)
