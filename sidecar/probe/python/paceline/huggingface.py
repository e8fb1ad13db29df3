"""For Hugging Face Trainer: `Trainer(..., callbacks=[paceline.huggingface.PacelineCallback()])`.

The hook works without it. It adds exact steps (also those whose optimizer step the gradient scaler skipped), tokens if
the Trainer counts them, and marks steps that contain an evaluation or a checkpoint. transformers is imported when the
class is first used.
"""

import paceline


def _callback():
    from transformers import TrainerCallback

    class PacelineCallback(TrainerCallback):
        """Reports the Trainer's steps to Paceline."""

        def __init__(self):
            self._tokens = 0

        def on_step_end(self, args, state, control, **kwargs):
            seen = int(getattr(state, "num_input_tokens_seen", 0) or 0)
            # The count is over all ranks, and a Trainer's ranks share a batch evenly.
            tokens = (seen - self._tokens) // max(args.world_size, 1)
            self._tokens = seen
            paceline.step(step=state.global_step, tokens=max(tokens, 0) or None)

        def on_evaluate(self, args, state, control, **kwargs):
            paceline.mark("evaluation")

        def on_save(self, args, state, control, **kwargs):
            paceline.mark("checkpoint")

    return PacelineCallback


def __getattr__(name):
    if name != "PacelineCallback":
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    globals()[name] = _callback()
    return globals()[name]
