"""TensorFlow Federated: its weighted FedAvg on its native runtime."""

import os

import numpy as np
import work as w

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import tensorflow as tf
import tensorflow_federated as tff


def lenet():
    layers = tf.keras.layers
    return [
        layers.InputLayer((w.PIXELS, w.PIXELS, 1)),
        layers.Conv2D(6, 5, padding="same", activation="relu"),
        layers.MaxPool2D(),
        layers.Conv2D(16, 5, activation="relu"),
        layers.MaxPool2D(),
        layers.Flatten(),
        layers.Dense(120, activation="relu"),
        layers.Dense(84, activation="relu"),
        layers.Dense(w.CLASSES),
    ]


def lstm():
    layers = tf.keras.layers
    return [
        layers.InputLayer((w.LENGTH,), dtype=tf.int32),
        layers.Embedding(w.SYMBOLS, w.EMBEDDING),
        layers.LSTM(w.HIDDEN),
        layers.Dense(w.SYMBOLS),
    ]


def batches(name, x, y):
    """A client's data as H random batches, read once more in each round."""

    def read(x, y):
        if name == "lstm":
            return tf.cast(x, tf.int32), tf.cast(y, tf.int32)
        return tf.cast(x, tf.float32)[..., None] / 255, tf.cast(y, tf.int32)

    data = tf.data.Dataset.from_tensor_slices((np.ascontiguousarray(x), y))
    return data.shuffle(len(y)).batch(w.BATCH, drop_remainder=True).map(read)


def main():
    options = w.arguments()
    x, y = w.samples(options.work)
    spec = batches(options.work, x[0], y[0]).element_spec

    def model():
        return tff.learning.models.from_keras_model(
            tf.keras.Sequential({"lenet": lenet, "lstm": lstm}[options.work]()),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(w.LR),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    state = process.initialize()
    rng = np.random.default_rng(1)

    def round_():
        nonlocal state
        clients = w.cohort(rng, options.work, options.clients_per_round)
        state = process.next(state, [batches(options.work, x[k], y[k]) for k in clients]).state

    w.measure(round_, options)


if __name__ == "__main__":
    main()
