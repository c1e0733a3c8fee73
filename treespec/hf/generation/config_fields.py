"""Every field of transformers' `GenerationConfig`: served, without effect, or refused by name; the only such table.

Fields are in the order of `GenerationConfig.__init__`. Other entries of a file, which the installed class does not
have, are ignored as by plain `generate`, which does not read them.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Literal

import transformers
from transformers import GenerationConfig, PreTrainedModel

from treespec.errors import UnsupportedModeError


@dataclass(frozen=True)
class Refused:
    """A field that would make plain `generate` do what speculation does not.

    Attributes:
        advice: what to do instead.
        harmless: values, besides None, with which it changes nothing.
        applies: whether the other fields let it have an effect.
    """

    advice: str
    harmless: tuple[object, ...] = (False,)
    applies: Callable[[Mapping[str, object]], bool] = lambda fields: True


Effect = Literal["served", "no effect"] | Refused
"""Fields that only refused modes read, and those that decide how passes are run, have no effect on the text.

Models whose text depends on the latter are known by name: `decode` refuses them with those fields.
"""

_MODE = Refused("speculation does greedy decoding and sampling only, no beams and none of transformers' assisted modes")

FIELDS: dict[str, Effect] = {
    # Length
    "max_length": "served",
    "max_new_tokens": "served",
    "min_length": "served",
    "min_new_tokens": "served",
    "early_stopping": "no effect",
    "max_time": "served",
    "stop_strings": "served",
    # Mode
    "do_sample": "served",
    "num_beams": Refused(_MODE.advice, harmless=(1,)),
    "use_mtp": _MODE,
    # Cache
    "use_cache": "no effect",
    "cache_implementation": Refused(
        "the cache must allow access to single rows; use 'dynamic' or 'static'",
        harmless=("dynamic", "dynamic_full", "hybrid", "static"),
    ),
    "cache_config": "no effect",
    "max_cache_len": "no effect",
    # Scores
    "temperature": "served",
    "top_k": "served",
    "top_p": "served",
    "min_p": "served",
    "top_h": "served",
    "typical_p": "served",
    "epsilon_cutoff": "served",
    "eta_cutoff": "served",
    "repetition_penalty": "served",
    "encoder_repetition_penalty": "served",
    "length_penalty": "no effect",
    "no_repeat_ngram_size": "served",
    "bad_words_ids": "served",
    "renormalize_logits": "served",
    "forced_bos_token_id": "served",
    "forced_eos_token_id": "served",
    "remove_invalid_values": "served",
    "exponential_decay_length_penalty": "served",
    "suppress_tokens": "served",
    "begin_suppress_tokens": "served",
    "sequence_bias": "served",
    "token_healing": Refused("give the prompts that model.heal_tokens(input_ids, tokenizer) returns"),
    "guidance_scale": Refused("guidance keeps state between calls, which branches of a tree cannot share", (1,)),
    "watermarking_config": "served",
    # Output
    "num_return_sequences": "served",
    "output_attentions": Refused(
        "attentions have no meaning for tree passes, whose nodes attend in one pass",
        applies=lambda fields: bool(fields.get("return_dict_in_generate")),
    ),
    "output_hidden_states": "served",
    "output_scores": "served",
    "output_logits": "served",
    "return_dict_in_generate": "served",
    # Special tokens
    "pad_token_id": "served",
    "bos_token_id": "served",
    "eos_token_id": "served",
    # Encoder-decoder models
    "encoder_no_repeat_ngram_size": "served",
    "decoder_start_token_id": "no effect",
    # transformers' own assisted modes
    "is_assistant": _MODE,
    "num_assistant_tokens": "no effect",
    "num_assistant_tokens_schedule": "no effect",
    "assistant_confidence_threshold": "no effect",
    "prompt_lookup_num_tokens": Refused(_MODE.advice, harmless=()),
    "max_matching_ngram_size": "no effect",
    "assistant_early_exit": Refused(_MODE.advice, harmless=()),
    "assistant_lookbehind": "no effect",
    "target_lookbehind": "no effect",
    "assistant_ensemble_weight": "no effect",
    "speculation_type": "no effect",
    # Performance
    "compile_config": "no effect",
    "disable_compile": "no effect",
    "continuous_batching_config": "no effect",
    "low_memory": "no effect",
    # Modes that transformers has moved out
    "penalty_alpha": Refused(_MODE.advice, harmless=(0,), applies=lambda fields: not fields.get("do_sample")),
    "dola_layers": Refused(_MODE.advice, harmless=()),
    "diversity_penalty": "no effect",
    "num_beam_groups": "no effect",
    "constraints": Refused(_MODE.advice, harmless=()),
    "force_words_ids": Refused(_MODE.advice, harmless=()),
    "prefill_chunk_size": "no effect",
    # About the file
    "transformers_version": "no effect",
}


@cache
def class_defaults() -> dict[str, tuple[object, ...]]:
    """The fields of the installed class, and what each holds where nobody has set it."""
    later = getattr(GenerationConfig, "_get_default_generation_params", dict)()
    fields = {name: value for name, value in vars(GenerationConfig()).items() if not name.startswith("_")}
    return {name: (None, value, later.get(name)) for name, value in fields.items()}


def check_fields(fields: Mapping[str, object]) -> None:
    """Raise `UnsupportedModeError` for a field that is set to what speculation does not serve, or that is unknown."""
    for name, effect in FIELDS.items():
        value = fields.get(name)
        if isinstance(effect, Refused) and value not in (None, *effect.harmless) and effect.applies(fields):
            raise UnsupportedModeError(f"{name}={value!r} is not served: {effect.advice}; leave it out or None")
    for name, defaults in class_defaults().items():
        if name not in FIELDS and fields.get(name) not in defaults:
            raise UnsupportedModeError(
                f"{name}={fields[name]!r} is a field of GenerationConfig in transformers {transformers.__version__} "
                "that treespec does not know: leave it out or None, or use the model's own generate"
            )


def own_stop_strings(
    model: PreTrainedModel, arguments: Mapping[str, object]
) -> tuple[str | list[str] | None, dict[str, object]]:
    """The stop strings of a call's generation_config, else of the model's, and its arguments without either.

    transformers cannot hand the tokenizer for them to a `custom_generate` object.
    """
    config, own = arguments.get("generation_config"), model.generation_config.stop_strings
    given, changed = None, dict(arguments)
    if isinstance(config, GenerationConfig) and config.stop_strings is not None:
        given = config.stop_strings
        changed["generation_config"] = config = copy(config)
        config.stop_strings = None
    if own is not None:
        changed["stop_strings"] = None  # The model's own would fill a None of the config.
    return given or own, changed


def given_fields(model: PreTrainedModel, arguments: Mapping[str, object]) -> dict[str, object]:
    """The fields of a call of `model.generate`, from its arguments, its generation_config and the model's own.

    In this order, as transformers reads them; a None counts in the arguments only.
    """
    layers = [vars(model.generation_config), vars(arguments.get("generation_config") or GenerationConfig())]
    fields = {name: value for layer in layers for name, value in layer.items() if value is not None}
    return fields | {name: value for name, value in arguments.items() if name in class_defaults()}
