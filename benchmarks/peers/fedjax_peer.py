"""FedJAX: its federated averaging, a jitted step for each batch."""

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import work as w

# FedJAX 0.0.17 calls it by a name that JAX has dropped. With this it runs on today's JAX, on which
# it was clearly faster than on JAX 0.4.30.
jax.tree_map = jax.tree.map


def lenet(x):
    x = jnp.expand_dims(x, -1).astype(jnp.float32) / 255
    for channels, padding in ((6, "SAME"), (16, "VALID")):
        x = jax.nn.relu(hk.Conv2D(channels, 5, padding=padding)(x))
        x = hk.max_pool(x, (2, 2, 1), (2, 2, 1), "VALID")
    x = hk.Flatten()(x)
    for size in (120, 84):
        x = jax.nn.relu(hk.Linear(size)(x))
    return hk.Linear(w.CLASSES)(x)


def lstm(x):
    x = hk.Embed(w.SYMBOLS, w.EMBEDDING)(x.astype(jnp.int32).T)
    core = hk.LSTM(w.HIDDEN)
    _, state = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
    return hk.Linear(w.SYMBOLS)(state.hidden)


def model(name, x, y):
    net = hk.transform(lambda batch: {"lenet": lenet, "lstm": lstm}[name](batch["x"]))
    return fedjax.create_model_from_haiku(
        net,
        sample_batch={"x": x[0, :1], "y": y[0, :1]},
        train_loss=lambda batch, z: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], z),
    )


def main():
    options = w.arguments()
    x, y = w.samples(options.work)
    net = model(options.work, x, y)
    data = fedjax.InMemoryFederatedData(
        {k: {"x": x[k], "y": y[k].astype(np.int32)} for k in range(len(y))}
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(net),
        client_optimizer=fedjax.optimizers.sgd(w.LR),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=w.BATCH, num_epochs=None, num_steps=w.WORKS[options.work].steps
        ),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        data, num_clients=options.clients_per_round, seed=1
    )
    state = algorithm.init(net.init(jax.random.PRNGKey(0)))

    def round_():
        nonlocal state
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)

    w.measure(round_, options)


if __name__ == "__main__":
    main()
