"""MTP layers in vLLM: those of the target's own checkpoint, or trained for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from treespec.errors import UnsupportedModelError
from treespec.heads.mtp.drafter import Mtp
from treespec.hf.loading.mtp import load_mtp
from treespec.vllm.pages import OnPages


class ServedMtp(OnPages, Mtp):
    """`Mtp` for rows that join and leave."""

    @property
    def _features(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.head.get_submodule("layers.0.projection").get_parameter("weight"), lambda states: states

    def add_rows(self, num_rows: int) -> None:
        super().add_rows(num_rows)
        self._ends = nn.functional.pad(self._ends, (0, 0, 0, 0, 0, num_rows))

    def _read_alone(self, row: int) -> None:
        ends, self._ends = self._ends, self._ends[row : row + 1]
        super()._read_alone(row)
        self._ends = torch.cat([ends[:row], self._ends, ends[row + 1 :]])


def load_served_mtp(
    folder: str | Path, config: Any, embedding: Float[Tensor, "V H"], lm_head: Float[Tensor, "V H"]
) -> ServedMtp:
    """The MTP layers in a folder, for vLLM's model of this `ModelConfig` with these weights; without its pages.

    They read the states that vLLM's model returns, as its own MTP does: of some models, such as MiMo, those before the
    last norm.

    Raises:
        UnsupportedModelError: transformers has no class for the model, or see `load_mtp`.
        CheckpointError: see `load_mtp`.
    """
    drafter = load_mtp(_stand_in(config, embedding, lm_head), folder)
    return ServedMtp(drafter.head, drafter.hidden_layers)


def _stand_in(config: Any, embedding: Float[Tensor, "V H"], lm_head: Float[Tensor, "V H"]) -> PreTrainedModel:
    """transformers' model of the configuration, which has these weights and no others."""
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(
                config.hf_text_config, dtype=embedding.dtype, trust_remote_code=config.trust_remote_code
            )
            output = nn.Linear(lm_head.shape[1], lm_head.shape[0], bias=False)
    except (ValueError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UnsupportedModelError(f"transformers has no class for {config.model}'s layers: {reason}") from error
    output.weight = nn.Parameter(lm_head, requires_grad=False)
    model.set_input_embeddings(nn.Embedding.from_pretrained(embedding))
    model.set_output_embeddings(output)
    return model.eval()
