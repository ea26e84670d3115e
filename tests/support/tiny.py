"""Settings, as --set takes them, that make a run on digits a matter of milliseconds a step."""

TINY = (
    "engine.device=cpu",
    "model.width=4",
    "train.batch_labeled=16",
    "train.batch_unlabeled=32",
    "train.log_every=5",
    "train.eval_every=10",
    "train.save_every=7",
)
