#!/bin/sh
# Builds the pages of docs/ as a site, which conf/mkdocs.yml describes:
#
#   sh conf/build-site.sh PYTHON FOLDER   PYTHON has Zensical; the site will be FOLDER/site
#
# FOLDER/docs is a copy of docs/ and CHANGELOG.md. The site has each page as Markdown, too: llms.txt links to them.
set -eu

python=$1
folder=$2
cd "$(dirname "$0")/.."
rm -rf "$folder/docs" "$folder/site"
mkdir -p "$folder"
cp -R docs "$folder/docs"
cp conf/mkdocs.yml "$folder"
# Links of a file above docs/: those to pages are shorter here, the others are dead and become names.
sed -E -e 's#\]\(docs/#](#g' -e 's#\[`?([^]`]+)`?\]\((examples|conf|tests)/[^)]*\)#`\1`#g' CHANGELOG.md >"$folder/docs/changelog.md"
(cd "$folder" && "$python" -m zensical build --strict --clean)
cd "$folder/docs"
find . -name '*.md' | tar -cf - -T - | tar -xf - -C ../site
