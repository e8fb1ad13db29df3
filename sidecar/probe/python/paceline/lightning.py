"""A callback for Lightning. The hook sees a Lightning job's steps without it; with it they carry Lightning's own numbers,
and checkpoints and validations are told.

    from paceline.lightning import Callback
    Trainer(..., callbacks=[Callback()])
"""

import paceline


def __getattr__(name):
    # Lightning is imported when the class is asked for, and only then; under whichever name it is installed.
    if name != "Callback":
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    try:
        from lightning.pytorch.callbacks import Callback as Base
    except ImportError:
        from pytorch_lightning.callbacks import Callback as Base

    class Callback(Base):
        """Ends Paceline's steps where Lightning's optimizer steps end, whatever the number of batches in one."""

        def __init__(self):
            super().__init__()
            self._told = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.global_step != self._told:
                self._told = trainer.global_step
                paceline.step(step=trainer.global_step)

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            paceline.mark("checkpoint", value=trainer.global_step)

        def on_validation_start(self, trainer, pl_module):
            if not trainer.sanity_checking:
                paceline.mark("evaluation", value=trainer.global_step)

    Callback.__module__ = __name__
    globals()["Callback"] = Callback
    return Callback
