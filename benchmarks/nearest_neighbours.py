"""How good the features of trained networks are, without their classifier: accuracy of nearest neighbours.

python benchmarks/nearest_neighbours.py runs/simclr runs/prg --data ~/data

20 neighbours    each test image gets the class of its 20 most similar training images, weighted by exp(s / 0.1),
                 where s is the cosine similarity. All training labels are used, so this is no result of a method.
1 label          each test image gets the class of the most similar of 10 training images, one for each class.
                 Mean over 200 draws of these images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnar.models import Classifier
from mnar.run import RunFolder, load_data
from mnar.run.assemble import make_augment, make_model
from mnar.run.model_file import read_weights

NEIGHBOURS, TEMPERATURE, DRAWS, BATCH = 20, 0.1, 200, 1000


@torch.no_grad()
def features(model: Classifier, augment: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    parts = [model.features(augment(part.to(device), "id")).float() for part in images.split(BATCH)]
    return F.normalize(torch.cat(parts), dim=1)


def by_neighbours(test: Tensor, train: Tensor, train_y: Tensor, num_classes: int) -> Tensor:
    """The class of each test image, predicted by its most similar training images."""
    predicted = []
    for part in test.split(BATCH):
        similarity, rows = (part @ train.T).topk(NEIGHBOURS, dim=1)
        votes = torch.zeros(len(part), num_classes, device=part.device)
        predicted.append(votes.scatter_add_(1, train_y[rows], (similarity / TEMPERATURE).exp()).argmax(1))
    return torch.cat(predicted)


def one_label_per_class(test: Tensor, test_y: Tensor, train: Tensor, train_y: Tensor, num_classes: int) -> float:
    """The accuracy of the nearest of one training image per class, as a mean over draws of these images."""
    generator = torch.Generator().manual_seed(0)
    of_class = [torch.nonzero(train_y.cpu() == c).flatten() for c in range(num_classes)]
    accuracies = []
    for _ in range(DRAWS):
        drawn = torch.stack([rows[torch.randint(len(rows), (), generator=generator)] for rows in of_class])
        predicted = (test @ train[drawn.to(train.device)].T).argmax(1)
        accuracies.append((predicted == test_y).float().mean().item())
    return sum(accuracies) / DRAWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    parser.add_argument("--data", type=Path, help="folder of the data set, if it has moved")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{'run':40} {'20 neighbours, %':>16} {'1 label, %':>10}")
    for folder in arguments.runs:
        config = RunFolder(folder).config()
        data = load_data(config, arguments.data)
        model = make_model(config, data)
        model.load_state_dict(read_weights(folder))
        model, augment = model.to(device).eval(), make_augment(config, data).to(device)
        train, test = (features(model, augment, images, device) for images in (data.train_x, data.test_x))
        train_y, test_y = data.train_y.to(device), data.test_y.to(device)
        num_classes = len(data.class_names)
        accuracy = (by_neighbours(test, train, train_y, num_classes) == test_y).float().mean().item()
        few = one_label_per_class(test, test_y, train, train_y, num_classes)
        print(f"{folder!s:40} {100 * accuracy:16.1f} {100 * few:10.1f}", flush=True)


if __name__ == "__main__":
    main()
