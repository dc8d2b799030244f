"""Divides labelled samples into splits and folds in which every class has its share."""

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


def stratified_order(labels: Positions, seed: int) -> Positions:
    """Order all positions at random so that every stretch of the order holds each class in its share.

    A class of n samples is spread evenly: its k-th sample comes at (k + 1/2) / n of the way. Unlike scikit-learn's
    splitters this takes classes of a single sample, too: those lie in the middle.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        members = np.flatnonzero(labels[shuffled] == label)
        place[members] = (np.arange(len(members)) + 0.5) / len(members)
    # Stable, so that classes of one size take turns in the shuffled order.
    return shuffled[np.argsort(place, kind="stable")]


def split_off(
    labels: Positions, positions: Positions, start: float, share: float, seed: int
) -> tuple[Positions, Positions]:
    """Part `positions` into those that stay and the stretch of their stratified order from `start` on, of that share.

    Args:
        start: from 0 to 1.
        share: of `positions`, from 0 to 1.
    """
    order = positions[stratified_order(labels[positions], seed)]
    first, last = round(start * len(order)), round((start + share) * len(order))
    return np.sort(np.concatenate([order[:first], order[last:]])), np.sort(order[first:last])
