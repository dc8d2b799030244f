"""The loop a practitioner would write by hand, as fast as plain PyTorch makes it easy.

`python handwritten.py PROJECT PACKAGE OVERRIDES` prints the training samples per second of the same network, data,
batch size, optimizer, schedule, clipping and metrics as the project's. Validation runs and is not timed.
"""

import os
import sys
from time import perf_counter

import torch
from job import WARM_UP_BATCHES, load, mean_and_std, optimizer_and_schedule
from torch import nn


def main(project: str, package: str, *overrides: str) -> None:
    datamodule, net, config = load(project, package, list(overrides))
    # Lightning, which the data module imports, sets it, and it slows Adam down where there is no GPU.
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    images, labels = datamodule.splits["train"].images, datamodule.splits["train"].labels
    validation = datamodule.splits["val"]
    mean, std = mean_and_std(datamodule)
    batch_size, epochs = config.data.batch_size, config.trainer.max_epochs
    clip, batches = config.trainer.gradient_clip_val, len(labels) // batch_size
    loss_function = nn.CrossEntropyLoss()
    optimizer, schedule = optimizer_and_schedule(net, config, epochs * batches)

    step = samples = 0
    seconds = 0.0
    for _ in range(epochs):
        net.train()
        started = perf_counter()
        loss_sum, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for batch in torch.randperm(len(labels)).split(batch_size)[:batches]:
            if step == WARM_UP_BATCHES:
                samples, seconds, started = 0, 0.0, perf_counter()
            image, label = (images[batch].float() / 255 - mean) / std, labels[batch]
            logits = net(image)
            loss = loss_function(logits, label)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach() * len(label)
            correct += (logits.argmax(1) == label).sum()
            samples += len(label)
            step += 1
        loss_sum.item(), correct.item()
        seconds += perf_counter() - started
        net.eval()
        with torch.inference_mode():
            for image, label in zip(
                validation.images.split(batch_size), validation.labels.split(batch_size), strict=True
            ):
                (net((image.float() / 255 - mean) / std).argmax(1) == label).float().mean().item()
    print(samples / seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
