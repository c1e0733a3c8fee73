"""What a step would cost on other hardware: a roofline over memory and arithmetic, with all its assumptions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.simulator.costs import HEAD, RECYCLING, SUFFIX, Costs

NUM_NODES = (1, 2, 4, 8, 16, 32, 64, 128)
LEVEL_NODES = 8
"""Nodes that a draft pass of a head works on."""


@dataclass(frozen=True)
class Hardware:
    """An accelerator; the shares are what kernels reach of its limits.

    Attributes:
        layer_us: of one layer's launches from a captured graph, which no work hides.
        host_ms: of a step's other work: mask, verification, commit, one read.
        lookup_ms: of looking drafts up on the host, of one step and of each row.
    """

    name: str
    terabytes_per_second: float
    teraflops: float
    gigabytes: float
    memory_share: float = 0.8
    compute_share: float = 0.6
    layer_us: float = 8.0
    host_ms: float = 0.5
    lookup_ms: tuple[float, float] = (0.1, 0.02)

    def pass_ms(self, weight_bytes: float, cache_bytes: float, flops: float, num_layers: int) -> float:
        """The longer of moving weights and cache, and of arithmetic."""
        memory = 1e3 * (weight_bytes + cache_bytes) / (1e12 * self.terabytes_per_second * self.memory_share)
        compute = 1e3 * flops / (1e12 * self.teraflops * self.compute_share)
        return max(memory, compute) + 1e-3 * self.layer_us * num_layers


@dataclass(frozen=True)
class Target:
    """A decoder and an EAGLE-3 head of its width.

    Attributes:
        weights, head_weights: numbers of parameters that a pass reads; the head's with a vocabulary of 32,000.
        weight_bytes: of one parameter.
        cache_bytes: of a token's keys and values in all layers.
        attention_flops: of a token of the pass by a token of the context.
    """

    name: str
    weights: float
    head_weights: float
    weight_bytes: float
    num_layers: int
    cache_bytes: float
    attention_flops: float

    def num_bytes(self, num_rows: int, context: int) -> float:
        """Bytes of weights, the head's included, and the cache of so many texts."""
        return self.weight_bytes * (self.weights + self.head_weights) + num_rows * context * self.cache_bytes


H200 = Hardware("H200", 4.8, 989.0, 141.0)
H200_FLOAT8 = replace(H200, teraflops=1979.0)
LLAMA_8B = Target("8B, bfloat16", 8.0e9, 0.43e9, 2.0, 32, 2 * 32 * 8 * 128 * 2, 4 * 32 * 4096)
LLAMA_70B = Target("70B, float8", 70.6e9, 1.5e9, 1.0, 80, 2 * 80 * 8 * 128 * 2, 4 * 80 * 8192)
"""Shapes of Llama 3; 70B in float8 is what fits into one H200 together with a cache."""


def fits(hardware: Hardware, target: Target, num_rows: int, context: int) -> bool:
    """Whether weights and cache fill at most nine tenths of the memory."""
    return target.num_bytes(num_rows, context) <= 0.9e9 * hardware.gigabytes


def step_costs(hardware: Hardware, target: Target, num_rows: int, context: int) -> Costs:
    """The costs of a step that serves `num_rows` texts of `context` tokens, each with a tree of the same size.

    The result is used for one row: its milliseconds are the step's, so `num_rows` texts advance in them.
    """
    cache = num_rows * context * target.cache_bytes

    def target_ms(num_nodes: int) -> float:
        tokens = num_rows * num_nodes
        flops = tokens * (2 * target.weights + context * target.attention_flops)
        return hardware.pass_ms(target.weight_bytes * target.weights, cache, flops, target.num_layers)

    level = hardware.pass_ms(
        target.weight_bytes * target.head_weights,
        cache / target.num_layers,
        2 * target.head_weights * num_rows * LEVEL_NODES,
        1,
    )
    start, per_row = hardware.lookup_ms
    lookup = (start + per_row * num_rows, 0.0, 0.0)
    return Costs(
        {nodes: target_ms(nodes) + hardware.host_ms for nodes in NUM_NODES},
        {HEAD: (0.0, level, 0.0), RECYCLING: lookup, SUFFIX: lookup},
    )
