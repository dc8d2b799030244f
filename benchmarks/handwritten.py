"""The loop a practitioner would write by hand for the digits, as fast as plain PyTorch makes it easy.

`python handwritten.py PROJECT PACKAGE EPOCHS` prints the training samples per second of the same network, data, batch
size, optimizer, schedule, clipping and metrics as the project's defaults. Validation runs and is not timed.
"""

import importlib
import math
import sys
from time import perf_counter

import torch
from torch import nn


def main(project: str, package: str, epochs: int) -> None:
    sys.path.insert(0, project)
    digits = importlib.import_module(f"{package}.data.digits")
    networks = importlib.import_module(f"{package}.models.networks")

    torch.manual_seed(0)
    data = digits.DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    data.setup()
    spec = data.data_spec
    images, labels = data.splits["train"].images, data.splits["train"].labels
    val_images, val_labels = data.splits["val"].images, data.splits["val"].labels
    mean, std = torch.tensor(spec.mean).view(-1, 1, 1), torch.tensor(spec.std).view(-1, 1, 1)

    net = networks.CNN(spec, widths=[32, 64, 128], dropout=0.1)
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003, weight_decay=0.05, fused=True)
    steps = epochs * (len(labels) // 64)
    warmup = round(0.05 * steps)

    def rate(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return 0.01 + 0.99 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    seconds, samples = 0.0, 0
    for _ in range(epochs):
        net.train()
        started = perf_counter()
        loss_sum, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for batch in torch.randperm(len(labels)).split(64):
            if len(batch) < 64:
                continue
            image, label = (images[batch].float() / 255 - mean) / std, labels[batch]
            logits = net(image)
            loss = loss_function(logits, label)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach() * len(label)
            correct += (logits.argmax(1) == label).sum()
            samples += len(label)
        loss_sum.item(), correct.item()
        seconds += perf_counter() - started
        net.eval()
        with torch.inference_mode():
            (net((val_images.float() / 255 - mean) / std).argmax(1) == val_labels).float().mean().item()
    print(samples / seconds)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
