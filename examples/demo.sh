#!/usr/bin/env bash
# A store from nothing, in the folder demo-out: generated rows, then everything one does with a store.
set -euo pipefail
out=demo-out
mkdir -p "$out"
step() { printf '\n$ %s\n' "$*"; "$@"; }

step actstore synth "$out/demo.zarr" --rows 60000 --dim 512 --classes 100
step actstore info "$out/demo.zarr"
step actstore means "$out/demo.zarr"
step actstore query "$out/demo.zarr" --class class42 --limit 3
step actstore export "$out/demo.zarr" "$out/class42.parquet" --class class42
step actstore verify "$out/demo.zarr"

printf '\n$ python  # the same store from any analysis\n'
python - "$out/demo.zarr" <<'PY'
import sys, time
import numpy as np
import actstore

train = actstore.open(sys.argv[1])["train"]
rows = np.random.default_rng(0).integers(0, len(train), 900)
train.take(rows)  # the first touch
begin = time.perf_counter()
taken = train.take(rows)
print(f"train.take(900 random rows) -> {taken.shape} {taken.dtype} in {(time.perf_counter() - begin) * 1e3:.2f} ms")
means = train.means()
unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
nearest = (unit(taken.astype(np.float32)) @ unit(means).T).argmax(1)
print(f"nearest class mean is right for {(nearest == train.labels[rows]).mean():.1%} of them")
PY
printf '\nEverything lies in %s; `make clean` removes it.\n' "$out"
