"""TensorFlow and Keras: a network trained before the freeze, then used, traced and trained again after the thaw."""

from __future__ import annotations

import os
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import keras
import numpy as np
import repeated
import tensorflow as tf


class TensorFlow:
    """A convolutional network, and a function traced before the freeze."""

    def __init__(self, options: repeated.Options) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
        tf.config.threading.set_inter_op_parallelism_threads(options.threads)
        keras.utils.set_random_seed(1)
        self._network = keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                keras.layers.Conv2D(8, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        self._network.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        chance = np.random.default_rng(1)
        images, labels = chance.random((64, 16, 16, 3), np.float32), chance.integers(0, 10, 64)
        self._network.fit(images, labels, epochs=1, shuffle=False, verbose=0)
        self._traced = tf.function(lambda x: tf.linalg.matmul(x, x, transpose_b=True))

    def answer(self, number: int) -> Any:
        # a different shape each time
        images = np.random.default_rng(number).random((8 + number, 16, 16, 3), np.float32)
        flat = images.reshape(len(images), -1)
        weight = tf.Variable(np.ones((flat.shape[1], 1), np.float32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matmul(flat, weight) / flat.shape[1]))
        rows = tf.data.Dataset.range(20).map(lambda x: x * number, num_parallel_calls=2).prefetch(2)
        return {
            "predicted": self._network.predict(images, verbose=0).tolist(),
            "traced": self._traced(flat).numpy()[:3, :3].tolist(),
            "traced again": float(tf.function(lambda x: tf.reduce_sum(tf.sin(x)))(flat)),
            "gradient": tape.gradient(loss, weight).numpy()[:5, 0].tolist(),
            "data": [int(row) for row in rows],
        }


if __name__ == "__main__":
    repeated.main(TensorFlow)
