"""FedMom, through its public names, as its users call it."""

import jax
import numpy as np
import work as w

import fedmom
from fedmom.data.federated import Split

MODELS = {"lenet": "lenet5", "lstm": "char_lstm", "leafcnn": "leaf_cnn:dropout_rate=0"}


def population(name):
    """The same samples as everyone's."""
    work = w.WORKS[name]
    if name == "lstm":
        text = w.texts(work)
        begin = np.arange(work.clients) * text.shape[1]
        return fedmom.FederatedData(
            name="random symbols",
            users=[str(k) for k in range(work.clients)],
            features=fedmom.Features("text", (w.LENGTH,), w.SYMBOLS),
            arrays={"text": text.reshape(-1)},
            train=Split(begin, np.full(work.clients, work.samples)),
            test=Split(begin, np.zeros(work.clients, np.int64)),
        )
    x, y = w.images(work)
    return fedmom.from_arrays(
        x.reshape(-1, w.PIXELS, w.PIXELS),
        y.reshape(-1),
        client_ids=np.repeat(np.arange(work.clients), work.samples),
    )


def main():
    options = w.arguments()
    data = population(options.work)
    model = fedmom.build_model(MODELS[options.work], data.features)
    size = options.clients_per_round
    work = fedmom.LocalWork(lr=w.LR, steps=w.WORKS[options.work].steps)
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(learning_rate=data.clients / size), work)
    runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, algorithm))
    rounds = fedmom.train(runtime, pace=fedmom.synchronous(size), rounds=options.rounds + 1)

    def round_():
        # A round is over when its model is there, not when JAX has been told to make it.
        state, _ = next(rounds)
        jax.block_until_ready(state.params)

    w.measure(round_, options)


if __name__ == "__main__":
    main()
