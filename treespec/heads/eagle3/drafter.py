"""EAGLE-3 (Li et al. 2025): a one-layer head drafts from features of the target's own verification pass."""

from jaxtyping import Float
from torch import Tensor

from treespec.heads.drafting.levels import LevelDrafter
from treespec.heads.eagle3.files import KEYS, eagle3_config, eagle3_keys, is_meant
from treespec.heads.eagle3.module import Eagle3Head, Eagle3Output
from treespec.heads.files.kinds import HeadKind
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.protocols import Frontier


class Eagle3(LevelDrafter[Eagle3Head]):
    """Drafts with an EAGLE-3 head; see `LevelDrafter`, `HeadDrafter` and `Drafter`."""

    _head_type = Eagle3Head

    def _run_text(self, tokens: Tensor, states: Tensor, positions: Tensor, mask: Tensor, keys: DraftingCache) -> Tensor:
        return self.head.run(tokens, self._fuse(states.to(self.head.embedding)), positions, mask, keys)

    def _read(self, states: Float[Tensor, "B F H"], frontier: Frontier) -> Eagle3Output:
        return self.head.read(states)

    def _fuse(self, states: Float[Tensor, "B M Y"]) -> Float[Tensor, "B M H"]:
        """The head's features of the target's states."""
        return self.head.fuse(states)


KIND = HeadKind(
    keys=KEYS,
    is_meant=is_meant,
    read_config=eagle3_config,
    head=Eagle3Head,
    drafter=Eagle3,
    write_config=eagle3_keys,
)
