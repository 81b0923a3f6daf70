"""A linear probe: how much of the labels a linear layer reads off the activations. `python linear_probe.py [STORE]`"""

import sys
import tempfile

import torch

import actstore


def generated(folder: str) -> str:
    """A store of ten classes around ten centres."""
    random = torch.Generator().manual_seed(0)
    centres, splits = torch.randn(10, 64, generator=random), {}
    for name, count in (("train", 2000), ("val", 500)):
        labels = torch.randint(10, (count,), generator=random)
        splits[name] = (centres[labels] + 2 * torch.randn(count, 64, generator=random)).numpy(), labels.numpy()
    actstore.from_arrays(f"{folder}/probe.zarr", splits)
    return f"{folder}/probe.zarr"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        store = actstore.open(sys.argv[1] if len(sys.argv) > 1 else generated(folder))
        train, val = store["train"], store["val"]
        probe = torch.nn.Linear(train.dim, len(train.classes))
        scale = 1 / train.to_torch(range(0, len(train), 7), dtype=torch.float32).std()
        optimizer = torch.optim.AdamW(probe.parameters(), lr=0.01)
        for epoch in range(10):
            for rows, labels in train.to_dataset(batch_size=256, seed=epoch):
                loss = torch.nn.functional.cross_entropy(probe(rows.float() * scale), labels.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        found = [(probe(rows.float() * scale).argmax(1) == labels).float() for rows, labels in val.to_dataset(256)]
        print(f"{torch.cat(found).mean():.1%} of {len(val):,} rows of val, {len(val.classes)} classes")
