"""`check`: the self-test of a model with speculation."""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.checks import check_count, check_number, installed_versions
from treespec.errors import ConfigError, TreespecWarning
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.generation.speculation import TreeSpeculation
from treespec.hf.introspect import model_facts
from treespec.hf.loading.as_drafter import AnyDrafter
from treespec.lab.selftest import texts
from treespec.lab.selftest.passes import check_passes
from treespec.lab.selftest.report import FAILED, OK, WARNING, CheckReport, Finding, Outcome
from treespec.lab.selftest.sampling import check_given_sampling, check_sampling
from treespec.lab.selftest.subject import Subject, make_prompts
from treespec.policies.control.contract import StepControl
from treespec.testing import TOY_SCHEMES, Case, assert_lossless, supported_cases
from treespec.verification import get_rule

TOY_CASES = [Case(scheme, shape, "generic") for scheme in TOY_SCHEMES for shape in ("chain", "2x2")]


def check_rule(subject: Subject) -> Outcome:
    """The rule's output distribution by enumeration of all its random choices on toy trees."""
    names = ("target_walk", "traversal") if subject.verification == "auto" else (subject.verification,)
    errors = []
    for rule in map(get_rule, names):
        for case, drafter, target in supported_cases(rule, cases=TOY_CASES):
            try:
                errors.append(float(assert_lossless(rule, drafter, target).error))
            except AssertionError as error:
                return FAILED, f"rule '{rule.name}' on {case.scheme} children ({case.shape}): {str(error)[:160]}"
    return OK, f"lossless in {len(errors)} cases, greatest error {max(errors, default=0.0):.1e}"


CHECKS: dict[str, Callable[[Subject], Outcome]] = {
    "tree logits": check_passes,
    "near-ties": texts.check_near_ties,
    "greedy texts": texts.check_greedy,
    "rope threshold": texts.check_rope,
    "cache after many rounds": texts.check_cache,
    "batch, rows leave": texts.check_batch,
    "processors along paths": texts.check_processors,
    "seeds": texts.check_seeds,
    "rule, by enumeration": check_rule,
    "sampling": check_sampling,
    "greedy texts, given drafter": texts.check_drafter,
    "sampling, given drafter": check_given_sampling,
}
"""In the order in which a failure of one explains those of the next."""


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
    is tested too.

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
        on_progress: called with the name of the running check and the share of all checks that is done.

    Raises `ConfigError`: arguments of the wrong kind or out of range. What the tested parts raise becomes a finding.
    """
    if unknown := set(only or ()) - set(CHECKS):
        raise ConfigError(f"no check is called {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    facts = model_facts(model)
    check_number("num_new", num_new, lambda n: isinstance(n, int) and n >= 8, "be an int of at least 8")
    check_count("num_samples", num_samples)
    check_number("seconds", seconds, lambda s: s > 0, "be positive")
    tested = None if speculation is None else _tested(speculation, seed)
    with evaluation_mode(facts.model), torch.random.fork_rng(), torch.no_grad():
        rows = make_prompts(facts, tokenizer, prompts)
        subject = Subject(facts, tested, rows, num_new, seed, num_samples, seconds)
        names = [name for name in CHECKS if _applies(name, subject) and (only is None or name in only)]
        advance = partial(_progress, on_progress, names)
        findings = [finding for name in names for finding in _run(name, subject, partial(advance, name))]
    return CheckReport(_about(subject, model), (*_warnings(subject, model.training), *findings))


def _progress(report: Callable[[str, float], None], names: list[str], name: str, share: float) -> None:
    """Report a share of one check as one of all checks."""
    report(name, (names.index(name) + min(share, 1.0)) / len(names))


def _tested(speculation: TreeSpeculation | AnyDrafter | Sequence[AnyDrafter], seed: int) -> TreeSpeculation:
    """The drafter, tree and rule of what was given; a tree of 16 for a control, which may decode plainly and test
    nothing then."""
    given = speculation if isinstance(speculation, TreeSpeculation) else TreeSpeculation(speculation)
    tree = given.options.policy
    parts = {"tree": 16 if isinstance(tree, StepControl) else tree, "verification": given.options.verification}
    return TreeSpeculation(given.drafter, **parts, seed=seed)


def _applies(name: str, subject: Subject) -> bool:
    """Under a lossy rule sampled texts are not meant to follow the target's distribution."""
    is_sampled = name.startswith(("sampling", "rule"))
    return (subject.speculation is not None or "given" not in name) and (_is_lossless(subject) or not is_sampled)


def _run(name: str, subject: Subject, advance: Callable[[float], None]) -> Iterator[Finding]:
    """Run one check; yields its finding, then one for each warning meanwhile."""
    advance(0.0)
    subject.advance, start = advance, perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TreespecWarning)
        try:
            found = CHECKS[name](subject)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            found = FAILED, f"stopped by {type(error).__name__}: {first_line[:300]}"
    yield Finding(name, *found, perf_counter() - start)
    said = {str(w.message) for w in caught if issubclass(w.category, TreespecWarning)}
    yield from (Finding(f"warning during {name}", WARNING, text) for text in sorted(said))
    advance(1.0)


def _is_lossless(subject: Subject) -> bool:
    return subject.verification == "auto" or get_rule(subject.verification).is_lossless


def _warnings(subject: Subject, is_training: bool) -> list[Finding]:
    """Warnings about settings that limit exactness without being wrong."""
    found = {}
    if subject.facts.dtype in (torch.float16, torch.bfloat16):
        found["half precision"] = (
            f"in {subject.facts.dtype} plain passes of different shapes differ: near-ties are frequent"
        )
    if is_training:
        found["training mode"] = "the self-test and speculation run in evaluation mode: call model.eval()"
    if not _is_lossless(subject):
        name = get_rule(subject.verification).name
        found["lossy rule"] = f"rule '{name}' is lossy: sampled texts do not follow the target"
    return [Finding(name, WARNING, text) for name, text in found.items()]


def _about(subject: Subject, model: Any) -> dict[str, Any]:
    parts = {}
    if subject.speculation is not None:
        options = subject.speculation.options
        parts = {"drafter": type(options.drafter).__name__, "tree": type(options.policy).__name__}
    return {
        "model": f"{subject.facts.name} {getattr(model, 'name_or_path', '')}".strip(),
        "dtype": str(subject.facts.dtype).removeprefix("torch."),
        "device": str(subject.facts.device),
        "attention": getattr(subject.facts.config, "_attn_implementation", None),
        **parts,
        "rule": "auto" if subject.verification == "auto" else get_rule(subject.verification).name,
        "seed": subject.seed,
        "versions": installed_versions("treespec"),
    }
