"""For Lightning: `Trainer(..., callbacks=[paceline.lightning.PacelineCallback()])`.

The hook sees such a program without it. It adds exact steps, where accumulation or several optimizers make an
optimizer's step something else, and the time in validation and in checkpoints. lightning (or pytorch_lightning) is
imported when the class is first asked for.
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
        """Tells Paceline what the Trainer does."""

        def __init__(self):
            self._step = 0
            self._validation = None

        def on_train_batch_end(self, trainer, *args, **kwargs):
            # global_step grows by the number of optimizers; between, gradients accumulate.
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
