"""What each of pfl's processes does."""

import os

import numpy as np
import torch
import work as w
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F  # noqa: N812
from torch_nets import batch, build, tensors


class Timer(TrainingProcessCallback):
    def __init__(self, options):
        self.options = options

    def after_central_iteration(self, _metrics, _model, *, central_iteration):
        if central_iteration == 0:
            self.clock = w.Clock(self.options)
        elif central_iteration == self.options.rounds and os.environ["RANK"] == "0":
            self.clock.stop()
        return False, Metrics()


def net_of(name):
    net = build(name)
    net.loss = lambda x, y: F.cross_entropy(net(x), y)
    net.metrics = lambda *_: {}  # nothing is evaluated
    return net


def run(options):
    torch.set_num_threads(1)
    np.random.seed(1)  # the same in all processes, so that they draw the same cohorts
    x, y = tensors(options.work)

    def client(k):
        """A client's data in a new order: an epoch of batches is H random batches."""
        return Dataset(batch(options.work, x[k], y[k], torch.randperm(y.shape[1])))

    sampler = get_user_sampler("random", list(range(len(y))))
    data = FederatedDataset(client, sampler)
    net = net_of(options.work)
    model = PyTorchModel(
        net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.rounds + 1,
            evaluation_frequency=options.rounds + 2,
            train_cohort_size=options.clients_per_round,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=w.LR, local_batch_size=w.BATCH
        ),
        callbacks=[Timer(options)],
        send_metrics_to_platform=False,
    )
