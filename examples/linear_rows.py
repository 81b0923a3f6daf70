"""Names of activations with a layer of `ppa export --torch linear.pt`, without actstore.

pip install torch numpy; python linear_rows.py linear.pt activations.npy
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

file, rows = Path(sys.argv[1]), torch.from_numpy(np.load(sys.argv[2]).astype("float32"))  # (n, dim)
state, names = torch.load(file, weights_only=True), json.loads(file.with_suffix(".json").read_text("utf-8"))
layer = torch.nn.Linear(*reversed(state["weight"].shape))
layer.load_state_dict({name: state[name] for name in ("weight", "bias")})
if "query_scale" in state:
    rows = torch.nn.functional.normalize(rows) * state["query_scale"]
scores = torch.full((len(rows), len(names["categories"])), -torch.inf)  # a category may have several rows: the highest
scores.scatter_reduce_(1, state["row_category"].expand(len(rows), -1), layer(rows).detach(), "amax")
for line in scores.softmax(1):
    shares, places = line.topk(min(5, len(line)))
    print(*(f"{names['categories'][p]} {s:.1%}" for p, s in zip(places, shares, strict=True)), sep="  ")
