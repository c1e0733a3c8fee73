"""Multi-token-prediction layers from the target's own files, around decoder layers that transformers loads."""

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from treespec.checks import check_count
from treespec.errors import CheckpointError, ConfigError, UnsupportedModelError
from treespec.heads.files.checkpoint import some
from treespec.heads.mtp.drafter import Mtp
from treespec.heads.mtp.files import LAYOUTS, Layout, MtpTensors, read_draft_vocab, read_mtp
from treespec.heads.mtp.module import MtpConfig, MtpHead, MtpLayer, NormScales
from treespec.hf.introspect import CACHE_ARGUMENTS, ModelFacts, model_facts
from treespec.hf.loading.smollm2 import quiet_transformers
from treespec.hf.weights import whole_weight

MTP = "mtp"
"""The drafter's name in vLLM, in commands and in setting files."""
COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""What configurations call the number of MTP layers."""
QWEN = next(layout for layout in LAYOUTS if layout.name == "qwen")
TYPES = ("mtp_layer_types", "mtp_layers_block_type")
"""What they call the types of their decoder layers, all with full attention where they do not say."""
FULL, SLIDING = "full_attention", "sliding_attention"


def load_mtp(
    target: PreTrainedModel,
    checkpoint: str | Path | None = None,
    *,
    draft_vocab: int | Sequence[int] | None = None,
    max_length: int | None = None,
    is_target_normed: bool = True,
    is_own_normed: bool = True,
) -> Mtp:
    """The drafter of the multi-token-prediction layers in the target's own checkpoint, which transformers leaves out.

    The layers read the target's last hidden state, after its last norm, and share its embedding and output layer. Their
    layout is known by the names of the tensors; the decoder layer in them is of the target's own class.

    Args:
        checkpoint: the folder of the files, if they are not where the target was loaded from.
        draft_vocab: the tokens that may be drafted: their ids, or the number of the first ones; None: those that the
            layers were trained for, by `treespec train`, else all. A large vocabulary makes the output layer the
            longest part of a draft pass.
        max_length: see `Eagle3`.
        is_target_normed, is_own_normed: the layers read the target's state and, deeper in a draft, their own output
            after its last norm; False: before it, for a checkpoint that was trained so.

    Raises:
        CheckpointError: there are no files, no MTP layers in them, or layers of another model or an unknown layout.
        UnsupportedModelError: MTP layers of a kind that is not served.
        ConfigError: ids that are not the target's.
    """
    facts = model_facts(target)
    folder = _folder(facts, checkpoint)
    found = read_mtp(folder, facts.config.num_hidden_layers)
    if found is None:
        raise CheckpointError(_nothing_found(facts, folder))
    if draft_vocab is None:
        draft_vocab = read_draft_vocab(folder, facts.num_logits)
    head = _head(facts, folder, *found, draft_vocab)
    head.scales = _norm_scales(facts, head, is_target_normed, is_own_normed)
    return Mtp(head, (facts.config.num_hidden_layers,), max_length)


def fresh_mtp(target: PreTrainedModel, block: dict[str, Tensor], projection: Tensor) -> MtpHead:
    """An MTP layer of the Qwen layout around a decoder layer of these weights, with the target's last norm.

    Raises:
        CheckpointError: they do not belong to such a decoder layer.
        UnsupportedModelError: norms with a bias, which the layout has not.
    """
    facts = model_facts(target)
    last = _last_norm(facts.model.get_decoder())
    if [name for name, _ in last.named_parameters()] != ["weight"]:
        raise UnsupportedModelError(f"MTP layers have norms with a weight alone, {facts.name} has others")
    neutral = type(last)(facts.config.hidden_size).get_parameter("weight").detach()
    weight = last.get_parameter("weight").detach().cpu()
    tensors = MtpTensors(neutral, neutral, projection, weight, (block,))
    return _head(facts, Path(facts.name), QWEN, [tensors], None)


def num_mtp_layers(model: PreTrainedModel) -> int:
    """How many MTP layers a model's configuration names; its files may lack them."""
    config = model.config.get_text_config()
    return next((count for key in COUNTS if (count := getattr(config, key, None))), 0)


def _folder(facts: ModelFacts, checkpoint: str | Path | None) -> Path:
    """Where the files are; nothing is downloaded."""
    name = str(checkpoint if checkpoint is not None else facts.model.config.name_or_path)
    if name and Path(name).is_dir():
        return Path(name)
    revision = getattr(facts.model.config, "_commit_hash", None) if checkpoint is None else None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=["*.safetensors"], local_files_only=True))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"MTP layers are read from the target's files, and {name!r} is neither a folder nor in the hub's cache: "
            "give load_mtp(model, folder)"
        ) from error


