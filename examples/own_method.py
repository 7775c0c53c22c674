"""SCAFFOLD (Karimireddy et al. 2020), written outside the package: a method with client state.

    python examples/own_method.py

Client k keeps a control variate c_k, the server their mean c. Local steps follow g - c_k + c,
which cancels the drift of clients that differ; then c_k' = c_k - c + (w - w_k) / (H lr), the
paper's option II. To use it by name, `fedmom run --algorithm scaffold:share=0.33`, give your own
package an entry point in the group "fedmom.algorithms": scaffold = "own_method:scaffold".
"""

import jax
import jax.numpy as jnp

import fedmom


def scaffold(learning_rate: float = 1.0, *, share: float) -> fedmom.Algorithm:
    """SCAFFOLD: local steps corrected by control variates; share is M/K."""

    def run(broadcast, c_k, problem, key):
        w, c = broadcast

        def correct(gradient, _w):
            return jax.tree.map(lambda g, own, mean: g - own + mean, gradient, c_k, c)

        end, loss = problem.train(w, key, correct)
        delta = jax.tree.map(jnp.subtract, w, end)
        path = problem.steps * problem.lr
        new = jax.tree.map(lambda own, mean, d: own - mean + d / path, c_k, c, delta)
        return (delta, jax.tree.map(jnp.subtract, new, c_k)), new, {"loss": loss}

    def step(aggregate, c, w):
        delta, change = aggregate
        w = jax.tree.map(lambda w, d: w - learning_rate * d, w, delta)
        return w, jax.tree.map(lambda c, d: c + share * d, c, change)

    def zeros(tree):
        return jax.tree.map(jnp.zeros_like, tree)

    return fedmom.Algorithm(
        server=fedmom.Server(init=zeros, step=step, broadcast=lambda w, c: (w, c)),
        client=fedmom.Client(run, init=lambda broadcast: zeros(broadcast[0])),
        rule=fedmom.mean("uniform"),
    )


if __name__ == "__main__":
    data = fedmom.load_data("synthetic:clients=30")
    model = fedmom.build_model("logreg", data.features)
    pace = fedmom.synchronous(fedmom.uniform(data.train.size), 10)
    for name, method in {
        "FedAvg": fedmom.Algorithm(fedmom.fedavg(), rule=fedmom.mean("uniform")),
        "SCAFFOLD": scaffold(share=10 / data.clients),
    }.items():
        runtime = fedmom.LocalRuntime(data, model, fedmom.LocalWork(lr=0.01, steps=20), method)
        start, options = fedmom.start(model, method), {"samples": data.train.size, "rounds": 100}
        *_, (state, _) = fedmom.train(start, runtime, method, pace=pace, **options)
        print(name, fedmom.evaluate(runtime, state.params, "train"))
