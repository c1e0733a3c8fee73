"""Causes in the drafts: too expensive, wrong, too deep, missing, or of a distribution that does not fit the target."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from treespec.lab.diagnosis.evidence import Evidence, Fit
from treespec.lab.diagnosis.speed import LEAST_GAIN, Case, Cause

USUAL_ACCEPTANCE = 0.6
"""The acceptance of a good drafter's children below an accepted node, at every depth."""
LOW_ACCEPTANCE = 0.4
USUAL_DRAFT, EXPENSIVE_DRAFT = 0.25, 0.5
"""The time of drafting, in passes of the target over one node per row."""
LEAST_COUNT = 10
"""The fewest drafts from which a share is computed."""
LEAST_FITS = 40
SURE, NEVER = 0.3, 0.03
"""Children that the draft is this sure of, and a target that gives them next to nothing."""
RELATED = 0.7
"""Correlation of the logarithms of both probabilities above which they differ by a temperature."""
LEAST_FACTOR, MOST_FACTOR = 0.7, 1.4
UNCERTAIN = 0.35
"""Mean probability of the emitted tokens below which the target itself hardly knows what comes next."""
FITTING_ACCEPTANCE = 0.7


def draft_expensive(case: Case) -> Cause | None:
    """Attainable: a quarter of a plain pass."""
    speed, plain = case.speed, case.speed.plain_pass
    if speed.draft <= EXPENSIVE_DRAFT * plain:
        return None
    evidence = (
        f"drafting takes {speed.draft:.1f} ms of a step's {speed.step:.1f} ms, {speed.draft / plain:.2f} times the "
        f"target's own pass over one node ({plain:.1f} ms)"
    )
    change = (
        "draft with less: a smaller draft model, a trained head, recycling or suffix lookup; fewer levels "
        '(Chain(2), BestFirst(n, depth=2)), or tree="auto", which weighs this at every step; '
        "treespec.optimize(draft) on a CPU"
    )
    return Cause("draft too expensive", evidence, change, speed.but(draft=USUAL_DRAFT * plain))


def acceptance_low(case: Case) -> Cause | None:
    """Attainable: the usual acceptance at every depth that was drafted."""
    run, first = case.run, case.run.acceptance(1)
    if run.tried(1) < LEAST_COUNT or first >= LOW_ACCEPTANCE:
        return None
    evidence = (
        f"of {run.tried(1)} drafts {first:.0%} have the right first token; a pass gives {run.tokens_per_step:.2f} "
        f"tokens{_shares_by_drafter(run)}"
    )
    change = (
        "another drafter, best one trained for this model (treespec train; treespec adapt trains a head or MTP layer "
        "further on your prompts) or a model of the same kind; for code, summaries and editing also SuffixLookup(); "
        "several can be merged: TreeSpeculation([a, b])"
    )
    return Cause("acceptance low", evidence, change, case.speed.but(tokens=case.with_acceptance(USUAL_ACCEPTANCE)))


def drafts_too_deep(case: Case) -> Cause | None:
    """Attainable: the same drafts, cut where acceptance falls."""
    run, speed, deepest = case.run, case.speed, max(case.run.stats.num_drafted_at_depth, default=0)
    depths = [d for d in range(2, deepest + 1) if run.tried(d) >= LEAST_COUNT and run.acceptance(d) < LOW_ACCEPTANCE]
    # A draft that was rejected earlier has levels too, which nothing could come of.
    reached = [d for d in range(2, deepest + 1) if run.tried(d) < LEAST_COUNT]
    found = min([*depths, *reached], default=0)
    if not found or run.acceptance(1) < LOW_ACCEPTANCE or not run.levels_per_row:
        return None
    kept = min((found - 1) / run.levels_per_row, 1.0)
    lost = sum(count for depth, count in run.stats.num_accepted_at_depth.items() if depth >= found) / run.num_rows
    target = case.pass_ms(1 + (run.nodes_per_row - 1) * kept)
    shares = ", ".join(f"{run.acceptance(d):.0%} at depth {d}" for d in range(1, found + 1) if run.tried(d))
    evidence = (
        f"drafts are {run.levels_per_row:.1f} levels deep, and few are right from depth {found} on: {shares}; what "
        f"lies there gives {lost:.2f} tokens a step"
    )
    change = f'shallower drafts: Chain({found - 1}) or BestFirst(n, depth={found - 1}), or tree="auto"'
    speedup = speed.but(draft=speed.draft * kept, target=min(target, speed.target), tokens=speed.tokens - lost)
    return Cause("drafts too deep", evidence, change, speedup)


def one_drafter_wrong(case: Case) -> Cause | None:
    """Attainable: the same without that drafter; drafting gets cheaper by its share, which is not measured apart."""
    run, speed = case.run, case.speed
    drafters = run.trace.by_drafter
    rates = {name: count["accepted"] / max(count["nodes"], 1) for name, count in drafters.items()}
    for name, count in drafters.items():
        others = max((rate for other, rate in rates.items() if other != name), default=0.0)
        share = count["alone"] / max(run.stats.num_draft_tokens, 1)
        rate = count["accepted_alone"] / max(count["alone"], 1)
        if share < 0.3 or rate > 0.05 or others <= 4 * rates[name]:  # Where all are wrong, no one is to blame.
            continue
        nodes = run.nodes_per_row - count["alone"] / run.num_rows
        target = min(case.pass_ms(nodes), speed.target)
        tokens = speed.tokens - count["accepted_alone"] / run.num_rows
        evidence = f"{name} alone proposed {share:.0%} of all nodes, of which {rate:.1%} were accepted"
        evidence += _shares_by_drafter(run)
        draft = speed.draft * (1 - 1 / len(drafters))
        return Cause(
            "a drafter that is hardly ever right",
            evidence,
            f"leave {name} out, or train or warm it for this model",
            speed.but(draft=draft, target=target, tokens=tokens),
        )
    return None


