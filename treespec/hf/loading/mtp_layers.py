"""MTP layers of tensors: decoder layers that transformers loads, and what stands around them."""

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from treespec.checks import check_count
from treespec.errors import CheckpointError, ConfigError, UnsupportedModelError
from treespec.heads.files.checkpoint import some
from treespec.heads.mtp.files import Layout, MtpTensors, are_different_ids
from treespec.heads.mtp.module import MtpConfig, MtpHead, MtpLayer
from treespec.hf.introspect import CACHE_ARGUMENTS, ModelFacts
from treespec.hf.loading.models import quiet_transformers
from treespec.hf.weights import whole_weight

TYPES = ("mtp_layer_types", "mtp_layers_block_type")
"""Configuration keys for the types of decoder layers; where none is set, all layers have full attention."""
FULL, SLIDING = "full_attention", "sliding_attention"


def build_mtp(
    facts: ModelFacts, folder: Path, layout: Layout, tensors: list[MtpTensors], draft_vocab: int | Sequence[int] | None
) -> MtpHead:
    """The head of these tensors, which were read in `folder`; `draft_vocab`: see `load_mtp`.

    Raises:
        CheckpointError: they do not belong to layers of the target's class.
        UnsupportedModelError: layers of a kind that is not served.
        ConfigError: ids that are not the target's.
    """
    num_blocks = sum(len(layer.blocks) for layer in tensors)
    types = _block_types(facts, num_blocks)
    decoder = _load_decoder(facts, folder, [block for layer in tensors for block in layer.blocks], types)
    if any("indexer" in name for name, _ in decoder.named_modules()):
        raise UnsupportedModelError(f"MTP layers of {facts.name} are not served: their attention is sparse")
    target_ids = _target_ids(draft_vocab, facts.num_logits)
    rotary: Any = getattr(decoder, "rotary_emb", None)
    has_types = rotary is not None and "layer_type" in inspect.signature(rotary.forward).parameters
    config = MtpConfig(
        layout.name,
        vocab_size=facts.num_logits,
        hidden_size=facts.config.hidden_size,
        num_layers=len(tensors),
        window=facts.config.sliding_window if SLIDING in types else None,
        layer_type=types[0] if has_types else None,
    )
    blocks = iter(decoder.get_submodule("layers").children())
    layers = [_layer(facts, folder, layout, one, [next(blocks) for _ in one.blocks], decoder) for one in tensors]
    output: Any = facts.model.get_output_embeddings()
    if output is None:
        raise UnsupportedModelError(f"{facts.name} does not say what its output layer is, which MTP layers share")
    rows = None if draft_vocab is None else _rows(output, target_ids)
    shared = facts.model.get_input_embeddings(), output
    return MtpHead(config, layers, rotary, *shared, target_ids.to(facts.device), rows).eval()


def _block_types(facts: ModelFacts, count: int) -> list[str]:
    """Types of `count` decoder layers by the configuration. Raises `UnsupportedModelError`: mixed or unknown ones."""
    given = next((list(types) for key in TYPES if (types := getattr(facts.config, key, None))), [])
    types = given[:count] if len(given) >= count else [FULL] * count
    if not set(types) <= {FULL, SLIDING, "moe", "mlp"} or len({FULL, SLIDING} & set(types)) > 1:
        raise UnsupportedModelError(f"MTP layers of the types {types} are not served, only of one type of attention")
    return types


def _load_decoder(
    facts: ModelFacts, folder: Path, blocks: list[dict[str, Tensor]], types: list[str]
) -> PreTrainedModel:
    """A decoder of the target's class with these layers alone, read by transformers as it reads the target's own.

    Raises `CheckpointError`: tensors that such layers do not have, or have in another shape, or that are missing.
    """
    decoder = facts.model.get_decoder()
    weights = {f"layers.{i}.{name}": tensor for i, block in enumerate(blocks) for name, tensor in block.items()}
    is_sparse = any(".experts." in name for name in weights)
    config = _decoder_config(facts.config, types, is_sparse)
    if not any("scale" in name for name in weights):  # Tools that quantise leave MTP layers as they are.
        vars(config).pop("quantization_config", None)
    attention = facts.config._attn_implementation
    options = {"dtype": facts.dtype, "attn_implementation": attention if attention == "eager" else "sdpa"}
    with quiet_transformers(), torch.random.fork_rng(devices=[]):  # Missing weights are drawn: the embedding, a norm.
        try:
            loaded: Any = type(decoder).from_pretrained(
                None, config=config, state_dict=weights, output_loading_info=True, **options
            )
        except (ValueError, RuntimeError) as error:
            raise CheckpointError(f"the MTP layers in {folder} are not those of {facts.name}: {error}") from error
    made, report = loaded
    missing = [name for name in report["missing_keys"] if name.startswith("layers.")]
    wrong = [*missing, *report["unexpected_keys"], *(name for name, *_ in report["mismatched_keys"])]
    if wrong:
        raise CheckpointError(
            f"the MTP layers in {folder} are not those of {facts.name}; tensors that are missing, unknown or of "
            f"another shape: {some(sorted(wrong))}"
        )
    return made.to(facts.device)


