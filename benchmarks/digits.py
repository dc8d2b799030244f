"""The project as it comes: the digits and the small convolutional network."""

from functools import partial

from measuring import Row, in_turn, loop, train

ROUNDS, THREADS = 9, 1
OVERRIDES = ("trainer.max_epochs=10", "export=null")


def rows() -> list[Row]:
    project, handwritten = in_turn(
        ROUNDS, partial(train, OVERRIDES, THREADS), partial(loop, "handwritten.py", OVERRIDES, THREADS)
    )
    return [Row("digits cnn, ten epochs", project, "hand-written loop", handwritten, "samples/s")]
