"""EAGLE (Li et al. 2024): a small head guesses the target's next hidden states, and reads its own guesses."""

from jaxtyping import Float
from torch import Tensor

from treespec.heads.drafting.levels import LevelDrafter
from treespec.heads.eagle.files import KEYS, eagle_config, eagle_keys, is_meant
from treespec.heads.eagle.module import EagleHead
from treespec.heads.files.kinds import HeadKind
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.protocols import Frontier


class Eagle(LevelDrafter[EagleHead]):
    """Drafts with an EAGLE head; see `LevelDrafter`, `HeadDrafter` and `Drafter`."""

    _head_type = EagleHead

    def _run_text(self, tokens: Tensor, states: Tensor, positions: Tensor, mask: Tensor, keys: DraftingCache) -> Tensor:
        return self.head.run(tokens, states.to(self.head.embedding), positions, mask, keys)

    def _read(self, states: Float[Tensor, "B F H"], frontier: Frontier) -> tuple[Tensor, Tensor]:
        return self.head.lm_head(states), states


KIND = HeadKind(
    keys=KEYS,
    is_meant=is_meant,
    read_config=eagle_config,
    head=EagleHead,
    drafter=Eagle,
    write_config=eagle_keys,
)
