"""Whether a scorer has the logits of the model's own `generate`, for single texts and for padded batches.

The self-check compares passes of the model with each other, so it cannot see what `generate` does between them: models
that prepare every token in a way of their own (moshi's sounds), that mask other slots than the padding (git), or whose
states take padding for text (DeepSeek-V4). Here a few tokens that plain `generate` emits are scored again.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel

from treespec.errors import TreespecError, UnsupportedModelError
from treespec.hf.introspect import ModelFacts, model_facts
from treespec.hf.models.capability import MeasuredOnce, warn
from treespec.hf.models.make_scorer import make_scorer
from treespec.hf.models.prompt import PromptInputs, prompt_inputs
from treespec.hf.models.selfcheck import check_prompt, check_tokens, largest_difference, least_tolerance, root_tolerance
from treespec.hf.own_hooks import MARK, own_hooks, own_modules
from treespec.protocols import Capability

NUM_NEW, NUM_PADDING = 6, 3
LEAST_TOLERANCE = 0.01
"""In standard deviations of the logits: chains of recurrent models add up in another order than single tokens."""
_REPLACED = ("_sample", "_prefill")
_OF_GENERATE = ("logits_processor", "stopping_criteria", "generation_config")
_PREPARING = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
OWN_HOOKS_TOLERANCE = 1e-3
"""Like a self-check's, which cannot be asked where hooks change what it compares with."""
_Failures = (TreespecError, RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)
_differences: MeasuredOnce[float] = MeasuredOnce()
_hooked: MeasuredOnce[str | None] = MeasuredOnce()


def check_like_generate(
    facts: ModelFacts, capability: Capability, is_padded: bool, has_plain_passes: bool = False
) -> None:
    """Raise `UnsupportedModelError` where a model's `generate` has other logits than its scorer.

    Measured once per model, `variant` and capability: for the first padded batch, and for single texts where the model
    prepares its passes by methods of its own or does not verify trees. Where plain `generate` fails on the check's few
    tokens a `TreespecWarning` says so, and the next call tries again.
    """
    for method in _REPLACED:
        if _is_own(facts.model, method):
            raise UnsupportedModelError(
                f"{facts.name} decodes by a {method} of its own, which speculation replaces: use its own generate"
            )
    is_ordinary = capability == Capability.TREE and not any(_is_own(facts.model, method) for method in _PREPARING)
    if has_plain_passes or (is_ordinary and not is_padded):
        return
    try:
        difference = _differences.get(
            facts, lambda: _difference(model_facts(facts.model), is_padded, capability), is_padded, capability
        )
    except _PlainGenerateError as error:
        warn(facts, f"could not be compared with its own generate, which fails on a few tokens: {error}")
        return
    tolerance = max(LEAST_TOLERANCE, root_tolerance(facts))
    if not difference <= tolerance:  # Or NaN.
        found = f"has logits in its own generate that differ by {difference:.2g} standard deviations, more than"
        advice = "give its prompts one by one" if is_padded else "use its own generate"
        what = " of padded batches" if is_padded else ""
        raise UnsupportedModelError(f"{facts.name} {found} {tolerance:.2g}, from those{what} here: {advice}")


def why_plain_by_hooks(facts: ModelFacts) -> str | None:
    """Why the caller's own hooks and modules need the passes of plain `generate`; None: they do not, or there are none.

    A few tokens that plain `generate` emits under them are scored again by a tree. Measured once per model and set of
    hooks and modules.
    """
    if not facts.hooks:
        return None
    effect = _hooked.get(facts, lambda: _hooks_effect(facts))
    if effect is None:
        return None
    found = {"forward hooks": own_hooks(facts.modules), "modules of other packages": own_modules(facts.modules)}
    names = " and ".join(f"{kind} ({', '.join(sorted(own.values()))})" for kind, own in found.items() if own)
    return f"of {names}: {effect}; docs/models.md says how to write those that trees can serve"


