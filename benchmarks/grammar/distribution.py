"""Text sampled under a JSON schema against plain constrained sampling, and against its exact distribution.

The schema allows a few strings, so that every token sequence that spells one can be enumerated, with its probability
under the grammar at T = 1. Sequences of less than 1e-6 are one class. Each contestant samples the same number of texts;
G-tests compare it with the exact distribution, and with the texts of plain constrained sampling.

    python -m benchmarks.grammar.distribution
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.stats import chi2_contingency
from transformers import LogitsProcessorList

from benchmarks.common.drafters import warm_start
from benchmarks.common.settings import RESULTS, markdown_table, parser, settings, settings_lines, write_json
from benchmarks.common.store import Store, digest
from benchmarks.grammar.schemas import compiler, processor
from treespec import BestFirst, Chain, TreeSpeculation, load_drafter, optimize, shipped_head
from treespec.hf import GrammarProcessor
from treespec.hf.loading import smollm2
from treespec.testing import enumerate_continuations, g_test

SCHEMA = {"enum": ["red wine", "white wine", "green tea", "black tea", "coffee", "water"]}
PROMPT = "In JSON, her favourite drink is"
LEAST, MAX_LENGTH = 1e-6, 32
Texts = dict[tuple[int, ...], float]


def exact(model: Any, ids: torch.Tensor, grammar: GrammarProcessor, end: int) -> Texts:
    """Every token sequence up to the end of text and its probability, but for those below `LEAST`."""

    @torch.no_grad()
    def probs(texts: Sequence[tuple[int, ...]]) -> torch.Tensor:
        rows = torch.cat([ids.repeat(len(texts), 1), torch.tensor(texts, dtype=torch.int64).view(len(texts), -1)], 1)
        logits = torch.cat([model(part, logits_to_keep=1).logits[:, -1] for part in rows.split(16)]).double()
        for row, text in zip(logits, texts, strict=True):
            allowed = grammar.allowed(0, text)
            assert allowed is not None
            row[~allowed[: len(row)]] = -torch.inf
        return logits.softmax(-1)

    return enumerate_continuations(probs, MAX_LENGTH, end, LEAST).joint


def contestants(model: Any, tokenizer: Any) -> dict[str, TreeSpeculation | None]:
    def head() -> Any:
        return load_drafter(shipped_head(smollm2.NAME), model)

    sampled = {"without_replacement": "traversal", "iid": "recursive"}
    found: dict[str, TreeSpeculation | None] = {"plain": None, "plain, again": None}
    found["lookups, selected, target_walk"] = TreeSpeculation(warm_start().drafters(), tree=8, tokenizer=tokenizer)
    for children, rule in sampled.items():
        tree = BestFirst(8, children=children)
        found[f"head, {children}, {rule}"] = TreeSpeculation(head(), tree=tree, verification=rule)
    found["head, chain, block"] = TreeSpeculation(head(), tree=Chain(4), verification="block", tokenizer=tokenizer)
    return found


def sample(
    model: Any, ids: torch.Tensor, grammar: GrammarProcessor, ends: tuple[int, int], speculation: Any, size: int
) -> list[tuple[int, ...]]:
    """As many texts, up to the end of text and with it. `ends`: the end of text and padding."""
    extra = {} if speculation is None else {"custom_generate": speculation}
    options = {
        "do_sample": True,
        "top_k": 0,
        "temperature": 1.0,
        "max_new_tokens": MAX_LENGTH,
        "num_return_sequences": size,
    }
    options |= {"eos_token_id": ends[0], "pad_token_id": ends[1], "logits_processor": LogitsProcessorList([grammar])}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **options, **extra)[:, ids.shape[1] :].tolist()
    return [tuple(row[: row.index(ends[0]) + 1]) for row in out]


def two_sample_p(first: Counter[Any], second: Counter[Any]) -> float:
    """A G-test of two samples over the classes of at least ten texts in all; the others are one class."""
    common = [text for text in first | second if first[text] + second[text] >= 10]
    counts = np.array([[sample[text] for text in common] for sample in (first, second)])
    rest = np.array([[first.total()], [second.total()]]) - counts.sum(1, keepdims=True)
    counts = np.hstack([counts, rest]) if rest.sum() else counts
    return float(chi2_contingency(counts, correction=False, lambda_="log-likelihood")[1])  # pyright: ignore[reportArgumentType]


def measure(args: Any, model: Any, tokenizer: Any, console: Console) -> dict[str, Any]:
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    end, vocab_size = tokenizer.eos_token_id, model.config.vocab_size
    grammar = processor(compiler(tokenizer, vocab_size), SCHEMA)
    ends = (end, next(token for token in (tokenizer.pad_token_id, 0) if token not in (None, end)))
    store = Store(smollm2.converted_folder().parent / "grammar" / f"{digest(args.seed, args.batch)}.jsonl")
    known = store.get("exact", lambda: list(exact(model, ids, grammar, end).items()))
    probs = {tuple(text): prob for text, prob in known}
    console.print(f"{len(probs)} token sequences, {1 - sum(probs.values()):.1e} of the mass elsewhere")

    def drawn(seed: int, speculation: TreeSpeculation | None) -> dict[str, Any]:
        torch.manual_seed(seed)
        texts = sample(model, ids, grammar, ends, speculation, args.batch)
        stats = None if speculation is None else speculation.stats
        return {"texts": texts, "steps": stats and stats.num_drafts, "tokens": stats and stats.num_emitted_tokens}

    results: dict[str, Any] = {}
    plain: Counter[Any] = Counter()
    for number, (name, speculation) in enumerate(contestants(model, tokenizer).items()):
        batches = []
        for turn in range(-(-args.texts // args.batch)):
            seed = 1000 * (number + 1) + turn + args.seed
            batches.append(store.get(f"{name}, {turn}", lambda seed=seed, s=speculation: drawn(seed, s)))
        steps = sum(batch["steps"] or 0 for batch in batches)
        found = {"texts": [text for batch in batches for text in batch["texts"]], "length": None}
        if steps:
            found["length"] = sum(batch["tokens"] for batch in batches) / steps
        texts = [tuple(text) for text in found["texts"]]
        counts = Counter(texts)
        plain = plain or counts
        results[name] = {
            "p_exact": p_exact(counts, probs),
            "p_plain": None if number == 0 else two_sample_p(plain, counts),
            "valid": sum(json.loads(tokenizer.decode(text[:-1])) in SCHEMA["enum"] for text in texts),
            "texts": len(texts),
            "acceptance_length": found["length"],
        }
        console.print(name, results[name])
    spelled = Counter()
    for text, prob in probs.items():
        spelled[tokenizer.decode(text[:-1])] += prob
    return {"num_sequences": len(probs), "texts": dict(spelled), "results": results}


def p_exact(counts: Counter[Any], probs: Texts) -> float:
    """The G-test's under the exact distribution, with all sequences that were not enumerated as one class."""
    rest = counts.total() - sum(counts[text] for text in probs)
    known = {text: counts[text] for text in probs} | {None: rest}
    return g_test(known, probs | {None: max(1 - sum(probs.values()), 1e-12)})


