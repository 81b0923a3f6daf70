#!/usr/bin/env bash
# The README's tables on mini-ImageNet's activations: DATA holds miniimagenet-activations.npz and miniimagenet-split.json.
# About 11 minutes on 2 cores (25 with EPOCHS=300); interrupted, the same command goes on.
set -euo pipefail
data=${1:?usage: miniimagenet.sh DATA [OUT]}
out=${2:-results}
epochs=${EPOCHS:-80} # of 250 steps: 20,000 in all; the paper trains 300
mkdir -p "$out"
head=$data/miniimagenet-activations.npz

test -e "$out/mini.zarr" || actstore import "$head" "$out/mini.zarr" --trained-on "$data/miniimagenet-split.json"
export ACTSTORE=$out/mini.zarr
ppa split --from "$data/miniimagenet-split.json" --out "$out/split.json"
for phi in phi1 phi2 phi2star; do
  ppa train --phi "$phi" --split-file "$out/split.json" --epochs "$epochs" --out "$out/$phi"
  ppa calibrate --phi "$out/$phi" --force
done
ppa baseline triplet --split-file "$out/split.json" --out "$out/runs/triplet"
ppa baseline oracle --split-file "$out/split.json" --out "$out/runs/oracle"
ppa calibrate --methods all --split-file "$out/split.json" --head "$head" --runs "$out/runs" --force
phis=(--phi "$out/phi1" --phi "$out/phi2" --phi "$out/phi2star")
ppa eval "${phis[@]}" --methods all --base head --head "$head" --runs "$out/runs" --draws 20 --out "$out/all-way.md"
ppa analyse --phi "$out/phi1" --head "$head"
ppa episodes --split-file "$out/split.json" "${phis[@]}" --shots 1,5 --tasks 2000 \
  --methods nn,class-mean,simple-shot,imprint,finetune --out "$out/five-way.md"
