"""For Lightning: `Trainer(..., callbacks=[paceline.lightning.PacelineCallback()])`.

The hook works without it. It adds exact steps, if accumulation or several optimizers make an optimizer's step differ
from a training step, and the time in validation and in checkpoints. lightning (or pytorch_lightning) is imported when
the class is first used.
"""

import paceline


def _base():
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback
    return Callback


def _callback():
    class PacelineCallback(_base()):
        """Reports the Trainer's steps to Paceline."""

        def __init__(self):
            self._step = 0
            self._validation = None

        def on_train_batch_end(self, trainer, *args, **kwargs):
            # global_step grows by the number of optimizers. It does not change while gradients accumulate.
            if trainer.global_step != self._step:
                self._step = trainer.global_step
                paceline.step()

        def on_validation_start(self, *args, **kwargs):
            self._validation = paceline.phase("evaluation")
            self._validation.__enter__()

        def on_validation_end(self, *args, **kwargs):
            if self._validation is not None:
                self._validation.__exit__()
                self._validation = None
                paceline.mark("evaluation")

        def on_save_checkpoint(self, *args, **kwargs):
            paceline.mark("checkpoint")

    return PacelineCallback


def __getattr__(name):
    if name != "PacelineCallback":
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    globals()[name] = _callback()
    return globals()[name]
