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
    torchs_layout = (*OVERRIDES, "model.channels_last=false")
    project, handwritten, usual = in_turn(
        ROUNDS,
        partial(train, OVERRIDES, THREADS),
        partial(loop, "handwritten.py", OVERRIDES, THREADS),
        partial(loop, "handwritten.py", torchs_layout, THREADS),
    )
    what = f"resnet18, {STEPS} steps"
    return [
        Row(what, project, "hand-written loop, channels last as here", handwritten, "samples/s", at_least=0.97),
        Row(what, project, "hand-written loop, torch's own layout", usual, "samples/s"),
    ]
