#!/usr/bin/env bash
# The tables on birds in docs/results.md. FOLDER holds Caltech-UCSD Birds 200-2011 as train/CATEGORY/*.jpg and test/CATEGORY/*.jpg, as the public
# repository cyizhuo/CUB-200-2011-dataset has it. Under half an hour on 2 idle cores, of which half makes activations; interrupted, the same command goes on.
# Methods that train for every draw are not in the all-way table; to see them, add child,finetune to its --methods.
# LISTS: a folder with the published examples, such as data/index_list/cub200 of the public repository xyutao/fscil.
# NETWORKS: side by side, for the sessions. SPLITS and SEEDS: which class splits and seeds of phi the all-way table is over (three each), DRAWS of examples (20). OPTIONS: more of `ppa train`, STEPS: of attention over base weights.
set -euo pipefail
folder=${1:?usage: birds.sh FOLDER [OUT]}
out=${2:-birds-out}
mkdir -p "$out"
settings=(--lr 0.03 --cosine --no-bias --p-mean 0.1) # chosen on the first 100 categories

# Sessions: the first 100 categories are the base, ten times ten more from five photos each.
store=$out/joined.zarr
actstore build "$folder" "$store" --backbone "${NETWORKS:-efficientnet-lite0+efficientnet-lite1+efficientnet-lite2}"
split=$out/sessions.json
ppa split --store "$store" --novel-share 0.5 --out "$split"
ppa train --store "$store" --phi phi1 --split-file "$split" --out "$out/phi1" --epochs 2 --examples 5 "${settings[@]}" ${OPTIONS:-}
common=(--store "$store" --phi "$out/phi1" --methods class-mean,simple-shot --split-file "$split" --test-split test --way 10 --shots 5)
test -e "$out/sessions.md" || ppa sessions "${common[@]}" --draws 10 --out "$out/sessions.md"
if [ -n "${LISTS:-}" ]; then
  cat "$LISTS"/session_*.txt > "$out/listed.txt"
  test -e "$out/sessions-listed.md" || ppa sessions "${common[@]}" --examples "$out/listed.txt" --out "$out/sessions-listed.md"
fi

# All-way: 100 base, 50 validation and 50 novel categories, one network.
export ACTSTORE=$out/one.zarr
actstore build "$folder" "$ACTSTORE" --backbone efficientnet-lite0
for number in ${SPLITS:-1 2 3}; do
  split=$out/split-$number.json
  ppa split --seed "$number" --novel-share 0.25 --validation-share 0.25 --out "$split"
  runs=$out/runs-$number
  ppa baseline head --split-file "$split" --out "$runs/head"
  ppa baseline attention --split-file "$split" --out "$runs/attention" --steps "${STEPS:-2000}"
  phis=()
  for seed in ${SEEDS:-0 1 2}; do
    run=$out/phi1-$number-$seed
    ppa train --phi phi1 --split-file "$split" --out "$run" --seed "$seed" --epochs 2 --examples 1-5 --lr 0.02 --no-bias --p-mean 0.1 ${OPTIONS:-}
    phis+=(--phi "$run")
  done
  table=$out/all-way-$number.json
  test -e "$table" || ppa eval "${phis[@]}" --methods nn,class-mean,simple-shot,ridge,tip-adapter,imprint,attention --runs "$runs" \
    --split-file "$split" --test-split test --shots 1,3,5 --draws "${DRAWS:-20}" --out "$table"
done
python3 "$(dirname "$0")/birds_table.py" "$out"/all-way-*.json --csv "$out/birds-all-way.csv"
