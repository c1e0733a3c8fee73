"""Let a small model draft for a large one, through `generate`: the text is the large model's own, only sooner.

    python examples/draft_model.py --model HuggingFaceTB/SmolLM2-1.7B-Instruct \
        --draft-model HuggingFaceTB/SmolLM2-135M-Instruct
"""

from example_models import arguments, load, tiny_model

import treespec


def main() -> None:
    args = arguments(__doc__, has_draft=True)
    model, tokenizer = load(args.model)
    draft = load(args.draft_model)[0] if args.draft_model else tiny_model(noise=0.05)
    inputs = tokenizer(args.prompt, return_tensors="pt")

    speculation = treespec.TreeSpeculation(draft, tree=12)
    out = model.generate(**inputs, max_new_tokens=args.new_tokens, do_sample=False, custom_generate=speculation)
    print(tokenizer.decode(out[0], skip_special_tokens=True))

    plain = model.generate(**inputs, max_new_tokens=args.new_tokens, do_sample=False)
    print(f"identical to plain generate: {out.tolist() == plain.tolist()}")
    stats = speculation.stats
    print(f"mean acceptance length {stats.mean_acceptance_length:.2f}, {stats.num_target_passes} target passes")
    for depth, rate in stats.acceptance_per_depth.items():
        print(f"  depth {depth}: accepted in {rate:.0%} of the trees that reach it")


if __name__ == "__main__":
    main()
