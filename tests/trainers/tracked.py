"""DistributedDataParallel with the trackers that people use beside it, each as its own documentation has it.

torchrun --standalone --nproc-per-node=4 tracked.py --out DIR --slow-rank 2 --slow-pct 30

Rank 0 logs its loss to W&B (offline), MLflow (files in DIR) and TensorBoard, with the program's own steps; rank 1 to
its own W&B run. Only the SummaryWriter is passed to Paceline; PACELINE_TRACK enables the others.
"""

import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import Compute, arguments, run

EPOCH = 50  # steps


def options():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--out", default=".", help="where trackers write")
    return parser.parse_args()


class Trackers:
    """The program's own logging."""

    def __init__(self, folder, rank):
        out = os.path.join(os.path.abspath(folder), "rank%d" % rank)
        self._wandb = self._mlflow = self._writer = None
        if rank < 2:
            import wandb

            os.makedirs(out, exist_ok=True)
            self._wandb = wandb.init(project="tracked", dir=out, mode="offline", settings={"console": "off"})
        if rank == 0:
            import mlflow
            import paceline
            from torch.utils.tensorboard import SummaryWriter

            mlflow.set_tracking_uri("file://" + os.path.join(out, "mlflow"))
            mlflow.start_run()
            self._mlflow = mlflow
            self._writer = SummaryWriter(os.path.join(out, "tensorboard"))
            paceline.track(tensorboard=self._writer)

    def begin(self, step):
        """Each step is logged to W&B twice: a row committed by other code in between would lose the second part."""
        if self._wandb is not None:
            self._wandb.log({"lr": 1e-3}, step=step)

    def log(self, step, loss):
        if self._wandb is not None:
            self._wandb.log({"loss": loss}, step=step)
        if self._mlflow is not None and step % 20 == 0:
            self._mlflow.log_metric("loss", loss, step=step)
        if self._writer is not None:
            self._writer.add_scalar("loss", loss, step)


def main():
    opt = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    trackers = Trackers(opt.out, rank)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    inputs = torch.randn(16 * EPOCH, 64)
    # Workers are forked again for each epoch, while the thread that writes rows is running.
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, num_workers=1)
    compute = Compute(opt, rank)
    epochs = itertools.chain.from_iterable(loader for _ in range(-(-opt.steps // EPOCH)))
    for step, (batch, targets) in enumerate(itertools.islice(epochs, opt.steps)):
        trackers.begin(step)
        compute.run(step)
        loss = nn.functional.mse_loss(net(batch), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        trackers.log(step, loss.item())


if __name__ == "__main__":
    run(main)
