"""Hugging Face Trainer with a tiny model on random tokens.

torchrun --standalone --nproc-per-node=4 hf_trainer.py --steps 200 --sleep-ms 40 --slow-rank 2
"""

import os
import tempfile

import torch
import transformers
from torch import nn
from torch.utils.data import Dataset

from common import Compute, StepTimes, arguments, run


class RandomTokens(Dataset):
    """Sequences with a label each; the same ones every time."""

    def __init__(self, count, length, vocabulary):
        generator = torch.Generator().manual_seed(0)
        self._tokens = torch.randint(vocabulary, (count, length), generator=generator)

    def __len__(self):
        return len(self._tokens)

    def __getitem__(self, index):
        tokens = self._tokens[index]
        return {"input_ids": tokens, "labels": int(tokens[0]) % 2}


class Tiny(nn.Module):
    """Mean of embeddings, then a linear layer. A transformer would need more CPU time than the sleep that simulates
    compute."""

    def __init__(self, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, input_ids, labels):
        logits = self.out(self.embed(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PacedTrainer(transformers.Trainer):
    """A Trainer whose loss takes as long as the options specify."""

    compute = None

    def compute_loss(self, *args, **kwargs):
        self.compute.run(self.state.global_step)
        return super().compute_loss(*args, **kwargs)


class Laps(transformers.TrainerCallback):
    """Times steps as a user would."""

    def __init__(self):
        self.times = StepTimes()

    def on_step_end(self, args, state, control, **kwargs):
        self.times.lap()


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--accum", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--save-every", type=int, default=0, help="write a checkpoint each so many steps")
    opt = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        settings = transformers.TrainingArguments(
            output_dir=directory,
            use_cpu=True,
            max_steps=opt.steps,
            per_device_train_batch_size=2,
            # Real work of several ranks on few cores is noisy; the sleep simulates it.
            optim="sgd",
            max_grad_norm=0.0,
            ddp_find_unused_parameters=False,
            gradient_accumulation_steps=opt.accum,
            save_strategy="steps" if opt.save_every else "no",
            save_steps=opt.save_every or 500,
            logging_steps=50,
            report_to=[],
            disable_tqdm=True,
        )
        laps = Laps()
        trainer = PacedTrainer(
            model=Tiny(128),
            args=settings,
            train_dataset=RandomTokens(4096, 8, 128),
            callbacks=[laps],
        )
        rank = int(os.environ.get("RANK", "0"))
        trainer.compute = Compute(opt, rank)
        trainer.train()
        laps.times.report(rank)


if __name__ == "__main__":
    run(main)
