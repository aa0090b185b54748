"""jax: machine code compiled before the freeze and after the thaw, gradients, and jax's threads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import repeated


def loss(weights: Any, given: Any) -> Any:
    """Return the loss of one layer."""
    return jnp.mean(jnp.tanh(given @ weights) ** 2)


class Jax:
    """Functions compiled before the freeze."""

    def __init__(self, _options: repeated.Options) -> None:
        self._weights = jax.random.normal(jax.random.key(1), (64, 32)) / 8
        self._gradient = jax.jit(jax.value_and_grad(loss))
        self._mapped = jax.jit(jax.vmap(lambda row: jnp.sort(jnp.fft.rfft(row).real)))

    def answer(self, number: int) -> Any:
        given = jnp.asarray(np.random.default_rng(number).random((128, 64), np.float32))
        value, gradient = self._gradient(self._weights, given)
        factor = float(number)
        fresh = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _at, y: jnp.sin(y) * factor, x))
        return {
            "loss": float(value),
            "gradient": np.asarray(gradient)[::8, ::8].tolist(),
            "mapped": np.asarray(self._mapped(given))[::32, ::4].tolist(),
            "compiled after": np.asarray(fresh(given))[:3, :3].tolist(),
            "random": np.asarray(jax.random.uniform(jax.random.key(number), (5,))).tolist(),
        }


if __name__ == "__main__":
    repeated.main(Jax)