def hardly_any_drafts(case: Case) -> Cause | None:
    """Attainable: drafts as good as the few that there were, in every step; with "auto" usual drafts."""
    run, speed = case.run, case.speed
    if run.undrafted_share < 0.6:
        return None
    drafted = max(1 - run.undrafted_share, 1 / run.num_rows)
    evidence = f"{run.undrafted_share:.0%} of the steps had no draft"
    if run.about.get("is_auto"):
        evidence += ': tree="auto" predicted that none would be faster than plain decoding'
        change = (
            "a drafter that is right more often or costs less: treespec tune compares those that a model can have; "
            "TreeSpeculation(..., tree=8) shows what drafting at every step gives"
        )
        usual = 1 + USUAL_ACCEPTANCE + USUAL_ACCEPTANCE**2
        return Cause("hardly any drafts", evidence, change, speed.but(tokens=max(usual, speed.tokens)))
    change = (
        "this drafter finds nothing to draft in such texts: merge it with one that always drafts, "
        "TreeSpeculation([it, TokenRecycling()]) or a trained head"
    )
    if "TokenRecycling" in str(run.about.get("drafter")):
        change = (
            "these drafters have not seen such text yet: warm them (treespec warm-up), go on with texts of the same "
            "kind, or merge them with a trained head"
        )
    tokens = 1 + max((speed.tokens - 1) / drafted, USUAL_ACCEPTANCE)
    return Cause("hardly any drafts", evidence, change, speed.but(tokens=tokens))


def _shares_by_drafter(run: Evidence) -> str:
    counts = run.trace.by_drafter
    if len(counts) < 2:
        return ""
    return "; accepted of what each drafter proposed: " + ", ".join(
        f"{name} {count['accepted'] / max(count['nodes'], 1):.1%} of {count['nodes']}" for name, count in counts.items()
    )


def other_tokens(case: Case) -> Cause | None:
    """The draft is sure of tokens that the target never takes."""
    sure = [fit for fit in case.run.trace.fits if fit.draft >= SURE]
    if len(sure) < LEAST_FITS / 2 or fmean(fit.target for fit in sure) >= NEVER:
        return None
    evidence = (
        f"the draft gives {len(sure)} tokens {fmean(fit.draft for fit in sure):.0%} on average and the target "
        f"{fmean(fit.target for fit in sure):.2%}: they do not mean the same to both"
    )
    change = (
        "the draft's tokenizer or chat template is another one: "
        "treespec.hf.make_draft_model(draft, tokenizer=..., target_tokenizer=...), or a draft of the target's own kind"
    )
    return Cause("draft's tokens do not fit", evidence, change, _fitting(case))


def other_temperature(case: Case) -> Cause | None:
    """Both agree on the order of tokens, and one is much flatter: log target = factor x log draft + a constant."""
    drawn = [fit for fit in case.run.trace.fits if fit.is_sampled and min(fit.draft, fit.target) > 0]
    if len(drawn) < LEAST_FITS:
        return None
    factor, correlation = _line(drawn)
    if correlation < RELATED or LEAST_FACTOR <= factor <= MOST_FACTOR:
        return None
    is_flat = factor > 1
    evidence = (
        f"the draft's distribution is much {'flatter' if is_flat else 'sharper'} than the target's: over {len(drawn)} "
        f"drawn tokens its temperature is about {factor:.2f} times the one that fits"
    )
    change = (
        f"draft with the caller's own temperature, not with {'a higher' if is_flat else 'a lower'} temperature "
        "(treespec.drafters.base.path_probs applies them; DraftModel does so by itself)"
    )
    return Cause("draft's temperature does not fit", evidence, change, _fitting(case))


def hostile_text(case: Case) -> Cause | None:
    """The target's own distributions are flat. Attainable: plain decoding, where drafts cost more than they give."""
    probs = case.run.trace.emitted_probs
    if len(probs) < LEAST_FITS / 2 or fmean(probs) >= UNCERTAIN:
        return None
    evidence = (
        f"the target gave the tokens that it emitted {fmean(probs):.0%} on average: it hardly knows what comes next, "
        "so no drafter can"
    )
    change = (
        'little helps but a lower temperature: tree="auto" decodes such texts plainly and drafts where they get '
        "predictable; wide and shallow trees lose least"
    )
    return Cause("hostile text", evidence, change, max(1.0, case.speed.speedup))


def explanation(case: Case) -> Cause | None:
    """Why acceptance is low, the most particular first; None: nothing known explains it."""
    return other_tokens(case) or other_temperature(case) or hostile_text(case)


def temperature_alone(case: Case) -> Cause | None:
    """A temperature that costs much even where acceptance is not low."""
    cause = other_temperature(case)
    return cause if cause is not None and cause.speedup >= LEAST_GAIN * case.speed.speedup else None


def _line(fits: Sequence[Fit]) -> tuple[float, float]:
    """The slope of log target over log draft, and their correlation."""
    x, y = np.log([[fit.draft, fit.target] for fit in fits]).T
    if x.std() < 1e-6 or y.std() < 1e-6:
        return 1.0, 0.0
    return float(y.std() / x.std()), float(np.corrcoef(x, y)[0, 1])


def _fitting(case: Case) -> float:
    return case.speed.but(tokens=max(case.with_acceptance(FITTING_ACCEPTANCE), case.speed.tokens))


DRAFT_CAUSES = (draft_expensive, acceptance_low, drafts_too_deep, one_drafter_wrong, hardly_any_drafts)
