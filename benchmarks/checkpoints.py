"""What keeping checkpoints adds to an epoch: two are written behind each, and a real epoch is longer than this one."""

from functools import partial

from measuring import Row, in_turn, train

ROUNDS, THREADS, BATCH, STEPS = 3, None, 128, 20
OVERRIDES = (
    *("model=resnet18", "data=synthetic", "data.channels=3", "data.image_size=32", f"data.batch_size={BATCH}"),
    *(f"data.train_samples={STEPS * BATCH}", f"data.val_samples={BATCH}", f"data.test_samples={BATCH}"),
    *("trainer.max_epochs=1", "export=null"),
)
WITHOUT = ("callbacks.best_checkpoint=null", "callbacks.last_checkpoint=null")


def rows() -> list[Row]:
    kept, without = in_turn(ROUNDS, partial(train, OVERRIDES, THREADS), partial(train, (*OVERRIDES, *WITHOUT), THREADS))
    what = f"resnet18, an epoch of {STEPS} steps, checkpoints as shipped"
    return [Row(what, kept, "without checkpoints", without, "samples/s", at_least=0.97)]
