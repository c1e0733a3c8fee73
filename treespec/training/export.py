"""Trained heads written again, with everything that their readers need, or without what the target has."""

import copy
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from treespec.errors import ConfigError
from treespec.heads.dflash.module import DFlashHead, MarkovHead
from treespec.heads.files.export import save_head
from treespec.heads.files.fitting import fused_layers
from treespec.hf.loading.heads import load_head, vocabulary_weights


def export_head(
    name: str | Path,
    target: PreTrainedModel,
    out: str | Path,
    dtype: torch.dtype = torch.float16,
    has_all: bool = True,
    markov_rank: int | None = None,
) -> None:
    """Write a trained head in the speculators library's format, which vLLM reads too.

    Args:
        name: see `load_drafter`, errors too.
        target: the model that the head was trained for.
        out: the folder to write.
        dtype: of the weights.
        has_all: with the output rows and the embedding. False leaves out those that equal the target's after rounding
            to `dtype`: `load_drafter` takes them from there.
        markov_rank: a smaller rank for a DSpark head's bias, at most the head's.
    """
    # Not in the target's dtype, which may be coarser than the file's.
    head = load_head(name, target, torch.float32)
    layers = fused_layers(head.config, name, target.config.get_text_config().num_hidden_layers)
    if markov_rank is not None:
        if not isinstance(head, DFlashHead) or not 0 < markov_rank <= head.config.markov_rank:
            raise ConfigError(f"markov_rank must be from 1 to the rank of a DSpark head's bias, got {markov_rank}")
        if head.config.has_markov_gate:
            raise ConfigError(f"the bias of {name} has a gate, which has no smaller rank: leave out markov_rank")
        head = cut_markov(head, markov_rank)
    verifier = getattr(target.config, "_name_or_path", None) or None
    embedding, rows = vocabulary_weights(target)

    def differs(own: torch.Tensor, its: torch.Tensor) -> bool:
        return own.shape != its.shape or not own.to(dtype).equal(its.to(own.device, dtype))

    has_rows = has_all or differs(head.lm_head.weight, rows[head.target_ids])
    has_embedding = has_all or differs(head.embedding, embedding)
    save_head(head, layers, out, verifier, has_lm_head=has_rows, has_embedding=has_embedding, dtype=dtype)


@torch.no_grad()
def cut_markov(head: DFlashHead, rank: int) -> DFlashHead:
    """The head with the bias of this rank that is nearest to its own B = W1 W2^T (Eckart and Young 1936).

    With W1 = Q1 R1 and W2 = Q2 R2 the singular values of B are those of the small matrix R1 R2^T.
    """
    assert head.markov_head is not None
    first = head.markov_head.markov_w1.weight.float()
    second = head.markov_head.markov_w2.weight.float()
    (q1, r1), (q2, r2) = torch.linalg.qr(first), torch.linalg.qr(second)
    left, sizes, right = torch.linalg.svd(r1 @ r2.T)
    roots = sizes[:rank].sqrt()
    cut = copy.deepcopy(head)
    cut.config = replace(head.config, markov_rank=rank)
    cut.markov_head = MarkovHead(head.config.vocab_size, head.config.draft_vocab_size, rank).to(first.device)
    cut.markov_head.markov_w1.weight.copy_(q1 @ (left[:, :rank] * roots))
    cut.markov_head.markov_w2.weight.copy_(q2 @ (right[:rank].T * roots))
    return cut.to(head.fc.weight.dtype)
