"""The callbacks in real trainers, each in a process of its own. Skipped where the library is not there."""

import unittest

from ringdump import Mark, steps
from support import has, run


class Callbacks(unittest.TestCase):
    def check(self, text):
        done = run(text, timeout=180, HF_HUB_OFFLINE="1")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(len(done.rings), 1, done.files)
        return done.rings[0]

    def test_they_are_importable_without_their_libraries(self):
        done = run("import paceline.huggingface, paceline.lightning, sys; print('torch' in sys.modules)")
        self.assertEqual((done.code, done.out), (0, "False\n"), done.err)

    @unittest.skipUnless(has("transformers") and has("accelerate"), "no transformers")
    def test_hugging_face_steps_carry_the_trainers_numbers_and_checkpoints_are_told(self):
        ring = self.check(
            """
            import torch, transformers
            from paceline.huggingface import Callback
            config = transformers.BertConfig(
                vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
            )
            rows = [{"input_ids": torch.tensor([1, 2]), "attention_mask": torch.ones(2), "labels": i % 2} for i in range(64)]
            settings = transformers.TrainingArguments(
                output_dir="out", use_cpu=True, max_steps=12, per_device_train_batch_size=2, save_strategy="steps",
                save_steps=6, report_to=[], disable_tqdm=True,
            )
            transformers.Trainer(
                transformers.BertForSequenceClassification(config), settings, train_dataset=rows, callbacks=[Callback()]
            ).train()
            """
        )
        self.assertEqual([step.step for step in steps(ring)][-1], 12)
        self.assertEqual(len({step.step for step in steps(ring)}), len(steps(ring)))
        marks = [record for record in ring.records if isinstance(record, Mark)]
        self.assertIn(Mark(7, 6, "checkpoint"), marks)

    @unittest.skipUnless(has("lightning"), "no lightning")
    def test_lightning_steps_are_optimizer_steps(self):
        ring = self.check(
            """
            import lightning, torch
            from paceline.lightning import Callback
            class Model(lightning.LightningModule):
                def __init__(self):
                    super().__init__()
                    self.layer = torch.nn.Linear(4, 1)
                def training_step(self, batch, index):
                    return self.layer(batch).mean()
                def configure_optimizers(self):
                    return torch.optim.SGD(self.parameters(), lr=0.1)
            data = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=2)
            lightning.Trainer(
                accelerator="cpu", max_epochs=1, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, callbacks=[Callback()],
            ).fit(Model(), data)
            """
        )
        numbers = [step.step for step in steps(ring)]
        self.assertEqual((numbers[-1], len(set(numbers))), (10, len(numbers)))


if __name__ == "__main__":
    unittest.main()
