#!/usr/bin/env bash
# Run long studies from a clone of the committed state, so that edits here do not affect them. Calling it again
# continues interrupted studies and reuses the runs that are committed as archives: finished studies in docs/results,
# others in docs/unfinished, where they change no report.
#
#   scripts/experiments.sh FOLDER content.py:speeches content.py:imdb content.py:larger
#   scripts/experiments.sh FOLDER scaling.py:map-vocabulary scaling.py:ladder decoder.py
#
# To continue a long study on another machine, archive it, commit the archive, and call this script there:
#
#   oelm archive FOLDER/runs/STUDY --alone --out docs/unfinished/STUDY
#
# FOLDER is created on the first call; `git -C FOLDER pull` brings it to a newer state. The speeches are read from
# $SPEECHES (studies/fair.py explains where to get them), the part of TinyStories from $STORIES (studies/content.py).
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
shift
[ -d "$folder/.git" ] || git clone --quiet "$here" "$folder"
cd "$folder"
export PYTHONPATH=$PWD/src OMP_NUM_THREADS=1
oelm() { "$here/.venv/bin/python" -m oelm "$@"; }
: "${SPEECHES:=$here/../shared/data/sotu/speeches.txt}" "${STORIES:=$here/../shared/data/tinystories/train.part.txt}"
for size in 512 2048; do
  oelm prepare sotu --from "$SPEECHES" --vocab-size "$size" > /dev/null
done
oelm prepare imdb --vocab-size 512 --tokens 3000000 > /dev/null
if [[ " $* " == *" content.py:tinystories "* ]]; then
  oelm prepare tinystories-part --from "$STORIES" --documents stories --vocab-size 2048
fi
if [[ " $* " == *" scaling.py:"* ]]; then # film reviews and speeches together, as in studies/scaling.py
  mkdir -p text
  cp "$SPEECHES" text/speeches.txt
  [ -s text/reviews.txt ] || "$here/.venv/bin/python" -c '
from oelm.data.sources import packaged_file, read_table
for row in read_table(packaged_file("imdb")):
    print(*str(row["text"]).split())' > text/reviews.txt
  for size in 512 2048; do
    oelm prepare reviews-and-speeches --from text --documents lines --vocab-size "$size" > /dev/null
  done
fi
if [[ " $* " == *" decoder.py"* ]]; then # a pretrained decoder reads its own vocabulary
  oelm prepare sotu --from "$SPEECHES" --tokenizer smollm2 --tokens 300000 > /dev/null
fi
mkdir -p runs
for archive in docs/results/*/runs.tar.xz docs/unfinished/*/runs.tar.xz; do
  [ -e "$archive" ] || continue
  oelm unpack "$archive"
  # What an unfinished study has fixed before its runs began: its registration, choice of rates and prediction.
  folder_of=$(dirname "$archive")
  for fixed in registered choice prediction; do
    if [[ $folder_of == docs/unfinished/* && -e $folder_of/$fixed.json ]]; then
      cp -n "$folder_of/$fixed.json" "runs/$(basename "$folder_of")/"
    fi
  done
done
for each in "$@"; do
  file=${each%%:*} scale=${each#"${each%%:*}"}
  oelm run "studies/$file" ${scale:+--scale "${scale#:}"}
done
