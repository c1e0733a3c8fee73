"""The facts about a model that scorers need, read once into `ModelFacts`."""

import inspect
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput

from treespec.engine.ranks import Alone, Ranks
from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.add_ons import ADD_ONS
from treespec.hf.own_hooks import own_hooks, own_modules
from treespec.hf.weights import weight_counts
from treespec.protocols import HiddenStates

CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
"""Names of the cache in models' arguments and outputs: since transformers 5.24, before, and of some states before."""


def cache_name(fields: Collection[str]) -> str:
    """The name of the cache among the fields of the outputs of `generate`. Raises `ImportError`: no known name."""
    for name in CACHE_ARGUMENTS:
        if name in fields:
            return name
    raise ImportError(
        f"the outputs of generate have no cache by a known name ({', '.join(CACHE_ARGUMENTS)}), but {', '.join(fields)}"
    )


CACHE_NAME = cache_name(GenerateDecoderOnlyOutput.__dataclass_fields__)
"""The name of the cache in the arguments and outputs of `generate`, in the installed transformers."""


def cache_in(named: Mapping[str, Any]) -> Cache | None:
    """The cache among a call's arguments or a model's outputs, under whichever of its names."""
    return next((named[name] for name in CACHE_ARGUMENTS if named.get(name) is not None), None)


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """The facts about a model that scorers need.

    Attributes:
        modules: by name; walked once, as a call needs them many times.
        forward: what passes over new nodes call: the model, or what `torch.compile` returned for it.
        config: the configuration of its text part.
        device: where token ids are expected; logits come back there too.
        num_logits, max_positions: see `num_logits`, `position_table_size`.
        arguments: the names of the arguments of its `forward`.
        adapters: see `active_adapters`.
        ranks: the processes that run it together.
        weights: see `weight_kinds`.
    """

    model: PreTrainedModel
    modules: Mapping[str, torch.nn.Module]
    forward: PreTrainedModel
    config: PreTrainedConfig
    device: torch.device
    dtype: torch.dtype
    num_logits: int
    max_positions: int | None
    arguments: frozenset[str]
    adapters: Hashable = None
    ranks: Ranks = field(default_factory=Alone)
    weights: frozenset[tuple[str, ...]] = frozenset()

    @cached_property
    def weight_counts(self) -> Counter[str]:
        """See the function of this name."""
        return weight_counts(self.modules.values())

    @cached_property
    def hooks(self) -> frozenset[tuple[str, Hashable]]:
        """See `own_hooks`, `own_modules`."""
        return frozenset(own_hooks(self.modules) | own_modules(self.modules))

    @property
    def name(self) -> str:
        """The model's class, for messages."""
        return type(self.model).__name__

    @property
    def cache_argument(self) -> str:
        """The name under which `forward` takes a cache. Raises `UnsupportedModelError`: it takes none."""
        taken = [name for name in CACHE_ARGUMENTS if name in self.arguments]
        if taken or "state" in self.arguments:  # RWKV's, which leaves a cache unread.
            return (*taken, CACHE_NAME)[0]
        raise UnsupportedModelError(
            f"{self.name} takes no transformers cache (none of {', '.join(CACHE_ARGUMENTS)}): its tokens cannot be "
            "verified ahead"
        )


def model_facts(model: PreTrainedModel | ModelFacts) -> ModelFacts:
    """A model's facts; raises as `check_model`, and `UnsupportedModelError` for no language model over tokens."""
    if isinstance(model, ModelFacts):
        return model
    check_model(model)
    plain = unwrapped(model)
    modules = dict(plain.named_modules())
    # Errors of transformers for models without embeddings, and of `next` for one without parameters.
    try:
        device, dtype, logits = input_device(plain), plain.dtype, num_logits(plain)
    except (AttributeError, NotImplementedError, StopIteration) as error:
        raise UnsupportedModelError(f"{type(plain).__name__} is not a language model over tokens: {error}") from error
    return ModelFacts(
        model=plain,
        modules=modules,
        forward=model if hasattr(model, "_orig_mod") else plain,
        config=plain.config.get_text_config(),
        device=device,
        dtype=dtype,
        num_logits=logits,
        max_positions=position_table_size(plain, modules),
        arguments=forward_arguments(plain),
        adapters=active_adapters(modules.values()),
        ranks=ranks_of(plain),
        weights=weight_kinds(modules.values()),
    )