def _nothing_found(facts: ModelFacts, folder: Path) -> str:
    count = num_mtp_layers(facts.model)
    if not count:
        return f"{folder} holds no MTP layers, and the configuration of {facts.name} names none"
    return (
        f"the configuration of {facts.name} names {count} MTP layers, but the files in {folder} hold none of their "
        "weights: what wrote them (save_pretrained, quantising or converting) dropped them; give "
        "load_mtp(model, folder) the publisher's files"
    )


def _head(
    facts: ModelFacts, folder: Path, layout: Layout, tensors: list[MtpTensors], draft_vocab: int | Sequence[int] | None
) -> MtpHead:
    num_blocks = sum(len(layer.blocks) for layer in tensors)
    types = _block_types(facts, num_blocks)
    decoder = _load_decoder(facts, folder, [block for layer in tensors for block in layer.blocks], types)
    _check_blocks(facts, decoder)
    target_ids = _target_ids(draft_vocab, facts.num_logits)
    config = MtpConfig(
        layout.name,
        vocab_size=facts.num_logits,
        hidden_size=facts.config.hidden_size,
        num_layers=len(tensors),
        window=facts.config.sliding_window if SLIDING in types else None,
    )
    blocks = iter(decoder.get_submodule("layers").children())
    layers = [_layer(facts, folder, layout, one, [next(blocks) for _ in one.blocks], decoder) for one in tensors]
    output: Any = facts.model.get_output_embeddings()
    if output is None:
        raise UnsupportedModelError(f"{facts.name} does not say what its output layer is, which MTP layers share")
    rows = None if draft_vocab is None else _rows(output, target_ids)
    shared = facts.model.get_input_embeddings(), output
    rotary = getattr(decoder, "rotary_emb", None)
    return MtpHead(config, layers, rotary, *shared, target_ids.to(facts.device), rows).eval()


def _block_types(facts: ModelFacts, count: int) -> list[str]:
    """What the configuration calls the types of the decoder layers. Raises `UnsupportedModelError`: mixed windows."""
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
    with quiet_transformers(), torch.random.fork_rng(devices=[]):  # What is missing is drawn: the embedding, a norm.
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


def _check_blocks(facts: ModelFacts, decoder: nn.Module) -> None:
    """Raises `UnsupportedModelError`: attention that keeps more than keys and values."""
    if any("indexer" in name for name, _ in decoder.named_modules()):
        raise UnsupportedModelError(
            f"MTP layers of {facts.name} are not served: their attention is sparse (an indexer)"
        )


def _layer(
    facts: ModelFacts,
    folder: Path,
    layout: Layout,
    tensors: MtpTensors,
    blocks: Sequence[nn.Module],
    decoder: nn.Module,
) -> MtpLayer:
    template = _last_norm(decoder)
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


def _last_norm(decoder: nn.Module) -> nn.Module:
    return next(module for name, module in decoder.named_children() if "norm" in name)


def _norm_scales(facts: ModelFacts, head: MtpHead, is_target_normed: bool, is_own_normed: bool) -> NormScales:
    """The scales that are to be undone. Raises `UnsupportedModelError`: norms that do not only scale."""
    norms = [_last_norm(facts.model.get_decoder())] * (not is_target_normed)
    if not is_own_normed:
        norms += [layer.get_submodule("norm") for layer in head.layers]
    ones = torch.ones(facts.config.hidden_size, dtype=facts.dtype, device=facts.device)
    with torch.no_grad():
        found = [norm(ones[None])[0] for norm in norms]  # A root mean square norm of ones is its scale.
    if not all(scale.all() and scale.isfinite().all() for scale in found):
        raise UnsupportedModelError(f"{facts.name} has a last norm whose input cannot be had from its output")
    return NormScales(None if is_target_normed else found.pop(0), None if is_own_normed else found)


def _target_ids(draft_vocab: int | Sequence[int] | None, vocab_size: int) -> Tensor:
    """int64 [W]. Raises `ConfigError`: not ids of different tokens, or more tokens than there are."""
    if draft_vocab is None:
        return torch.arange(vocab_size, device="cpu")
    if isinstance(draft_vocab, int):
        return torch.arange(min(check_count("draft_vocab", draft_vocab), vocab_size), device="cpu")
    ids = list(draft_vocab) if isinstance(draft_vocab, Sequence) else []
    is_sound = all(type(token) is int and 0 <= token < vocab_size for token in ids)
    if not ids or not is_sound or len(set(ids)) < len(ids):
        raise ConfigError(
            f"draft_vocab must be a count, or different token ids below {vocab_size}, got {draft_vocab!r}"
        )
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _rows(output: Any, target_ids: Tensor) -> nn.Linear:
    """These rows of an output layer."""
    weight = whole_weight(output).detach()
    index, bias = target_ids.to(weight.device), getattr(output, "bias", None)
    rows = nn.Linear(weight.shape[1], len(index), bias=bias is not None, device="meta")
    rows.weight = nn.Parameter(weight[index], requires_grad=False)
    if bias is not None:
        rows.bias = nn.Parameter(bias.detach()[index], requires_grad=False)
    return rows
