"""Why drafts are wrong: a draft distribution that does not fit the target's, or a text that nobody could draft."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from treespec.lab.diagnosis.cause import LEAST_GAIN, Cause
from treespec.lab.diagnosis.evidence import Fit
from treespec.lab.diagnosis.speed import Case

LEAST_FITS = 40
SURE, NEVER = 0.3, 0.03
"""Children that the draft is this sure of, and a target that gives them next to nothing."""
RELATED = 0.7
"""Correlation of the logarithms of both probabilities above which they differ by a temperature."""
LEAST_FACTOR, MOST_FACTOR = 0.7, 1.4
UNCERTAIN = 0.35
"""Mean probability of the emitted tokens below which the target itself hardly knows what comes next."""
FITTING_ACCEPTANCE = 0.7


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
        "(treespec.drafters.path_probs applies them; DraftModel does so by itself)"
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
