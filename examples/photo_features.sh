#!/usr/bin/env bash
# The whole way on features of 1280 dimensions: photos through efficientnet-lite0, phi, table, figures, report.
# That network was trained on ALL categories of ImageNet: no category is novel to it, and every table says so.
# DATA holds miniimagenet.tar and miniimagenet-split.json. PER_CLASS: training photos of each
# category (40; 500 are there), and a quarter as many to test on. BACKBONE, WEIGHTS="--weights FILE": of another network.
set -euo pipefail
data=${1:?usage: photo_features.sh DATA [OUT]}
out=${2:-photo-features}
mkdir -p "$out"
python3 - "$data/miniimagenet.tar" "$out/photos.tar" "${PER_CLASS:-40}" <<'PY'
import collections, sys, tarfile
source, target, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
taken = collections.Counter()
with tarfile.open(source) as photos, tarfile.open(target, "w") as few:
    for photo in photos:
        folder = photo.name.rpartition("/")[0]
        if photo.isfile() and taken[folder] < (most if "/train/" in photo.name else max(1, most // 4)):
            taken[folder] += 1
            few.addfile(photo, photos.extractfile(photo))
PY
export ACTSTORE=$out/photos.zarr
actstore build "$out/photos.tar" "$ACTSTORE" --backbone "${BACKBONE:-efficientnet-lite0}" ${WEIGHTS:-}
ppa split --from "$data/miniimagenet-split.json" --out "$out/split.json"
for phi in phi1 phi2; do
  ppa train --phi "$phi" --split-file "$out/split.json" --epochs "${EPOCHS:-8}" --out "$out/runs/$phi"
  test -e "$out/runs/$phi/calibration.json" || ppa calibrate --phi "$out/runs/$phi" --shots 1
done
ppa eval --phi "$out/runs/phi1" --phi "$out/runs/phi2" --methods nn,class-mean --split-file "$out/split.json" \
  --shots 1,3 --draws "${DRAWS:-5}" --out "$out/table.json"
ppa figures --run-folder "$out"
ppa report --folder "$out"
