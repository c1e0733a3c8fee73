"""Cases of draft heads in batches of prompts of two lengths, with min-p: what an outside test once found suspicious.

The heads have random weights and the target's own output rows, so that their drafts are accepted in part.
"""

import torch

from benchmarks.joint_distribution.cases import MIN_P, RAGGED, VOCAB_SIZE, Case, Models
from treespec import BestFirst
from treespec.heads.dflash.drafter import DFlash
from treespec.heads.dflash.module import DFlashConfig, DFlashHead, Span
from treespec.heads.medusa.drafter import Medusa
from treespec.heads.medusa.module import MedusaHead, MedusaHeads
from treespec.literature import StochasticBeam
from treespec.training.heads import fresh_head, head_sizes

DEPTHS = 2


def medusa(models: Models) -> Medusa:
    """Two heads that are the target's own output rows, disturbed."""
    rows = models.target.lm_head.weight.detach()
    noise = torch.Generator().manual_seed(0)
    heads = [MedusaHead((), rows + 0.3 * torch.randn(rows.shape, generator=noise).to(rows)) for _ in range(DEPTHS)]
    return Medusa(MedusaHeads(tuple(heads)))


def dspark(models: Models) -> DFlash:
    """One layer and a Markov bias, fresh for the target."""
    state = torch.get_rng_state()
    torch.manual_seed(1)
    config = DFlashConfig(
        **head_sizes(models.target, VOCAB_SIZE, (0, 1)),
        block_size=DEPTHS,
        mask_token=0,
        spans=(Span(),),
        has_anchor_output=True,
        markov_rank=4,
    )
    head = fresh_head(DFlashHead, config, models.target, torch.arange(VOCAB_SIZE), is_initialised=True)
    torch.set_rng_state(state)
    return DFlash(head.eval().to(models.target.device), (0, 1))


def head_cases() -> list[Case]:
    """Both heads, and transformers' own sampling as the control."""
    cases = [
        ("traversal", BestFirst(6), "Medusa, best first", medusa),
        ("traversal", StochasticBeam(3, 2), "DSpark, stochastic beam", dspark),
        ("none", BestFirst(6), "plain sampling", None),
    ]
    return [Case(rule, policy, name, MIN_P, make, prompts=RAGGED) for rule, policy, name, make in cases]
