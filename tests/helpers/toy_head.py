"""A kind of head in one file, as a user would add it: the next token's logits from the last token's embedding alone."""

from dataclasses import dataclass

import torch
from torch import nn

from treespec.drafters.base import single_nodes
from treespec.heads.drafting.base import HeadDrafter
from treespec.heads.files.config import DFLASH_LAYERS
from treespec.heads.files.export import common_keys
from treespec.heads.files.keys import KindKeys, words
from treespec.heads.files.kinds import HeadKind
from treespec.heads.modules.base import DraftHead, HeadConfig


@dataclass(frozen=True)
class ToyConfig(HeadConfig):
    num_layers: int = 1
    strength: float = 1.0

    algorithm = "toy"


class ToyHead(DraftHead[ToyConfig]):
    def __init__(self, config, embedding, target_ids):
        super().__init__(config, embedding, target_ids, [])

    def read(self, tokens):
        embedded = self.config.strength * nn.functional.embedding(tokens, self.embedding)
        return self.lm_head(self.norm(embedded))


class Toy(HeadDrafter[ToyHead]):
    _head_type = ToyHead

    def propose(self, max_depth):
        self._unread.take()
        return self._policy.grow(self, max_depth) if max_depth else single_nodes(self.root_tokens)

    @torch.no_grad()
    def expand(self, frontier):
        return self._propose(self.head.read(frontier.tokens), frontier)


def read_config(config, tensors):
    _, own, shape = KIND.keys.read(config, tensors)
    layers = own.layers(DFLASH_LAYERS)
    return ToyConfig(**shape, num_features=len(layers), hidden_layers=layers, strength=own.factor("strength"))


def write_config(config, hidden_layers):
    keys = {DFLASH_LAYERS: list(hidden_layers), "strength": config.strength}
    return common_keys(config, "ToyDraftModel", 1, [None] * config.num_layers) | keys


KIND = HeadKind(
    keys=KindKeys(
        name="Toy",
        section=None,
        used=words(f"{DFLASH_LAYERS} draft_vocab_size speculators_model_type strength target_hidden_size"),
    ),
    is_meant=lambda config, tensors: False,
    read_config=read_config,
    head=ToyHead,
    drafter=Toy,
    write_config=write_config,
)
