"""A callback for Hugging Face's Trainer. The hook sees a Trainer's steps without it; with it they carry the Trainer's own
numbers, and checkpoints and evaluations are told.

    from paceline.huggingface import Callback
    Trainer(..., callbacks=[Callback()])
"""

import paceline


def __getattr__(name):
    # transformers is imported when the class is asked for, and only then.
    if name != "Callback":
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        """Ends Paceline's steps where the Trainer's end. Saving and evaluating come after that: they belong to the
        next step, which is kept apart from ordinary ones."""

        def on_step_end(self, args, state, control, **kwargs):
            paceline.step(step=state.global_step)

        def on_save(self, args, state, control, **kwargs):
            paceline.mark("checkpoint", value=state.global_step)

        def on_evaluate(self, args, state, control, **kwargs):
            paceline.mark("evaluation", value=state.global_step)

    Callback.__module__ = __name__
    globals()["Callback"] = Callback
    return Callback
