#!/usr/bin/env bash
# The baselines that need images, on mini-ImageNet's photos. DATA holds miniimagenet.tar and miniimagenet-split.json;
# FEW_SHOT is what few_shot.sh made (few-shot/best.safetensors and few-shot-1.zarr). Interrupted, the same command goes on.
# SECONDS_EACH: of training of each of four meta-learners (300), on one core; STEPS: of triplets and of fine-tuning (300).
set -euo pipefail
data=${1:?usage: photo_baselines.sh DATA FEW_SHOT [OUT]}
few_shot=${2:?usage: photo_baselines.sh DATA FEW_SHOT [OUT]}
out=${3:-photo-baselines}
split=$data/miniimagenet-split.json
images=$data/miniimagenet.tar
mkdir -p "$out"

learners=()
for learner in matching prototypical maml meta-lstm; do
  OMP_NUM_THREADS=1 ppa baseline "$learner" --images "$images" --split-file "$split" --image-size "${IMAGE_SIZE:-42}" --shots 1 \
    --steps 1000000 --seconds "${SECONDS_EACH:-300}" --out "$out/runs/$learner"
  learners+=(--learner "$out/runs/$learner")
done
test -e "$out/learners.md" || ppa episodes --images "$images" --split-file "$split" "${learners[@]}" --methods none --shots 1 --tasks "${TASKS:-600}" \
  --out "$out/learners.md"

weights=$few_shot/few-shot/best.safetensors
for baseline in triplet-images finetune-images; do
  ppa baseline "$baseline" --images "$images" --split-file "$split" --weights "$weights" \
    --steps "${STEPS:-300}" --out "$out/runs/$baseline"
done
ppa eval --store "$few_shot/few-shot-1.zarr" --split-file "$split" --methods nn,triplet-images,finetune-images --shots 1 \
  --draws "${DRAWS:-5}" --runs "$out/runs" --out "$out/all-way.md"
