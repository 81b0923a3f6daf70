#!/usr/bin/env bash
# Features for new categories: `few-shot` against `quick` with flips, HOURS of training each (2), on mini-ImageNet's photos.
# DATA holds miniimagenet.tar and miniimagenet-split.json. Interrupted, the same command goes on.
# EPOCHS of phi (80, of 250 steps), DRAWS (20), TASKS (2000). PRESETS="few-shot" trains that one alone.
# For choosing settings: SPLIT=validation trains on 64 of the 80 base categories and tests on the other 16; OPTIONS are more of
# `ppa pretrain`, such as OPTIONS="--no-cosine --mixup 0" or OPTIONS="--ensemble 2".
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
for preset in ${PRESETS-few-shot quick}; do
  echo "== $preset: processor time of the training is user + sys below"
  time ppa pretrain "$data/miniimagenet.tar" --split-file "$split" --preset "$preset" --flip --hours "${HOURS:-2}" ${OPTIONS:-} \
    --out "$out/$preset"
  weights=$out/$preset/best.safetensors
  for views in ${VIEWS:-1 2 10}; do # as they are, with their mirror images, and ten crops and mirrored ones
    store=$out/$preset-$views.zarr
    runs=$out/runs-$preset-$views
    actstore build "$data/miniimagenet.tar" "$store" --weights "$weights" --views "$views"
    ppa train --phi phi2 --store "$store" --split-file "$split" --epochs "${EPOCHS:-80}" --out "$runs/phi2"
    test -e "$runs/phi2/calibration.json" || ppa calibrate --phi "$runs/phi2" --store "$store" --shots 1,3
    grep -qs simple-shot "$runs/calibration.json" || ppa calibrate --methods class-mean,simple-shot --store "$store" --split-file "$split" --shots 1,3 \
      --head "$weights" --runs "$runs" --force
    ppa eval --store "$store" --split-file "$split" --phi "$runs/phi2" --methods class-mean,simple-shot --base head --head "$weights" \
      --shots 1,3 --draws "${DRAWS:-20}" --runs "$runs" --out "$out/$preset-$views.md"
    ppa episodes --store "$store" --split-file "$split" --phi "$runs/phi2" --methods class-mean,simple-shot --shots 1,5 --tasks "${TASKS:-2000}" \
      --out "$out/$preset-$views-episodes.md"
  done
done
