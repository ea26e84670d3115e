"""PRG in a training loop of one's own, on 8x8 digits with 72 labels: 20 of the digit 0, one of the digit 9."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from mnar import PRG, NoGuidance, Task, protocols
from mnar.augment import Augment

digits = load_digits()
images, targets = torch.from_numpy(digits.images * 15).to(torch.uint8)[:, None], torch.from_numpy(digits.target)
rows = protocols.split(targets[500:], protocols.cadr(10, gamma=20), seed=1)
x, y = images[500:][rows.labeled_index], targets[500:][rows.labeled_index]
u = images[500:][rows.unlabeled_index]
view = Augment(mean=[0.3], std=[0.35], padding=1, flip=False)


def train(guidance, steps=800):
    torch.manual_seed(1)
    first = nn.Conv2d(1, 16, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(16), nn.ReLU()
    second = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for _ in range(steps):
        labeled, index = torch.randint(len(x), (16,)), torch.randperm(len(u))[:112]
        views = torch.cat([view(x[labeled], "weak"), view(u[index], "weak"), view(u[index], "strong")])
        logits, logits_weak, logits_strong = model(views).split([16, 112, 112])

        q = guidance(logits_weak.detach().softmax(1), index)  # the one new line; FixMatch has the softmax itself
        confidence, target = q.max(1)
        unlabeled = (confidence >= 0.95) * F.cross_entropy(logits_strong, target, reduction="none")
        loss = F.cross_entropy(logits, y[labeled]) + unlabeled.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    predicted = model.eval()(view(images[:500], "id")).argmax(1)
    return (predicted == targets[:500]).float().mean().item()


if __name__ == "__main__":
    task = Task(num_classes=10, num_unlabeled=len(u))
    for guidance in (NoGuidance(task), PRG(task)):
        print(f"{type(guidance).__name__}: {train(guidance):.1%} of the test images right")
