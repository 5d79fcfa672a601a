"""
The file of model facts: parameters counted again from the published widths, and a source for each.
"""

from __future__ import annotations

import pytest

from controlplane.calculating.facts import known_models

GATED = {
    # inner width of the feed-forward part, vocabulary, biases on queries, keys and values, norms of queries and keys
    "llama-3.1-8b": (14336, 128256, False, False),
    "llama-3.1-70b": (28672, 128256, False, False),
    "llama-3.1-405b": (53248, 128256, False, False),
    "mixtral-8x7b": (14336, 32000, False, False),
    "qwen2.5-7b": (18944, 152064, True, False),
    "qwen2.5-72b": (29568, 152064, True, False),
    "qwen3-32b": (25600, 151936, False, True),
}
PLAIN = {"opt-13b": (50272, 2050), "bloom-176b": (250880, 0)}
"""Vocabulary and learned positions of models with one inner projection, biases everywhere and tied embeddings."""


@pytest.mark.parametrize("name", GATED)
def test_parameters_of_gated_models_add_up(name: str) -> None:
    """Embeddings, attention, feed-forward parts and norms of the published configuration are the count in the file, to the last one."""
    inner, vocabulary, biases, head_norms = GATED[name]
    one = known_models()[name]
    queries, shared = one.attention_heads * one.head_dim, one.kv_heads * one.head_dim
    attention = (
        2 * one.hidden_size * (queries + shared) + (queries + 2 * shared if biases else 0) + (2 * one.head_dim if head_norms else 0)
    )
    copies = max(1, one.experts)
    forward = copies * 3 * one.hidden_size * inner + (one.experts * one.hidden_size)
    layer = attention + forward + 2 * one.hidden_size
    assert one.parameters == one.layers * layer + 2 * vocabulary * one.hidden_size + one.hidden_size


@pytest.mark.parametrize("name", PLAIN)
def test_parameters_of_plain_models_add_up(name: str) -> None:
    """The same for OPT and BLOOM."""
    vocabulary, positions = PLAIN[name]
    one = known_models()[name]
    h = one.hidden_size
    extra_norm = 2 * h if name.startswith("bloom") else 0  # BLOOM normalizes its embeddings too
    assert one.parameters == one.layers * (12 * h * h + 13 * h) + (vocabulary + positions) * h + 2 * h + extra_norm


def test_two_of_eight_experts_are_active() -> None:
    """Mixtral's active parameters are all but the experts that a token does not visit."""
    one = known_models()["mixtral-8x7b"]
    assert one.parameters - one.used_parameters == one.layers * 6 * 3 * one.hidden_size * 14336


def test_every_model_names_its_source() -> None:
    """A paper with a place in it, and a repository unless the weights were never published."""
    for name, one in known_models().items():
        assert one.name == name
        assert one.source.url.startswith("https://arxiv.org/abs/")
        assert one.source.section
        assert "/" in one.repository or name == "gpt-3-175b"
