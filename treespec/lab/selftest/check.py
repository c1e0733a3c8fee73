"""`check`: the self-test of a model with speculation."""

import warnings
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.checks import check_count, check_number
from treespec.errors import ConfigError, TreespecWarning
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.introspect import evaluation_mode, model_facts
from treespec.hf.loading.as_drafter import AnyDrafter
from treespec.lab.selftest import texts
from treespec.lab.selftest.passes import check_passes
from treespec.lab.selftest.report import FAILED, OK, WARNING, CheckReport, Finding
from treespec.lab.selftest.sampling import Sampler, check_sampling
from treespec.lab.selftest.subject import Subject, make_prompts
from treespec.policies.control.contract import StepControl
from treespec.testing import TOY_SCHEMES, Case, assert_lossless, supported_cases
from treespec.verification import get_rule

TOY_CASES = [Case(scheme, shape, "generic") for scheme in TOY_SCHEMES for shape in ("chain", "2x2")]
CHECKS = (
    "tree logits",
    "near-ties",
    "greedy texts",
    "rope threshold",
    "cache after many rounds",
    "batch, rows leave",
    "processors along paths",
    "seeds",
    "rule, by enumeration",
    "sampling",
    "greedy texts, given drafter",
    "sampling, given drafter",
)
Steps = dict[str, Callable[[], list[Finding]]]


def check(
    model: PreTrainedModel,
    speculation: TreeSpeculation | AnyDrafter | Sequence[AnyDrafter] | None = None,
    *,
    tokenizer: Any = None,
    prompts: Sequence[str | Tensor] | None = None,
    num_new: int = 32,
    num_samples: int = 2048,
    seconds: float = 20.0,
    seed: int = 0,
    only: Collection[str] | None = None,
    on_progress: Callable[[str, float], None] = lambda name, share: None,
) -> CheckReport:
    """Test whether speculation is exact with this model, here and now.

    Tree logits against path logits, greedy texts (one across the length at which rope frequencies change), the cache
    after many rounds, batches that rows leave, processors along paths, seeds, the rule by enumeration, and sampled
    continuations through the whole engine. The self-test has drafters of its own, so that it needs none; a given one
    is tested besides.

    Args:
        model: any causal language model.
        speculation: how it is to speculate: a `TreeSpeculation`, whose drafter, tree and rule are tested (its streamer
            and stop strings are left out), or a drafter. None tests the model only.
        tokenizer: for prompts that are strings; with it the own prompts are text, without it random ids.
        prompts: strings or int64 [P], at least two; what follows the last one's beginning is sampled.
        num_new: tokens of each greedy text, at least 8.
        num_samples: continuations per G-test, at most.
        seconds: of sampling per G-test, at most; as long again where a result is confirmed.
        seed: of all that is drawn.
        only: names of the checks to run, see `CHECKS`; None: all.
        on_progress: called with the name of the running check and the share of it that is done.

    Raises `ConfigError`: arguments of the wrong kind or out of range. What the tested parts raise becomes a finding.
    """
    if unknown := set(only or ()) - set(CHECKS):
        raise ConfigError(f"no check is called {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    facts = model_facts(model)
    check_number("num_new", num_new, lambda n: isinstance(n, int) and n >= 8, "be an int of at least 8")
    check_count("num_samples", num_samples)
    check_number("seconds", seconds, lambda s: s > 0, "be positive")
    tested = None if speculation is None else _tested(speculation, seed)
    options = None if tested is None else tested.options
    with evaluation_mode(facts.model), torch.random.fork_rng(), torch.no_grad():
        subject = Subject(facts, options, make_prompts(facts, tokenizer, prompts), num_new, seed)
        steps = _steps(subject, tested, num_samples, seconds, on_progress)
        findings = _run({name: run for name, run in steps.items() if only is None or name in only}, on_progress)
    return CheckReport(_about(subject, model), (*_warnings(subject, model.training), *findings))


def _tested(speculation: TreeSpeculation | AnyDrafter | Sequence[AnyDrafter], seed: int) -> TreeSpeculation:
    """The drafter, tree and rule of what was given; a tree of 16 for a control, which may decode plainly and test
    nothing then."""
    given = speculation if isinstance(speculation, TreeSpeculation) else TreeSpeculation(speculation)
    tree = given.options.policy
    parts = {"tree": 16 if isinstance(tree, StepControl) else tree, "verification": given.options.verification}
    return TreeSpeculation(given.drafter, **parts, seed=seed)


def _steps(
    subject: Subject,
    speculation: TreeSpeculation | None,
    num_samples: int,
    seconds: float,
    on_progress: Callable[[str, float], None],
) -> Steps:
    """All checks by name, in the order in which a failure of one explains those of the next."""

    def sampled(name: str, tested: TreeSpeculation | None) -> list[Finding]:
        sampler = Sampler(subject, num_samples, seconds, partial(on_progress, name))
        return check_sampling(sampler, None if tested is None else copy(tested), name)

    functions = (
        check_passes,
        texts.check_near_ties,
        texts.check_greedy,
        texts.check_rope,
        texts.check_cache,
        texts.check_batch,
        texts.check_processors,
        texts.check_seeds,
        check_rule,
    )
    steps: Steps = {name: partial(run, subject) for name, run in zip(CHECKS, functions, strict=False)}
    steps["sampling"] = partial(sampled, "sampling", None)
    if speculation is not None:
        steps["greedy texts, given drafter"] = partial(texts.check_drafter, subject, speculation)
        steps["sampling, given drafter"] = partial(sampled, "sampling, given drafter", speculation)
    if not _is_lossless(subject):  # Then sampled texts are not meant to follow the target's distribution.
        steps = {name: run for name, run in steps.items() if not name.startswith(("sampling", "rule"))}
    return steps


def check_rule(subject: Subject) -> list[Finding]:
    """The rule's output distribution by enumeration of all its random choices on toy trees."""
    rules = [get_rule(name) for name in ("target_walk", "traversal")]
    errors = [0.0]
    count = 0
    for rule in rules if subject.verification == "auto" else [get_rule(subject.verification)]:
        for case, drafter, target in supported_cases(rule, cases=TOY_CASES):
            try:
                errors.append(float(assert_lossless(rule, drafter, target).error))
                count += 1
            except AssertionError as error:
                text = f"rule '{rule.name}' on {case.scheme} children ({case.shape}): {str(error)[:160]}"
                return [Finding("rule, by enumeration", FAILED, text)]
    return [Finding("rule, by enumeration", OK, f"lossless in {count} cases, greatest error {max(errors):.1e}")]


def _run(steps: Steps, on_progress: Callable[[str, float], None]) -> list[Finding]:
    findings = []
    for name, run in steps.items():
        on_progress(name, 0.0)
        start = perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TreespecWarning)
            try:
                found = run()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                first_line = (str(error).splitlines() or [""])[0]
                found = [Finding(name, FAILED, f"stopped by {type(error).__name__}: {first_line[:300]}")]
        said = {str(w.message) for w in caught if issubclass(w.category, TreespecWarning)}
        seconds = perf_counter() - start
        findings += [Finding(f.name, f.outcome, f.text, seconds) for f in found]
        findings += [Finding(f"warning during {name}", WARNING, text) for text in sorted(said)]
        on_progress(name, 1.0)
    return findings


