"""Every field of transformers' `GenerationConfig`, and `assistant_model`: served, without effect, or refused by name.

Other entries of a file, which the installed class does not have, are ignored, as plain `generate` ignores them.
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

_OTHER_MODES = ("prompt_lookup_num_tokens", "assistant_early_exit", "dola_layers", "constraints", "force_words_ids")

SERVED = """
    max_length max_new_tokens min_length min_new_tokens max_time stop_strings
    do_sample temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff
    repetition_penalty encoder_repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size
    bad_words_ids renormalize_logits forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens sequence_bias watermarking_config
    num_return_sequences output_hidden_states output_scores output_logits return_dict_in_generate
    pad_token_id bos_token_id eos_token_id
"""
WITHOUT_EFFECT = """
    use_cache cache_config max_cache_len decoder_start_token_id transformers_version
    early_stopping length_penalty diversity_penalty num_beam_groups
    num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold max_matching_ngram_size
    assistant_lookbehind target_lookbehind assistant_ensemble_weight speculation_type
    compile_config disable_compile continuous_batching_config low_memory prefill_chunk_size
"""
REFUSED = {
    "num_beams": Refused(_MODE.advice, harmless=(1,)),
    "use_mtp": _MODE,
    "cache_implementation": Refused(
        "the cache must allow access to single rows; use 'dynamic' or 'static'",
        harmless=("dynamic", "dynamic_full", "hybrid", "static"),
    ),
    "token_healing": Refused("give the prompts that model.heal_tokens(input_ids, tokenizer) returns"),
    "guidance_scale": Refused("guidance keeps state between calls, which branches of a tree cannot share", (1,)),
    "output_attentions": Refused(
        "attentions have no meaning for tree passes, whose nodes attend in one pass",
        applies=lambda fields: bool(fields.get("return_dict_in_generate")),
    ),
    "is_assistant": _MODE,
    "assistant_model": Refused("TreeSpeculation(assistant_model) drafts with it", harmless=()),
    "penalty_alpha": Refused(_MODE.advice, harmless=(0,), applies=lambda fields: not fields.get("do_sample")),
    **dict.fromkeys(_OTHER_MODES, Refused(_MODE.advice, harmless=())),
}
FIELDS: dict[str, Effect] = {
    **dict.fromkeys(SERVED.split(), "served"),
    **dict.fromkeys(WITHOUT_EFFECT.split(), "no effect"),
    **REFUSED,
}


@cache
def class_defaults() -> dict[str, tuple[object, ...]]:
    """The fields of the installed class, and what each holds where nobody has set it."""
    later = getattr(GenerationConfig, "_get_default_generation_params", dict)()
    fields = {name: value for name, value in vars(GenerationConfig()).items() if not name.startswith("_")}
    return {name: (None, value, later.get(name)) for name, value in fields.items()}


def check_fields(fields: Mapping[str, object]) -> None:
    """Raise `UnsupportedModeError` for a field that is set to what speculation does not serve, or that is unknown."""
    for name, refused in REFUSED.items():
        value = fields.get(name)
        if value not in (None, *refused.harmless) and refused.applies(fields):
            shown = repr(value).partition("\n")[0]  # A model's has many.
            raise UnsupportedModeError(f"{name}={shown} is not served: {refused.advice}; leave it out or None")
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
    return fields | {name: value for name, value in arguments.items() if name in {*class_defaults(), *REFUSED}}