def ranks_of(model: PreTrainedModel) -> Ranks:
    """The processes that run a model together. Raises `UnsupportedModelError`: not by tensor parallelism."""
    mesh = getattr(model, "_device_mesh", None)
    return Alone() if mesh is None or mesh.size() == 1 else ADD_ONS["ranks"](model)


def unwrapped(model: PreTrainedModel) -> PreTrainedModel:
    """The model without `torch.compile`, and without PEFT's wrapper, whose forward hides the model's arguments."""
    plain: Any = getattr(model, "_orig_mod", model)
    is_adapted = hasattr(plain, "peft_config") and hasattr(plain, "get_base_model")
    return plain.get_base_model() if is_adapted else plain


def forward_arguments(model: PreTrainedModel) -> frozenset[str]:
    """The names of the arguments of a model's forward, whatever wraps it."""
    return frozenset(inspect.signature(unwrapped(model).forward).parameters)


def uncompiled(facts: ModelFacts) -> ModelFacts:
    """The same model without `torch.compile`."""
    return facts if facts.forward is facts.model else replace(facts, forward=facts.model)


def check_model(model: object) -> None:
    """Raise `ConfigError` unless this is a model.

    Raises `UnsupportedModelError`: an encoder-decoder model, or a prompt-learning adapter.
    """
    # Not `PreTrainedModel`: wrappers of one (compiled, adapted) work too.
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise ConfigError(
            f"expected a transformers model, got {type(model).__name__}: load it first with "
            "AutoModelForCausalLM.from_pretrained"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} is an encoder-decoder model: only models whose prompt and output are one text, "
            "decoder-only ones, are served; use its own generate"
        )
    # While PEFT's `generate` runs, the base model's method is replaced by one bound to the wrapper.
    wrapper = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", None)
    for owner in (model, wrapper):
        configs = getattr(owner, "peft_config", None)
        for config in configs.values() if isinstance(configs, Mapping) else ():
            if getattr(config, "is_prompt_learning", False):
                raise UnsupportedModelError(
                    f"{type(config).__name__}: adapters that learn prompts (prompt tuning, prefix tuning, p-tuning) "
                    "put vectors before the text that tree passes would leave out; adapters inside the layers, such "
                    "as LoRA, work"
                )


def active_adapters(modules: Iterable[torch.nn.Module]) -> Hashable:
    """Which adapters inside the layers (PEFT's) a model's passes run with; None where there are none.

    Raises `UnsupportedModelError`: other adapters for every row of the batch, or for some of a row's tokens.
    """
    layers: list[Any] = [module for module in modules if hasattr(module, "merged_adapters")]
    if sum(map(_drop_choosing_hooks, layers)):
        raise UnsupportedModelError(
            "adapter_names and activated LoRA give the rows or tokens of a batch different adapters, which trees "
            "would mix up: choose one adapter per call with set_adapter"
        )
    states = {(*layer.active_adapters, None, *layer.merged_adapters, layer.disable_adapters) for layer in layers}
    return frozenset(states) or None


def _drop_choosing_hooks(layer: Any) -> bool:
    """Whether PEFT's `generate` chooses adapters for rows or tokens; at an error it would leave its hooks for good."""
    hooks, names = layer._forward_pre_hooks, {"adapter_names", "alora_offsets"}
    found = [key for key, hook in hooks.items() if getattr(hook, "keywords", {}).keys() & names]
    for key in found:
        del hooks[key]
    return bool(found)


