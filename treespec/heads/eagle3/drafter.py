"""EAGLE-3 (Li et al. 2025): a one-layer head drafts from features of the target's own verification pass."""

from treespec.heads.drafting.levels import LevelDrafter
from treespec.heads.eagle3.files import KEYS, eagle3_config, eagle3_keys, is_meant
from treespec.heads.eagle3.module import Eagle3Head
from treespec.heads.files.kinds import HeadKind


class Eagle3(LevelDrafter[Eagle3Head]):
    """Drafts with an EAGLE-3 head; see `LevelDrafter`, `HeadDrafter` and `Drafter`."""

    _head_type = Eagle3Head


KIND = HeadKind(
    keys=KEYS, is_meant=is_meant, read_config=eagle3_config, head=Eagle3Head, drafter=Eagle3, write_config=eagle3_keys
)
