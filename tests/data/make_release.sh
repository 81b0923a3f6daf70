# How the files in earlier.tar.gz were made, with the code of commit d5e7936: run in an empty folder. The answers in
# answers/ are what the commands of tests/test_earlier_release.py printed with that code.
set -euo pipefail
python - <<'P'
import numpy as np
r = np.random.default_rng(5)
centres = r.random((20, 16)) * 2
labels = np.repeat(np.arange(20), 12)
rows = np.maximum(centres[labels] + 0.4 * r.standard_normal((240, 16)), 0).astype(np.float32)
order = r.permutation(240)
np.savez("features.npz", train=rows[order][:200], train_labels=labels[order][:200], val=rows[order][200:], val_labels=labels[order][200:])
open("names.txt", "w").write("".join(f"class{i:02}\n" for i in range(20)))
np.save("queries.npy", np.maximum(centres[[1, 18, 19]] + 0.2, 0).astype(np.float32))
P
actstore import features.npz features.zarr --classes names.txt
actstore means features.zarr
actstore synth many.zarr --rows 1500 --dim 32 --classes 10
actstore index many.zarr --kind bounded
actstore index many.zarr --kind ivf-sq
ppa pretrain glyphs:10x6x3 --backbone simple --image-size 16 --epochs 1 --batch-size 10 --workers 0 --out backbone
actstore build glyphs:10x6x3 glyphs.zarr --backbone simple --weights backbone/best.safetensors --workers 0
ppa split --store features.zarr --out split.json
ppa train --phi phi2 --store features.zarr --epochs 2 --batches 40 --out runs/phi2
ppa train --phi phi1 --store features.zarr --epochs 1 --batches 20 --out runs/phi1
ppa calibrate --phi runs/phi2 --store features.zarr --tasks 4 --shots 1,3
ppa adapt --phi runs/phi2 --store features.zarr --support-store features.zarr --support-split train --class class18 --class class19 --rows 0:60
ppa baseline head --store features.zarr --epochs 2 --out runs/head
ppa baseline triplet --store features.zarr --steps 30 --out runs/triplet
