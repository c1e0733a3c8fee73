"""Published kinds of heads that are not served: they are refused by name, with what to do."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.errors import CheckpointError

ANOTHER = "take an EAGLE, DFlash or Medusa head of this target"


@dataclass(frozen=True)
class Unserved:
    """One kind.

    Args:
        what: is in such files.
        advice: what to do.
        keys: a pattern of keys of the configuration, at the top or in an object of it.
        values: a pattern of values of `NAMES`.
        tensors: a pattern of tensors' names.
    """

    what: str
    advice: str
    keys: str = "^$"
    values: str = "^$"
    tensors: str = "^$"


NAMES = ("architectures", "model_type", "speculators_model_type", "projector_type", "markov_head_type")
"""Keys whose values name a kind."""

KINDS = (
    Unserved(
        "quantised weights",
        "take the head in bfloat16, or multiply its weights by their scales once and save them without the setting",
        keys="quantization_config|compression_config|quantization",
        tensors=r".*\.(weight_scale.*|weight_packed|qweight|qzeros|scales|input_scale|g_idx)",
    ),
    Unserved(
        "attention over a latent (MLA)",
        "draft with the target's own MTP layers, load_drafter('mtp', model), or take a head with plain attention",
        keys="kv_lora_rank|q_lora_rank|qk_rope_head_dim",
        tensors=r".*\.(kv_a_proj_with_mqa|kv_b_proj)\..*",
    ),
    Unserved("a Hydra head", ANOTHER, keys="hydra_.*", values="hydra", tensors="hydra_.*"),
    Unserved("an MLPSpeculator", ANOTHER, keys="n_predict", values="mlp_speculator|.*(MLP|LSTM)Speculator.*"),
    Unserved("LiLiCorr's candidate lattice", ANOTHER, keys="lilicorr_.*", values="lilicorr|LiLiCorr.*"),
    Unserved("XPress' refiner", ANOTHER, keys="xpress_.*|num_jacobi_passes", values="xpress|XPress.*"),
    Unserved("Domino's recurrent projector", ANOTHER, keys="gru_hidden_dim", values="domino|Domino.*"),
    Unserved("a recurrent Markov head", "take a DSpark head with markov_head_type 'vanilla' or 'gated'", values="rnn"),
    Unserved(
        "Gemma 4's own layers", "take a head with Qwen3's or llama's layers for this target", values="Gemma4.*Model"
    ),
    Unserved("DeepSeek-V4's DSpark layers", ANOTHER, keys="dspark_noise_token_id", values="dsv4_dspark|DSV4DSpark.*"),
    Unserved("an MMuse head", ANOTHER, values="mmuse|MMuse.*"),
)


def refuse_unserved(folder: Path, config: Mapping[str, Any], tensors: Iterable[str] = ()) -> None:
    """Raises `CheckpointError`: the configuration or the tensors' names are of one of `KINDS`."""
    sections = [config, *(value for value in config.values() if isinstance(value, Mapping))]
    keys = [key for section in sections for key, value in section.items() if value not in (None, False)]
    values = [value for section in sections for name in NAMES for value in _strings(section.get(name))]
    names = [name.removeprefix("model.") for name in tensors]
    for kind in KINDS:
        for pattern, found in ((kind.keys, keys), (kind.values, values), (kind.tensors, names)):
            sign = next((one for one in found if re.fullmatch(pattern, one)), None)
            if sign is not None:
                raise CheckpointError(f"{folder} holds {kind.what} ({sign}), which is not served: {kind.advice}")


def _strings(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
