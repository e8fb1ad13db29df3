"""Tests the callbacks in real Trainers. Skipped if the libraries are missing."""

import unittest

from ringdump import Mark, steps
from support import has, run

HUGGING_FACE = """
import tempfile, torch, transformers
from torch import nn
import paceline.huggingface
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(16, 8), nn.Linear(8, 2)
    def forward(self, input_ids, labels):
        logits = self.out(self.embed(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
data = [{"input_ids": torch.ones(4, dtype=torch.long), "labels": 1}] * 64
arguments = transformers.TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=8, per_device_train_batch_size=2,
    gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=4,
    report_to=[], disable_tqdm=True, include_num_input_tokens_seen=True)
transformers.Trainer(
    model=Net(), args=arguments, train_dataset=data, eval_dataset=data,
    callbacks=[paceline.huggingface.PacelineCallback()]).train()
"""

LIGHTNING = """
import logging, tempfile, warnings, torch, lightning
import paceline.lightning
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.net(batch[0]).mean()
    validation_step = training_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, max_steps=8, accumulate_grad_batches=2, val_check_interval=8,
    default_root_dir=tempfile.mkdtemp(), logger=False, enable_checkpointing=True, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[paceline.lightning.PacelineCallback()])
trainer.fit(Net(), data, data)
"""


class Importable(unittest.TestCase):
    def test_without_their_libraries(self):
        done = run("""
            import paceline.huggingface, paceline.lightning, sys
            print(any(name in sys.modules for name in ('torch', 'transformers', 'lightning')))
            try:
                paceline.lightning.NoSuchThing
            except AttributeError as error:
                print(error)
        """)
        self.assertEqual(done.out, "False\nmodule 'paceline.lightning' has no attribute 'NoSuchThing'\n")


class Trainers(unittest.TestCase):
    def check(self, script):
        done = run(script, timeout=300)
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(len(done.rings), 1)
        ring = done.rings[0]
        self.assertFalse([r for r in ring.records if r[0] == "note"], ring)
        return steps(ring), [r for r in ring.records if isinstance(r, Mark)]

    @unittest.skipUnless(has("transformers") and has("accelerate"), "no transformers")
    def test_hugging_face(self):
        found, marks = self.check(HUGGING_FACE)
        self.assertEqual([s.step for s in found], list(range(2, 9)))
        self.assertEqual({s.passes for s in found}, {2})
        self.assertEqual({s.tokens for s in found}, {2 * 2 * 4})
        # on_evaluate and on_save come after on_step_end, so they belong to the next step, which is running by then.
        expected = [Mark(4, 0, "evaluation"), Mark(5, 0, "checkpoint"), Mark(7, 0, "evaluation")]
        self.assertEqual(marks[:3], expected)
        self.assertEqual([s.step for s in found if s.kind == 2], [4, 7])
        self.assertEqual([s.step for s in found if s.kind == 1], [5])

    @unittest.skipUnless(has("lightning"), "no lightning")
    def test_lightning(self):
        found, marks = self.check(LIGHTNING)
        self.assertEqual([s.step for s in found], list(range(2, 9)))
        self.assertEqual({s.passes for s in found}, {2})
        self.assertEqual([s.step for s in found if s.kind == 2], [5])
        self.assertIn("evaluation", [m.kind for m in marks])


if __name__ == "__main__":
    unittest.main()
