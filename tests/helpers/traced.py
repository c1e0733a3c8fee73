"""Traces of tiny models."""

import torch
from helpers.tiny import noisy_copy, prompt, tiny_llama

import treespec
from treespec.lab.trace import TraceFile, read_trace

TARGET = tiny_llama(seed=2)
DRAFT = noisy_copy(TARGET, 0.1)
LARGE = tiny_llama(seed=4, vocab_size=700)
LARGE_DRAFT = noisy_copy(LARGE, 0.1)
DRAFTERS = {
    "draft model": lambda: DRAFT,
    "merge": lambda: [DRAFT, treespec.TokenRecycling(), treespec.SuffixLookup()],
    "lookup": treespec.SuffixLookup,
}


def record(path, drafter="draft model", *, num_rows=1, tree=8, is_sampling=False, rule="auto", model=TARGET, **options):
    """Decode 16 tokens and return the output, the speculation and the trace."""
    file = path if isinstance(path, TraceFile) else TraceFile(path, has_distributions=options.pop("full", False))
    made = DRAFTERS[drafter]() if isinstance(drafter, str) else drafter
    speculation = treespec.TreeSpeculation(
        made,
        tree=tree,
        verification=rule,
        seed=7,
        trace=file,
        record_steps=True,
        tokenizer=options.pop("tokenizer", None),
    )
    settings = {"max_new_tokens": 16, "do_sample": is_sampling, "pad_token_id": 0, "eos_token_id": None}
    ids = prompt(num_rows, vocab_size=model.config.vocab_size)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=speculation, **settings | options)
    return out, speculation, read_trace(file.path)
