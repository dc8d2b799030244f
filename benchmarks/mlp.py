"""A network so small that what surrounds it costs most: 784-64-128-64-10 on 60,000 images of 28x28."""

from functools import partial

from measuring import Row, in_turn, loop, train

ROUNDS, THREADS, BATCH = 15, 1, 128
OVERRIDES = (
    *("model=mlp", "model.net.hidden_sizes=[64,128,64]"),
    *("data=synthetic", "data.channels=1", "data.image_size=28", "data.train_samples=60000"),
    *(f"data.batch_size={BATCH}", "trainer.max_epochs=2", "export=null"),
)


def rows() -> list[Row]:
    project, handwritten, bare = in_turn(
        ROUNDS,
        partial(train, OVERRIDES, THREADS),
        partial(loop, "handwritten.py", OVERRIDES, THREADS),
        partial(loop, "bare_lightning.py", OVERRIDES, THREADS),
    )
    microseconds = [[BATCH / speed * 1e6 for speed in speeds] for speeds in (project, bare)]
    return [
        Row("mlp, two epochs", project, "hand-written loop", handwritten, "samples/s", at_least=0.50),
        Row(
            "mlp: all callbacks, metrics and loggers",
            microseconds[0],
            "Lightning without any",
            microseconds[1],
            "µs a step",
            at_most=1.20,
        ),
        Row("mlp: Lightning without any", bare, "hand-written loop", handwritten, "samples/s"),
    ]