def _decoder_config(config: PreTrainedConfig, types: list[str], is_sparse: bool) -> PreTrainedConfig:
    """The target's configuration for a decoder of MTP layers, with the smallest of embeddings."""
    count = len(types)
    changes = {
        "vocab_size": 1,
        "pad_token_id": None,
        "num_hidden_layers": count,
        "layer_types": types,
        "mlp_layer_types": ["sparse" if is_sparse else "dense"] * count,
        "first_k_dense_replace": 0 if is_sparse else count,
        "mlp_only_layers": [] if is_sparse else list(range(count)),
        "decoder_sparse_step": 1,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 0 if is_sparse else count,
        "moe_layer_end_index": count - 1,
        "per_layer_config": None,
    }
    own = copy.deepcopy(config)
    for name, value in changes.items():
        if hasattr(own, name):
            setattr(own, name, value)
    return own


def _layer(
    facts: ModelFacts,
    folder: Path,
    layout: Layout,
    tensors: MtpTensors,
    blocks: Sequence[nn.Module],
    decoder: nn.Module,
) -> MtpLayer:
    template = last_norm(decoder)
    size = facts.config.hidden_size
    shapes = {
        "embedding_norm": [size],
        "hidden_norm": [size],
        "projection": [size, 2 * size],
        **({} if tensors.norm is None else {"norm": [size]}),
    }
    for name, expected in shapes.items():
        if list(getattr(tensors, name).shape) != expected:
            found = list(getattr(tensors, name).shape)
            raise CheckpointError(f"{folder}: the MTP layers' {name} expected {expected}, got {found}")

    def norm(weight: Tensor) -> nn.Module:
        made = copy.deepcopy(template)
        made.load_state_dict({"weight": weight})
        return made

    with torch.device("meta"):
        projection = nn.Linear(2 * size, size, bias=False)
    weight = tensors.projection.to(facts.device, facts.dtype)
    projection.load_state_dict({"weight": weight}, assign=True)
    arguments = inspect.signature(blocks[0].forward).parameters
    return MtpLayer(
        norm(tensors.embedding_norm),
        norm(tensors.hidden_norm),
        projection,
        blocks,
        nn.Identity() if tensors.norm is None else norm(tensors.norm),
        is_hidden_first=layout.is_hidden_first,
        cache_argument=next(name for name in CACHE_ARGUMENTS if name in arguments),
    )


def last_norm(decoder: nn.Module) -> nn.Module:
    """The norm after a decoder's last layer."""
    return next(module for name, module in decoder.named_children() if "norm" in name)


def _target_ids(draft_vocab: int | Sequence[int] | None, vocab_size: int) -> Tensor:
    """int64 [W]. Raises `ConfigError`: not ids of different tokens, or more tokens than there are."""
    if draft_vocab is None:
        return torch.arange(vocab_size, device="cpu")
    if isinstance(draft_vocab, int):
        return torch.arange(min(check_count("draft_vocab", draft_vocab), vocab_size), device="cpu")
    if not are_different_ids(draft_vocab, vocab_size):
        raise ConfigError(
            f"draft_vocab must be a count, or different token ids below {vocab_size}, got {draft_vocab!r}"
        )
    return torch.tensor(list(draft_vocab), dtype=torch.int64, device="cpu")


def _rows(output: Any, target_ids: Tensor) -> nn.Linear:
    """These rows of an output layer."""
    weight = whole_weight(output).detach()
    index, bias = target_ids.to(weight.device), getattr(output, "bias", None)
    rows = nn.Linear(weight.shape[1], len(index), bias=bias is not None, device="meta")
    rows.weight = nn.Parameter(weight[index], requires_grad=False)
    if bias is not None:
        rows.bias = nn.Parameter(bias.detach()[index], requires_grad=False)
    return rows
