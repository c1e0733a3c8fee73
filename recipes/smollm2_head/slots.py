"""Text by the hundred thousand tokens per second: thousands of rows on a GPU, each at its own position.

A row that ends takes the next message at once, so that no pass is made for empty rows, and a step is one CUDA graph.
Prompts are read token by token like everything else. The pass is llama's, over one cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from recipes.smollm2_head.corpus import LONGEST_PERIOD, REPEATED, Text, loop_end
from treespec.training.text.batch import Message
from treespec.training.text.chat import Turns

STEPS = 16
"""Steps between two looks at what has ended."""
MESSAGE_TEMPERATURE = 0.9


class Job(NamedTuple):
    """A text to be written."""

    kind: str
    message: Message
    temperature: float


class Passes:
    """A llama's passes over one token per row, with a cache of `length` keys and values per row."""

    def __init__(self, model: Any, num_rows: int, length: int) -> None:
        base, config = model.model, model.config
        weight = base.embed_tokens.weight
        self._config, self._length = config, length
        self._embedding, self._rows = weight, model.lm_head.weight.float()
        self._norm = base.norm.weight
        self._layers = [self._weights(layer) for layer in base.layers]
        shape = (len(base.layers), num_rows, config.num_key_value_heads, length, config.head_dim)
        self._keys, self._values = (weight.new_zeros(shape) for _ in range(2))
        self._index = torch.arange(num_rows, device=weight.device)
        self._slots = torch.arange(length, device=weight.device)
        angles = torch.outer(self._slots.float(), base.rotary_emb.inv_freq.float().to(weight.device))
        self._cos, self._sin = (f(angles).to(weight.dtype).unsqueeze(1) for f in (torch.cos, torch.sin))

    @staticmethod
    def _weights(layer: Any) -> tuple[Tensor, ...]:
        own, mlp = layer.self_attn, layer.mlp
        joined = torch.cat([own.q_proj.weight, own.k_proj.weight, own.v_proj.weight])
        gated = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        norms = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        return norms[0], joined, own.o_proj.weight, norms[1], gated, mlp.down_proj.weight

    def logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """float32 [B, V] after reading ids int64 [B] at positions int64 [B]."""
        config, count = self._config, len(ids)
        groups, size = config.num_key_value_heads, config.head_dim
        share = config.num_attention_heads // groups
        cos, sin = self._cos[positions], self._sin[positions]
        unseen = self._slots > positions.unsqueeze(1)
        mask = torch.zeros(unseen.shape, dtype=cos.dtype, device=ids.device).masked_fill_(unseen, -torch.inf)
        mask = mask[:, None, None].expand(count, groups, share, self._length)
        states = self._embedding[ids]
        for number, (norm, joined, out, mlp_norm, gated, down) in enumerate(self._layers):
            projected = linear(self._normed(states, norm), joined).view(count, -1, size)
            turned, values = projected.split([config.num_attention_heads + groups, groups], 1)
            first, second = turned.chunk(2, -1)
            turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
            queries, keys = turned.split([config.num_attention_heads, groups], 1)
            self._keys[number][self._index, :, positions] = keys
            self._values[number][self._index, :, positions] = values
            queries = queries.reshape(count, groups, share, size)
            mixed = scaled_dot_product_attention(queries, self._keys[number], self._values[number], attn_mask=mask)
            states = states + linear(mixed.reshape(count, -1), out)
            gate, up = linear(self._normed(states, mlp_norm), gated).chunk(2, -1)
            states = states + linear(silu(gate) * up, down)
        return linear(self._normed(states, self._norm).float(), self._rows)

    def _normed(self, states: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(states, weight.shape, weight, self._config.rms_norm_eps)


class Slots:
    """Rows in which the target writes.

    Args:
        length: the longest text, in tokens.
        max_message: the longest message that the target finishes.
    """

    def __init__(
        self, model: Any, turns: Turns, ends: Iterable[int], num_rows: int, length: int, max_message: int
    ) -> None:
        self._passes = Passes(model, num_rows, length)
        self._turns, self._length, self._max_message = turns, length, max_message
        device = self._device = model.lm_head.weight.device

        def ids(values: Iterable[int]) -> Tensor:
            return torch.tensor(list(values), device=device)

        self._reply = ids(turns.reply)
        self._ends, self._message_ends = ids(ends), ids([*ends, *turns.reply[:1]])
        self._tokens = torch.zeros(num_rows, length + len(turns.reply) + 1, dtype=torch.int64, device=device)
        self._position, self._known, self._answer, self._start = (
            torch.zeros(num_rows, dtype=torch.int64, device=device) for _ in range(4)
        )
        self._is_message, self._is_done = (torch.zeros(num_rows, dtype=torch.bool, device=device) for _ in range(2))
        self._is_done.fill_(True)
        self._temperature = torch.zeros(num_rows, device=device)
        self._jobs: list[Job | None] = [None] * num_rows

    @torch.no_grad()
    def write(self, jobs: Iterable[Job]) -> Iterator[Text]:
        """Texts as they end."""
        queue, step = iter(jobs), self._graph()
        while True:
            yield from self._take_ended(queue)
            if not any(self._jobs):
                return
            for _ in range(STEPS):
                step()
            self._end_loops()

    def _graph(self) -> Callable[[], object]:
        if self._device.type != "cuda":
            return self._step
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay

    def _step(self) -> None:
        """One pass, and one token more in every row that has not ended."""
        tokens, position = self._tokens, self._position
        logits = self._passes.logits(tokens.gather(1, position.unsqueeze(1))[:, 0], position)
        temperature = torch.where(self._is_message, MESSAGE_TEMPERATURE, self._temperature)
        noise = torch.empty_like(logits).exponential_().log_()  # Gumbel's, with the other sign.
        drawn = logits.sub_(noise.mul_(temperature.unsqueeze(1))).argmax(-1)
        after = position + 1
        is_free = (after >= self._known) & ~self._is_done
        is_last = after - self._start >= self._max_message
        ends_message = is_free & self._is_message & (_is_in(drawn, self._message_ends) | is_last)
        is_own = is_free & ~ends_message
        old = tokens.gather(1, after.unsqueeze(1))[:, 0]
        tokens.scatter_(1, after.unsqueeze(1), torch.where(is_own, drawn, old).unsqueeze(1))
        columns = after.unsqueeze(1) + torch.arange(len(self._reply), device=after.device)
        reply = torch.where(ends_message.unsqueeze(1), self._reply, tokens.gather(1, columns))
        tokens.scatter_(1, columns, reply)
        begin = after + len(self._reply)
        self._known.copy_(torch.where(ends_message, begin, self._known))
        self._answer.copy_(torch.where(ends_message, begin, self._answer))
        self._is_message &= ~ends_message
        is_end = is_own & ~self._is_message & _is_in(drawn, self._ends)
        self._position.copy_(torch.where(self._is_done, position, after))
        # The last position is not read: the next pass would have no slot for its successor.
        self._is_done |= is_end | (after + 1 >= self._length)

    def _end_loops(self) -> None:
        """End rows whose last `REPEATED` tokens stood up to `LONGEST_PERIOD` earlier, too."""
        count = REPEATED + LONGEST_PERIOD
        columns = self._position.unsqueeze(1) + torch.arange(1 - count, 1, device=self._device)
        windows = self._tokens.gather(1, columns.clamp(min=0)).unfold(1, REPEATED, 1)
        periods = torch.arange(LONGEST_PERIOD, 0, -1, device=self._device)
        is_same = (windows[:, :-1] == windows[:, -1:]).all(2) & (columns[:, :1] + LONGEST_PERIOD - periods >= 0)
        self._is_done |= is_same.any(1) & (self._position >= self._known)

    def _take_ended(self, queue: Iterator[Job]) -> list[Text]:
        """The ended rows' texts; their rows get the next jobs."""
        ended = self._is_done.nonzero()[:, 0]
        rows = ended.tolist()
        state = (part[ended].tolist() for part in (self._position, self._answer))
        texts = [
            self._text(job, tokens, position + 1, answer)
            for job, tokens, position, answer in zip(
                [self._jobs[row] for row in rows], self._tokens[ended].cpu().numpy(), *state, strict=True
            )
            if job is not None
        ]
        jobs = list(islice(queue, len(rows)))
        for row, job in zip(rows, [*jobs, *[None] * (len(rows) - len(jobs))], strict=True):
            self._jobs[row] = job
        self._fill(ended[: len(jobs)], jobs)
        return texts

    def _fill(self, rows: Tensor, jobs: list[Job]) -> None:
        if not jobs:
            return
        prompts = [self._prompt(job.message) for job in jobs]
        longest = max(map(len, prompts))
        padded = np.zeros((len(jobs), longest), np.int64)
        for row, prompt in zip(padded, prompts, strict=True):
            row[: len(prompt)] = prompt
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        is_open = torch.tensor([job.message.is_open for job in jobs], device=self._device)
        self._tokens[rows, :longest] = torch.from_numpy(padded).to(self._device)
        self._position[rows] = 0
        self._known[rows] = lengths
        self._answer[rows] = torch.where(is_open, self._length, lengths)
        self._start[rows] = len(self._turns.opening)
        self._is_message[rows] = is_open
        self._is_done[rows] = False
        self._temperature[rows] = torch.tensor([job.temperature for job in jobs], device=self._device)

    def _prompt(self, message: Message) -> list[int]:
        reply = [] if message.is_open else self._turns.reply
        return [*self._turns.opening, *message.tokens, *reply][: self._length - 1]

    def _text(self, job: Job, row: np.ndarray, length: int, answer: int) -> Text:
        """The text of `length` tokens, whose answer begins at `answer`, without the loop at its end."""
        tokens = row[:length].astype(np.uint16)
        tokens = tokens[: loop_end(tokens)] if job.temperature == 0 else tokens
        greedy = min(answer - 1, len(tokens)) if job.temperature == 0 else len(tokens)
        return Text(job.kind, tokens, len(self._prompt(job.message)) - 1, greedy)


def _is_in(tokens: Tensor, known: Tensor) -> Tensor:
    return (tokens.unsqueeze(1) == known).any(1)