def weight_kinds(modules: Iterable[torch.nn.Module]) -> frozenset[tuple[str, ...]]:
    """The kinds of the linear layers and of their weights: other ones after a model was quantised where it is."""
    layers = [module for module in modules if hasattr(module, "in_features")]
    return frozenset((type(layer).__name__, type(getattr(layer, "weight", None)).__name__) for layer in layers)


def input_device(model: PreTrainedModel) -> torch.device:
    """The device of the input embedding; offloaded weights have none, so accelerate's hook is asked.

    Raises `UnsupportedModelError`: there are no weights yet.
    """
    embedding = model.get_input_embeddings()
    device = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    device = next(embedding.parameters()).device if device is None else torch.device(device)
    if device.type == "meta":
        raise UnsupportedModelError(
            f"{type(model).__name__} has no weights, they are on the meta device: load them with from_pretrained or "
            "accelerate's load_checkpoint_and_dispatch"
        )
    return device


def num_logits(model: PreTrainedModel) -> int:
    """V, how many logits the head returns: more than `config.vocab_size` where the head is padded."""
    head = model.get_output_embeddings()
    if head is None:  # The model does not say which module its head is.
        return model.config.get_text_config().vocab_size
    return getattr(head, "out_features", None) or next(head.parameters()).shape[0]


def is_multimodal(model: PreTrainedModel) -> bool:
    """Whether a model reads more than text."""
    modalities = getattr(model, "input_modalities", "text")
    return set([modalities] if isinstance(modalities, str) else modalities) != {"text"}


def text_modules(
    model: PreTrainedModel, modules: Mapping[str, torch.nn.Module] | None = None
) -> Mapping[str, torch.nn.Module]:
    """The modules by name, given or walked now, without those of a multimodal model's towers for images and sounds."""
    modules = dict(model.named_modules()) if modules is None else modules
    if not is_multimodal(model):
        return modules
    text = type(model.config.get_text_config())
    parts = [module for module in modules.values() if isinstance(module, PreTrainedModel)]
    towers = [part for part in parts if not isinstance(part.config.get_text_config(), text)]
    others = {module for tower in towers for module in tower.modules()}
    return {name: module for name, module in modules.items() if module not in others}


def position_table_size(model: PreTrainedModel, modules: Mapping[str, torch.nn.Module] | None = None) -> int | None:
    """The size of the model's table of learned or precomputed positions; None where they are computed (rope, alibi)."""
    sizes = []
    tokens = model.get_input_embeddings()
    for name, module in text_modules(model, modules).items():
        is_position = "wpe" in name.rsplit(".", 1)[-1] or "position" in name.rsplit(".", 1)[-1]
        if is_position and isinstance(module, torch.nn.Embedding) and module is not tokens:
            sizes.append(module.num_embeddings - getattr(module, "offset", 0))
        table = getattr(module, "embed_positions", None)
        if isinstance(table, Tensor):
            sizes.append(table.shape[0])
    return min(sizes, default=None)


def pick_layers(output: Any, layers: Sequence[int]) -> HiddenStates:
    """The hidden states of `layers` from a model's output.

    Raises:
        UnsupportedModelError: the model returns none, or several for each token.
        ConfigError: there is no such layer.
    """
    if not layers:
        return {}
    states = getattr(output, "hidden_states", None)
    if states is None:
        raise UnsupportedModelError("the model returns no hidden states, which the drafter reads")
    missing = [layer for layer in layers if not -len(states) <= layer < len(states)]
    if missing:
        raise ConfigError(f"the drafter reads the hidden states {missing} of a model that has {len(states)}")
    if any(states[layer].ndim != 3 for layer in layers):  # Gemma 3n's layers.
        shape = list(states[layers[0]].shape)
        raise UnsupportedModelError(f"hidden states must be [B, L, H], one for each token, got {shape} of the model")
    return {layer: states[layer] for layer in layers}
