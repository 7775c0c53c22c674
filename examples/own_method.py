"""SCAFFOLD (Karimireddy et al. 2020), written outside the package: a method with client state.

    python examples/own_method.py

Client k keeps a control variate c_k, the server their mean c. Local steps follow g - c_k + c,
which cancels the drift of clients that differ; then c_k' = c_k - c + (w - w_k) / (H lr), the
paper's option II. To use it by name, `fedmom run --algorithm scaffold:share=0.33`, give your own
package an entry point in the group "fedmom.algorithms": scaffold = "own_method:scaffold".
"""

from optax import tree

import fedmom


def scaffold(learning_rate: float = 1.0, *, share: float) -> fedmom.Algorithm:
    """SCAFFOLD: local steps corrected by control variates; share is M/K."""

    def run(broadcast, c_k, problem, key):
        w, c = broadcast
        correction = tree.sub(c, c_k)
        end, loss = problem.train(w, key, lambda gradient, _w: tree.add(gradient, correction))
        delta = tree.sub(w, end)
        new = tree.sub(tree.scale(1 / (problem.steps * problem.lr), delta), correction)
        metrics = {"loss": loss, "correction": tree.norm(correction)}
        return (delta, tree.sub(new, c_k)), new, metrics

    def step(aggregate, c, w):
        delta, change = aggregate
        return tree.add_scale(w, -learning_rate, delta), tree.add_scale(c, share, change), {}

    return fedmom.Algorithm(
        fedmom.Server(init=tree.zeros_like, step=step, broadcast=lambda w, c: (w, c)),
        client=fedmom.Client(run, init=lambda broadcast: tree.zeros_like(broadcast[1])),
        rule=fedmom.mean("uniform"),
    )


if __name__ == "__main__":
    data = fedmom.load_data("synthetic:clients=30")
    model = fedmom.build_model("logreg", data.features)
    work = fedmom.LocalWork(lr=0.01, steps=20)
    for name, method in {
        "FedAvg": fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean("uniform")),
        "SCAFFOLD": scaffold(share=10 / data.clients),
    }.items():
        runtime = fedmom.LocalRuntime(fedmom.Workload(data, model, method._replace(work=work)))
        *_, (state, _) = fedmom.train(runtime, pace=fedmom.synchronous(10), rounds=100)
        print(name, fedmom.evaluate(runtime, state.params, "train"))
