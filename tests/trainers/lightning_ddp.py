"""Lightning Trainer with strategy ddp. It runs forward and backward inside Optimizer.step.

torchrun --standalone --nproc-per-node=4 lightning_ddp.py --steps 200 --sleep-ms 40 --slow-rank 2
"""

import logging
import os
import tempfile
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from common import Compute, StepTimes, arguments, run

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Model(lightning.LightningModule):
    """A small network whose training step takes as long as the options specify."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.times = StepTimes()

    def training_step(self, batch, _):
        inputs, targets = batch
        self.compute.run(self.global_step)
        return nn.functional.mse_loss(self.net(inputs), targets)

    def on_train_batch_end(self, *_):
        self.times.lap()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--accum", type=int, default=1, help="micro-batches in a step")
    opt = parser.parse_args()
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    inputs = torch.randn(16 * 64 * world_size, 64)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
    model = Model(Compute(opt, rank))
    with tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            accelerator="cpu",
            strategy="ddp",
            devices=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
            num_nodes=world_size // int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
            max_steps=opt.steps,
            accumulate_grad_batches=opt.accum,
            default_root_dir=directory,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader)
    model.times.report(rank)


if __name__ == "__main__":
    run(main)
