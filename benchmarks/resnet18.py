"""A real network, resnet18 at 32x32x3: what surrounds it must not show."""

from functools import partial

from measuring import Row, in_turn, loop, train

ROUNDS, THREADS, BATCH, STEPS = 7, None, 128, 15
OVERRIDES = (
    *("model=resnet18", "data=synthetic", "data.channels=3", "data.image_size=32", f"data.batch_size={BATCH}"),
    *(f"data.train_samples={STEPS * BATCH}", f"data.val_samples={BATCH}", f"data.test_samples={BATCH}"),
    *("trainer.max_epochs=1", "export=null"),
)


def rows() -> list[Row]:
    project, handwritten = in_turn(
        ROUNDS, partial(train, OVERRIDES, THREADS), partial(loop, "handwritten.py", OVERRIDES, THREADS)
    )
    return [Row(f"resnet18, {STEPS} steps", project, "hand-written loop", handwritten, "samples/s", at_least=0.97)]
