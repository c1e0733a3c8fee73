"""Several prompts at once, sampled: rows accept paths of different lengths and finish when they like.

python examples/batch.py --model HuggingFaceTB/SmolLM2-135M-Instruct
"""

from example_models import arguments, load

import treespec


def main() -> None:
    args = arguments(__doc__)
    model, tokenizer = load(args.model)
    prompts = [args.prompt, "A short one", "Count: one two three one two three one two"]
    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")

    speculation = treespec.TreeSpeculation([treespec.TokenRecycling(), treespec.SuffixLookup()], tree=16, seed=0)
    out = model.generate(
        **inputs,
        max_new_tokens=args.new_tokens,
        do_sample=True,
        temperature=0.7,
        top_p=0.9,
        repetition_penalty=1.1,
        num_return_sequences=2,
        custom_generate=speculation,
    )
    for text in tokenizer.batch_decode(out, skip_special_tokens=True):
        print(repr(text))
    stats = speculation.stats
    print(f"{stats.num_emitted_tokens} tokens in {stats.num_target_passes} target passes over {len(out)} rows")


if __name__ == "__main__":
    main()
