"""The exact distribution of sampled continuations, from plain decoding of one token after every prefix."""

import torch


def extended(inputs, tokens):
    """A prompt of one row with some tokens of text after it."""
    more = {"input_ids": torch.tensor([tokens]), "attention_mask": torch.ones(1, len(tokens), dtype=torch.long)}
    more["mm_token_type_ids"] = torch.zeros_like(more["attention_mask"])
    return inputs | {name: torch.cat([inputs[name], extra], dim=1) for name, extra in more.items() if name in inputs}


def exact_distribution(generate, inputs, depth):
    """Every continuation of `depth` tokens and its probability; `generate` are a model's arguments but the prompt's."""
    known = {(): 1.0}
    for _ in range(depth):
        longer = {}
        for prefix, probability in known.items():
            prompt = extended(inputs, list(prefix)) if prefix else inputs
            output = generate(**prompt, max_new_tokens=1, output_scores=True, return_dict_in_generate=True)
            probs = output.scores[0][0].double().softmax(-1)
            longer |= {(*prefix, t): probability * float(probs[t]) for t in probs.nonzero().flatten().tolist()}
        known = longer
    return known
