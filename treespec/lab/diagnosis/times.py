"""Causes in and outside of the target's passes: trees, batches, prompts, processors, rules, other work."""

from treespec.lab.diagnosis.speed import LEAST_GAIN, Case, Cause

USUAL_HOST, EXPENSIVE_HOST = 0.1, 0.3
"""The time of the host's other work, of processors, and of a rule: each in plain passes too."""
FLAT = 1.4
"""A pass over a tree may take this many times a pass over one node."""
LARGE_BATCH = 4


def tree_too_large(case: Case) -> Cause | None:
    """Attainable: the first nodes of the same trees, as many as are worth their time."""
    run = case.run
    here, one = case.pass_ms(run.nodes_per_row), case.pass_ms(1)
    if here < FLAT * one:
        return None
    size, speedup = case.best_size()
    sizes = f"{run.nodes_per_row:.0f} nodes" + (f" for each of {run.rows_per_step:.0f} rows" * (run.rows_per_step > 1))
    evidence = f"a pass over {sizes} takes {here:.1f} ms, {here / one:.2f} times that over one node per row"
    alone = case.with_one_row()
    if run.rows_per_step >= LARGE_BATCH and alone.best_size()[1] < LEAST_GAIN * alone.speed.speedup:
        change = (
            f'smaller trees for batches (tree={size}), none at all for large ones, or tree="auto"; fewer rows at a '
            "time where single answers are to be fast"
        )
        evidence += f"; for a single row it would take {alone.speed.target / alone.speed.plain_pass:.2f} times"
        return Cause("batch too large", evidence, change, speedup)
    change = f'tree={size}, or tree="auto", which knows the times of this machine (Control(max_nodes={size}) bounds it)'
    return Cause("tree too large", evidence, change, speedup)


def host_work(case: Case) -> Cause | None:
    """Attainable: a tenth of a plain pass."""
    run, speed, plain = case.run, case.speed, case.speed.plain_pass
    if speed.commit + speed.other <= EXPENSIVE_HOST * plain:
        return None
    num_waits = run.trace.num_waits / run.num_steps
    waits = f"; {num_waits:.1f} waits for the device per step" if num_waits else ""
    evidence = (
        f"a step spends {speed.commit:.1f} ms on streamer, stopping criteria, caches and learning drafters (commit) "
        f"and {speed.other:.1f} ms outside of all phases, compared with {speed.target:.1f} ms in the target{waits}"
    )
    change = (
        "a streamer that only queues its tokens, cheaper stopping criteria (stop_strings= instead of one that decodes "
        "the text), no other work on the decoding thread; more cores, if other processes use them"
    )
    left = USUAL_HOST * plain / (speed.commit + speed.other)
    return Cause("host work", evidence, change, speed.but(commit=speed.commit * left, other=speed.other * left))


def prompt_long(case: Case) -> Cause | None:
    """Attainable: a prompt that is in the cache already."""
    run, speed = case.run, case.speed
    share = speed.prefill / (speed.prefill + speed.step)
    if share < 0.25 or run.num_prompt <= run.num_answer:
        return None
    evidence = (
        f"{share:.0%} of the time goes into reading {run.num_prompt} tokens of prompt for {run.num_answer:.0f} tokens "
        f"of answer; decoding alone is {speed.decoding_speedup:.2f} times plain"
    )
    change = (
        "speculation cannot read prompts faster: keep the cache from call to call (cache=, treespec chat), "
        "ask several questions of one text in a row, or ask for longer answers at once"
    )
    today = speed.prefill + speed.tokens * speed.plain  # The time of plain decoding, which reads the prompt too.
    return Cause("prompt longer than the answer", evidence, change, today / speed.step)


def processors_expensive(case: Case) -> Cause | None:
    """Attainable: a twentieth of a plain pass."""
    speed, plain, names = case.speed, case.speed.plain_pass, list(case.run.about.get("processors", ()))
    spent = _processor_ms(case)
    if spent <= EXPENSIVE_HOST * plain or not names:
        return None
    evidence = (
        f"logits processors ({', '.join(names)}) take {spent:.1f} ms of a step's {speed.step:.1f} ms: they run at "
        "every node that the rule visits and, where the draft samples, at every drafted one"
        f"{'' if case.run.has_trace else '; the time of the rule is part of it, which a trace leaves out'}"
    )
    change = (
        "leave out what the text does not need; write your own without loops over the vocabulary or the text; "
        "top_p and top_k are cheap, penalties over long texts not; a grammar through treespec.grammars.GrammarProcessor"
    )
    saved = spent - USUAL_HOST / 2 * plain
    verify = max(speed.verify - saved, 0.0)
    draft = max(speed.draft - max(saved - speed.verify, 0.0), 0.0)
    return Cause("processors expensive", evidence, change, speed.but(verify=verify, draft=draft))


def verification_expensive(case: Case) -> Cause | None:
    """Attainable: a tenth of a plain pass."""
    speed, plain = case.speed, case.speed.plain_pass
    spent = speed.verify - min(_processor_ms(case), speed.verify)
    if spent <= EXPENSIVE_HOST * plain:
        return None
    evidence = f"the rule '{case.run.about.get('rule', 'auto')}' takes {spent:.1f} ms of a step's {speed.step:.1f} ms"
    change = (
        'selected children, which the target walk verifies for almost nothing: tree=BestFirst(n, children="selected"); '
        'else verification="auto"'
    )
    left = speed.verify - spent + USUAL_HOST * plain
    return Cause("verification expensive", evidence, change, speed.but(verify=left))


def _processor_ms(case: Case) -> float:
    """Per step; of ordinary runs all of verification, where there are processors."""
    if case.run.has_trace:
        return case.run.ms("processors")
    return case.speed.verify if case.run.about.get("processors") else 0.0


TIME_CAUSES = (tree_too_large, host_work, prompt_long, processors_expensive, verification_expensive)