def report(data: dict[str, Any]) -> str:
    about = (__doc__ or "").split("\n\n")[1].replace("\n", " ")
    spelled = ", ".join(f"`{text}` {prob:.1%}" for text, prob in data["texts"].items())
    lines = ["# Sampled text under a JSON schema: its distribution", "", about, ""]
    lines += [f"{data['num_sequences']} token sequences spell these texts: {spelled}.", ""]
    rows = [
        [
            name,
            f"{found['valid']} of {found['texts']}",
            f"{found['p_exact']:.3f}",
            "" if found["p_plain"] is None else f"{found['p_plain']:.3f}",
            "" if found["acceptance_length"] is None else f"{found['acceptance_length']:.2f}",
        ]
        for name, found in data["results"].items()
    ]
    header = ["drafter, children, rule", "valid", "p against exact", "p against plain", "acceptance length"]
    return "\n".join([*lines, markdown_table(header, rows), "", settings_lines(data)])


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--texts", type=int, default=1000, help="per contestant (default: %(default)s)")
    options.add_argument("--batch", type=int, default=50)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    console = Console()
    model, tokenizer = smollm2.load(say=console.print)
    data = settings(seed=args.seed)
    with optimize(model):
        data |= measure(args, model, tokenizer, console)
    write_json(RESULTS / "grammar" / "distribution.json", data)
    (RESULTS / "grammar" / "distribution.md").write_text(report(data))
    console.print(report(data), markup=False)


if __name__ == "__main__":
    main()
