"""The shape of a P-EAGLE head from `config.json`: that of an EAGLE-3 head, and its mask token.

The speculators library calls it `mask_token_id`, other files `pard_token` or `ptd_token_id`; `mask_hidden` is a tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from treespec.heads.eagle3.files import KEYS as EAGLE3_KEYS
from treespec.heads.eagle3.files import MASK_STATE, eagle3_keys, eagle3_shape
from treespec.heads.files.config import MAX_COUNT, ConfigReader
from treespec.heads.files.keys import words
from treespec.heads.peagle.module import PEagleConfig

MASK_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")
NUM_DEPTHS = 8
"""The depths that are trained where the configuration does not say how many tokens are drafted."""

KEYS = replace(
    EAGLE3_KEYS,
    name="P-EAGLE",
    used=EAGLE3_KEYS.used | {*MASK_TOKENS, "speculators_config"},
    inert={**EAGLE3_KEYS.inert, "parallel_drafting": (True,)},
    harmless=EAGLE3_KEYS.harmless | words("mask_token"),
)


def peagle_config(config: ConfigReader, tensors: Mapping[str, Tensor]) -> PEagleConfig:
    """See `HeadKind`."""
    shape = eagle3_shape(KEYS, config, tensors)
    key = next((key for key in MASK_TOKENS if config.get(key) is not None), MASK_TOKENS[0])
    mask_token = config.integer(key, least=0, most=shape["vocab_size"] - 1)
    return PEagleConfig(**shape, mask_token=mask_token, num_depths=_num_depths(config))


def is_meant(config: ConfigReader, tensors: Mapping[str, Tensor]) -> bool:
    """Whether files without a kind's name are of such a head."""
    return MASK_STATE in tensors


def peagle_keys(config: PEagleConfig, hidden_layers: Sequence[int]) -> dict[str, Any]:
    """The configuration of a head in the speculators library's format."""
    keys = eagle3_keys(config, hidden_layers)
    keys["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = config.num_depths
    return keys | {"architectures": ["PEagleSpeculator"], "mask_token_id": config.mask_token}


def _num_depths(config: ConfigReader) -> int:
    """The most tokens of a proposal method."""
    methods = config.nested("speculators_config").get("proposal_methods")
    if not isinstance(methods, list):
        return NUM_DEPTHS
    readers = [ConfigReader(config.path, method) for method in methods if isinstance(method, Mapping)]
    return max((one.integer("speculative_tokens", NUM_DEPTHS, most=MAX_COUNT) for one in readers), default=NUM_DEPTHS)
