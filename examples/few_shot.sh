#!/usr/bin/env bash
# Features for new categories: `few-shot` against `quick` with flips, HOURS of training each (2), on mini-ImageNet's photos.
# DATA holds miniimagenet.tar and miniimagenet-split.json. Interrupted, the same command goes on.
# SPLIT=validation trains on 64 of the 80 base categories and tests on the other 16: for choosing settings.
set -euo pipefail
data=${1:?usage: few_shot.sh DATA [OUT]}
out=${2:-few-shot-out}
mkdir -p "$out"
split=$out/split.json
if [ "${SPLIT:-novel}" = validation ]; then
  python3 - "$data/miniimagenet-split.json" "$split" <<'PY'
import json, sys
usual = json.load(open(sys.argv[1]))
new = usual["validation_novel_of_the_usual_split"]
json.dump({"base": [name for name in usual["base"] if name not in new], "novel": new}, open(sys.argv[2], "w"))
PY
else
  cp "$data/miniimagenet-split.json" "$split"
fi
for preset in few-shot quick; do
  echo "== $preset: processor time of the training is user + sys below"
  time ppa pretrain "$data/miniimagenet.tar" --split-file "$split" --preset "$preset" --flip --hours "${HOURS:-2}" --out "$out/$preset"
  store=$out/$preset.zarr
  actstore build "$data/miniimagenet.tar" "$store" --weights "$out/$preset/best.safetensors" --views "${VIEWS:-1}"
  ppa calibrate --methods class-mean --store "$store" --split-file "$split" --shots 1,3 --head "$out/$preset/best.safetensors" --runs "$out/runs-$preset"
  ppa eval --store "$store" --split-file "$split" --methods class-mean --base head --shots 1,3 --runs "$out/runs-$preset" --out "$out/$preset.md"
  ppa episodes --store "$store" --split-file "$split" --methods class-mean --shots 1,5 --tasks 2000 --out "$out/$preset-episodes.md"
done
