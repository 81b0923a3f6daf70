"""CKA (Kornblith et al. 2019, linear) between two layers of one build. `python cka.py [STORE SPLIT SPLIT]`"""

import sys
import tempfile

import numpy as np

import actstore


def generated(folder: str) -> str:
    """Glyphs through an untrained network, two of its layers: splits `train` and `train.layer3`."""
    path = f"{folder}/glyphs.zarr"
    layers = ["layer2", "layer3"]
    actstore.build("glyphs:20x10x0", path, backbone="small", layers=layers, random_weights=True, workers=0)
    return path


def cka(one: actstore.Split, other: actstore.Split) -> float:
    """1 where one layer is a turned and scaled other; block by block, so that no layer has to fit into memory."""
    sums = [np.zeros(split.dim) for split in (one, other)]
    grams = dict.fromkeys(((0, 0), (0, 1), (1, 1)), 0.0)
    for blocks in zip(one.blocks(4096), other.blocks(4096), strict=True):
        wide = [block.astype(np.float64) for block in blocks]
        sums = [total + block.sum(0) for total, block in zip(sums, wide, strict=True)]
        grams = {(i, j): gram + wide[i].T @ wide[j] for (i, j), gram in grams.items()}
    centred = {(i, j): np.linalg.norm(gram - np.outer(sums[i], sums[j]) / len(one)) for (i, j), gram in grams.items()}
    return float(centred[0, 1] ** 2 / (centred[0, 0] * centred[1, 1]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path, *names = sys.argv[1:] if len(sys.argv) > 3 else (generated(folder), "train", "train.layer3")
        store = actstore.open(path)
        print(f"CKA of {names[0]} and {names[1]}: {cka(store[names[0]], store[names[1]]):.4f}")
