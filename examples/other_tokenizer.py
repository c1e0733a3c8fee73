"""Let a small model with another tokenizer draft for a large one: the text is the large model's own, only sooner.

    python examples/other_tokenizer.py --model Qwen/Qwen2.5-7B-Instruct \
        --draft-model HuggingFaceTB/SmolLM2-135M-Instruct
"""

from example_models import arguments, load, tiny_model, tiny_tokenizer

import treespec
from treespec.hf import make_draft_model


def main() -> None:
    args = arguments(__doc__, has_draft=True)
    model, tokenizer = load(args.model)
    if args.draft_model:
        draft, draft_tokenizer = load(args.draft_model)
    else:
        draft, draft_tokenizer = tiny_model(noise=0.05, is_reversed=True), tiny_tokenizer(is_reversed=True)
    inputs = tokenizer(args.prompt, return_tensors="pt")
    plain = model.generate(**inputs, max_new_tokens=args.new_tokens, do_sample=False)

    for method in ("intersection", "re-encoding"):
        drafter = make_draft_model(draft, tokenizer=draft_tokenizer, target_tokenizer=tokenizer, method=method)
        speculation = treespec.TreeSpeculation(drafter, tree=12)
        out = model.generate(**inputs, max_new_tokens=args.new_tokens, do_sample=False, custom_generate=speculation)
        print(f"{method}: {tokenizer.decode(out[0], skip_special_tokens=True)!r}")
        print(f"  identical to plain generate: {out.tolist() == plain.tolist()}")
        print(f"  mean acceptance length {speculation.stats.mean_acceptance_length:.2f}")


if __name__ == "__main__":
    main()