def _hooks_effect(facts: ModelFacts) -> str | None:
    """The fault of tree passes under the hooks and modules, or why none can be measured; None: they are right.

    Modules are compared in half precision too, up to its rounding: many are kernels that only round otherwise.
    """
    if facts.dtype not in (torch.float32, torch.float64) and own_hooks(facts.modules):
        return f"rounding to {str(facts.dtype).removeprefix('torch.')} hides what they do, and none has `{MARK} = True`"
    try:
        difference = _difference(facts, False, Capability.TREE)
    except torch.OutOfMemoryError:
        raise
    except (*_Failures, _PlainGenerateError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return f"passes over several tokens fail ({first_line})"
    if difference <= max(OWN_HOOKS_TOLERANCE, least_tolerance(facts, facts.dtype)):
        return None
    return f"passes over several tokens have logits that differ by {difference:.2g} standard deviations"


class _PlainGenerateError(Exception):
    """Plain `generate` fails on a few tokens."""


def _is_own(model: PreTrainedModel, method: str) -> bool:
    return getattr(type(model), method, None) is not getattr(GenerationMixin, method, None)


def _difference(facts: ModelFacts, is_padded: bool, capability: Capability) -> float:
    """The largest token's difference. Raises `_PlainGenerateError`: plain `generate` fails too."""
    model: Any = facts.model
    ids, mask = _prompts(facts, is_padded)
    if model.device.type == "meta":  # Offloaded weights: transformers warns of ids on any device but the CPU.
        ids, mask = ids.cpu(), mask.cpu()
    options: dict[str, Any] = {"input_ids": ids, "attention_mask": mask.long(), "pad_token_id": 0}
    # Otherwise the model's generation_config decides, over stop strings that need a tokenizer too.
    options |= {"max_new_tokens": NUM_NEW, "min_new_tokens": NUM_NEW, "do_sample": False, "num_beams": 1}
    options |= {"num_return_sequences": 1, "use_cache": True, "stop_strings": None}
    try:
        plain = model.generate(**options, output_logits=True, return_dict_in_generate=True)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise _PlainGenerateError((str(error).splitlines() or [type(error).__name__])[0][:200]) from error
    emitted = plain.sequences[:, ids.shape[1] : -1]
    found: list[Tensor] = []

    def score(model: Any, input_ids: Tensor, **kwargs: Any) -> Tensor:
        arguments = {name: value for name, value in kwargs.items() if name not in _OF_GENERATE}
        found.append(_scored(facts, prompt_inputs(input_ids, arguments), mask, emitted, capability))
        return input_ids

    model.generate(**options, custom_generate=score)
    pairs = zip(found[0].to(plain.sequences.device), torch.stack(plain.logits, dim=1), strict=True)
    return float(torch.stack([largest_difference(*rows) for rows in pairs]).max())


def _prompts(facts: ModelFacts, is_padded: bool) -> tuple[Int[Tensor, "B P"], Bool[Tensor, "B P"]]:
    """One prompt, or two of which one is shorter, and their mask."""
    ids = check_prompt(facts)
    ids = torch.cat([ids, check_tokens(facts, ids.shape[1], seed=1)]) if is_padded else ids
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1:, :NUM_PADDING] = False
    return ids.masked_fill(~mask, 0), mask


def _scored(
    facts: ModelFacts,
    prompt: PromptInputs,
    mask: Bool[Tensor, "B P"],
    tokens: Int[Tensor, "B N"],
    capability: Capability,
) -> Float[Tensor, "B N+1 V"]:
    """The logits after the prompts and after the tokens that follow, by the passes of a call's target."""
    # A model that decodes long texts plainly decodes others by chains.
    longest_text = None if capability == Capability.PLAIN else 0
    scorer = make_scorer(facts, prompt=prompt, longest_text=longest_text)
    device = prompt.ids.device  # A spread model reads prompts on the CPU.
    logits = [scorer.prefill(prompt.ids, mask).logits.to(device)]
    width = 1 if scorer.capability == Capability.PLAIN else tokens.shape[1] // 2
    for part in tokens.split(width, dim=1):
        nodes, parents, path = _with_siblings(part, facts) if scorer.capability == Capability.TREE else _chain(part)
        logits.append(scorer.extend(nodes, parents).logits[:, path].to(device))
        scorer.commit([path] * len(part))
    return torch.cat(logits, dim=1)


def _chain(tokens: Int[Tensor, "B L"]) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"], list[int]]:
    length = tokens.shape[1]
    return tokens, torch.arange(-1, length - 1, device="cpu").expand(len(tokens), -1), list(range(length))


def _with_siblings(
    tokens: Int[Tensor, "B L"], facts: ModelFacts
) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B N"], list[int]]:
    """A tree with the tokens as a path, each after a sibling, N = 2 L - 1: its tokens, its parents and the path."""
    siblings = (tokens + 1) % facts.config.vocab_size
    nodes = torch.stack([siblings, tokens], dim=2).flatten(1)[:, 1:]
    parents = [-1, *(2 * (node // 2) for node in range(nodes.shape[1] - 1))]
    return nodes, torch.tensor(parents, device="cpu").expand(len(nodes), -1), list(range(0, nodes.shape[1], 2))
