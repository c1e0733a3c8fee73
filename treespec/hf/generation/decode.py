"""The engine's `Run` for one call of `generate`."""

from collections.abc import Iterator

from transformers import StoppingCriteriaList
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor
from transformers.generation.stopping_criteria import StopStringCriteria

from treespec.engine.loop import Run
from treespec.hf.add_ons import ADD_ONS, AddOn
from treespec.hf.generation.call import Call
from treespec.hf.generation.output import Outputs
from treespec.hf.generation.processors import BranchProcessor, path_processors
from treespec.hf.generation.progress import watchers
from treespec.hf.generation.stopping import TreeStopping
from treespec.hf.generation.target import make_target
from treespec.policies.wrapping import as_chain
from treespec.protocols import Capability


def run_of(call: Call, outputs: Outputs) -> Run:
    """The engine's run of a call, watched by what collects its outputs and by all that its options name.

    Raises `TreespecError`: see `make_target`, `path_processors`, `Run`.
    """
    target, drafter, processors = make_target(call), call.drafter, call.processors
    vocab_size, constraints = target.vocab_size, list(_constraints(call))
    for add_on in [*constraints, *(one for one in call.observers if isinstance(one, AddOn))]:
        drafter, processors = add_on.for_draft(drafter), add_on.for_paths(processors)
    return Run(
        target,
        drafter,
        # Images may have ids outside the vocabulary, which drafters do not know.
        prompt_ids=call.input_ids.masked_fill(call.input_ids >= vocab_size, 0),
        prompt_mask=call.mask,
        stopping=TreeStopping(
            criteria_of(call),
            call.num_rows,
            target.max_positions,
            outputs.scores_of,
            call.facts.ranks,
            getattr(target, "last_length", None),
        ),
        policy=as_chain(call.policy) if target.capability == Capability.CHAIN else call.policy,
        verification=call.verification,
        processors=path_processors(processors, call.input_ids, call.mask, vocab_size),
        is_sampling=bool(call.config.do_sample),
        seed=call.seed,
        observers=[outputs, *constraints, *watchers(call)],
        ranks=call.facts.ranks,
    )


def _constraints(call: Call) -> Iterator[AddOn]:
    """The add-on for grammars and prefix functions, if the call's processors include any."""
    kinds = BranchProcessor, PrefixConstrainedLogitsProcessor
    if any(isinstance(processor, kinds) for processor in call.processors):
        yield ADD_ONS["constraints"](call)


def criteria_of(call: Call) -> StoppingCriteriaList:
    """The call's own and the stop strings."""
    if call.stop_strings is None:
        return call.criteria
    strings = [call.stop_strings] if isinstance(call.stop_strings, str) else list(call.stop_strings)
    own = StopStringCriteria(call.tokenizer, strings)  # pyright: ignore[reportArgumentType]
    return StoppingCriteriaList([*call.criteria, own])
