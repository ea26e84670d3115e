"""One torch thread: the tests' tensors are small, and two threads on two busy cores wait for each other."""

import torch

torch.set_num_threads(1)
