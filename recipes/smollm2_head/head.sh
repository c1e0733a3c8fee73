#!/usr/bin/env bash
# The runs that made the head that ships for SmolLM2-135M-Instruct, on one core of a two-core CPU: four runs of 15, 78,
# 26 and 80 minutes, each of which begins with the weights of the one before. `write` was stopped at 723,400 tokens for
# the first run, 844,359 for the second and 1,262,946 for the other two, and the answers to prompts lay in three folders,
# which sets the order of batches: run again, the commands make a head like it, not the same one.
set -euo pipefail
MODEL=${1:?the folder or name of the model}

python -m recipes.smollm2_head --out prompts.jsonl
python -m recipes.smollm2_head --openings --out openings.jsonl
treespec write "$MODEL" --out prompted --prompts prompts.jsonl --tokens 1500000 --batch-size 64 --max-length 512
treespec write "$MODEL" --out own --tokens 208000
treespec write "$MODEL" --out opened --openings openings.jsonl --tokens 1500000 --max-message 160 --max-length 512
treespec train "$MODEL" --texts prompted --texts own --out runs/first --kind eagle3 --minutes 15 \
  --features features --threads 1 --set draft_vocab_size=8192 --set batch_size=4 --set learning_rate=1e-3 \
  --set tv_weight=0.7 --set tv_start=0.67
treespec train "$MODEL" --texts prompted --texts own --out runs/second --kind eagle3 --minutes 78 \
  --features features --threads 1 --set draft_vocab_size=8192 --set batch_size=4 --set learning_rate=1e-3 \
  --set tv_weight=0.7 --set tv_start=0.67 --set start=runs/first
treespec train "$MODEL" --texts prompted --texts own --texts opened --out runs/third --kind eagle3 --minutes 26 \
  --features features --threads 1 --set draft_vocab_size=8192 --set batch_size=4 --set learning_rate=7e-4 \
  --set tv_weight=0.7 --set tv_start=0.6 --set start=runs/second
treespec train "$MODEL" --texts prompted --texts own --texts opened --out runs/head --kind eagle3 --minutes 80 \
  --features features --threads 1 --set draft_vocab_size=8192 --set batch_size=4 --set learning_rate=1e-3 \
  --set tv_weight=0.7 --set tv_start=0.6 --set start=runs/third
