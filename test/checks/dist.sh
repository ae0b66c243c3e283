#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The source tarball has every file of the repository.
set -u
cd "${top_srcdir:?}" || exit 1
if ! git rev-parse --git-dir >/dev/null 2>&1; then
    echo "not a git checkout"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset MAKEFLAGS MFLAGS MAKELEVEL
make -s -C "${top_builddir:?}" distdir distdir="hoccl-dist-$$" >"$work/output" 2>&1 </dev/null || {
    cat "$work/output"
    exit 1
}
(cd "$top_builddir/hoccl-dist-$$" && find . -type f | sed 's|^\./||' | sort) >"$work/packed"
chmod -R u+w "$top_builddir/hoccl-dist-$$"
rm -rf "${top_builddir:?}/hoccl-dist-$$"
missing=$(git ls-files | sort | comm -13 "$work/packed" - | grep -vE '^\.(gitignore|gitattributes)$')
if [ -n "$missing" ]; then
    echo "not in the tarball (add to EXTRA_DIST or to a program's sources):"
    echo "$missing"
    exit 1
fi
echo "$(wc -l <"$work/packed") files"
