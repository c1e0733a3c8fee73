"""EAGLE (Li et al. 2024): a small head guesses the target's next hidden states, and reads its own guesses."""

from treespec.heads.drafting.levels import LevelDrafter
from treespec.heads.eagle.files import KEYS, eagle_config, eagle_keys, is_meant
from treespec.heads.eagle.module import EagleHead
from treespec.heads.files.kinds import HeadKind


class Eagle(LevelDrafter[EagleHead]):
    """Drafts with an EAGLE head; see `LevelDrafter`, `HeadDrafter` and `Drafter`."""

    _head_type = EagleHead


KIND = HeadKind(
    keys=KEYS, is_meant=is_meant, read_config=eagle_config, head=EagleHead, drafter=Eagle, write_config=eagle_keys
)
