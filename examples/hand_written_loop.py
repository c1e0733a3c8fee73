"""Tree speculation in a loop of your own, from the parts alone.

The drafter here is as simple as can be: after every token it remembers the two tokens that the target found most
likely, and drafts three levels of them. Everything else is what any loop has to do.

    python examples/hand_written_loop.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

import torch
from example_models import arguments, load

from treespec import CACHE_NAME, TokenTree, commit_cache, new_cache, tree_attention_mask, verify

SHAPE = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


def draft(root: int, memory: dict[int, list[int]]) -> TokenTree:
    """A tree of the shape above, as far as the memory goes."""
    paths, tokens = {(): root}, [root]
    for path in SHAPE:
        parent = paths.get(path[:-1])
        known = [] if parent is None else memory.get(parent, [])
        if path[-1] < len(known):
            paths[path] = known[path[-1]]
            tokens.append(paths[path])
    return TokenTree.from_paths([path for path in paths if path], tokens)


@torch.no_grad()
def generate(model, prompt_ids: torch.Tensor, num_new: int) -> tuple[list[int], int]:
    """Greedy decoding of int64 [1, P]: at least `num_new` tokens, and the number of target passes."""
    cache, memory, emitted, num_passes = new_cache(model.config.num_hidden_layers), {}, [], 0
    model(prompt_ids[:, :-1], **{CACHE_NAME: cache})
    slots = torch.ones(1, prompt_ids.shape[1] - 1, dtype=torch.bool)
    root = int(prompt_ids[0, -1])
    while len(emitted) < num_new:
        tree = draft(root, memory)
        attention = tree_attention_mask(tree, slots, model.config, dtype=model.dtype)
        logits = model(
            tree.tokens[None],
            attention_mask=attention.mask,
            position_ids=attention.position_ids,
            **{CACHE_NAME: cache},
        ).logits[0]
        num_passes += 1

        target_probs = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
        verdict = verify(tree, target_probs)
        slots = commit_cache(cache, slots, [verdict.path])

        for token, best in zip(tree.token_list, logits.topk(2).indices.tolist(), strict=True):
            memory[token] = best
        emitted += [tree.token(node) for node in verdict.path[1:]] + [verdict.next_token]
        root = verdict.next_token
    return emitted, num_passes


def main() -> None:
    args = arguments(__doc__)
    model, tokenizer = load(args.model)
    prompt_ids = tokenizer(args.prompt, return_tensors="pt")["input_ids"]
    emitted, num_passes = generate(model, prompt_ids, args.new_tokens)
    print(tokenizer.decode(emitted[: args.new_tokens]))
    plain = model.generate(prompt_ids, max_new_tokens=args.new_tokens, do_sample=False)[0, prompt_ids.shape[1] :]
    print(f"identical to plain generate: {emitted[: len(plain)] == plain.tolist()}")
    print(f"{len(emitted)} tokens in {num_passes} target passes")


if __name__ == "__main__":
    main()