def _is_lossless(subject: Subject) -> bool:
    return subject.verification == "auto" or get_rule(subject.verification).is_lossless


def _warnings(subject: Subject, is_training: bool) -> list[Finding]:
    """What limits exactness without being wrong."""
    found = []
    if subject.facts.dtype in (torch.float16, torch.bfloat16):
        text = f"in {subject.facts.dtype} plain passes of different shapes differ too: near-ties are frequent"
        found.append(Finding("half precision", WARNING, text))
    if is_training:
        text = "the model is in training mode; the self-test and speculation run in evaluation mode: call model.eval()"
        found.append(Finding("training mode", WARNING, text))
    if not _is_lossless(subject):
        text = f"rule '{get_rule(subject.verification).name}' is lossy: sampled texts do not follow the target"
        found.append(Finding("lossy rule", WARNING, text))
    return found


def _about(subject: Subject, model: Any) -> dict[str, Any]:
    options = subject.options
    config = subject.facts.config
    parts = {} if options is None else {"drafter": options.drafter, "tree": options.policy}
    rule = "auto" if subject.verification == "auto" else get_rule(subject.verification).name
    return {
        "model": f"{subject.facts.name} {getattr(model, 'name_or_path', '')}".strip(),
        "dtype": str(subject.facts.dtype).removeprefix("torch."),
        "device": str(subject.facts.device),
        "attention": getattr(config, "_attn_implementation", None),
        **{name: type(part).__name__ for name, part in parts.items()},
        "rule": rule,
        "seed": subject.seed,
        "versions": {name: version(name) for name in ("treespec", "torch", "transformers")},
    }
