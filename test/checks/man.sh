#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every function of hoccl.h has a man page, made from the header as it is now, and the pages render without a warning.
set -u
cd "${top_builddir:?}" || exit 1
bad=0

complain() {
    echo "FAIL: $*"
    bad=1
}

# page NAME: its path; a source tarball brings the pages along.
page() {
    if [ -f "doc/man/$1" ]; then
        echo "doc/man/$1"
    else
        echo "${top_srcdir:?}/doc/man/$1"
    fi
}

# Not by make-man, which is what is tested here.
functions=$(tr '\n' ' ' <"$top_srcdir/include/hoccl.h" | grep -oE 'HOCCL_API [^;(]*\(' | grep -oE 'HOCCL_[A-Za-z0-9_]+\($' | tr -d '(')
for function in $functions; do
    file=$(page "$function.3")
    if [ ! -f "$file" ]; then
        complain "$function has no page: add doc/man/$function.3 to doc/man/Makefile.inc"
        continue
    fi
    target=$(sed -n 's|^\.so man3/||p' "$file")
    [ -z "$target" ] || file=$(page "$target")
    grep -q "^\\.B \".*[ *]$function(" "$file" || complain "$file does not show the prototype of $function"
    awk '/^\.SH NAME/ { getline; print }' "$file" | grep -q "$function.* \\\\- ." || complain "$file does not name $function"
done
echo "$(wc -w <<<"$functions") functions"

# No page is left of a function that has gone.
while read -r name; do
    grep -qx "$name" <<<"$functions" || complain "doc/man/$name.3 belongs to no function of hoccl.h"
done < <(grep -oE 'HOCCL_[A-Za-z0-9_]+\.3' "$top_srcdir/doc/man/Makefile.inc" | sed 's/\.3$//')

for file in $(page hoccl.7) $(for f in $functions; do page "$f.3"; done); do
    [ -f "$file" ] || continue
    LC_ALL=C grep -n '[^ -~]' "$file" | sed "s|^|$file: |"
    LC_ALL=C grep -q '[^ -~]' "$file" && complain "$file: letters that troff may not know"
    grep -nE '#if|HOCCL_API|/\*|\*/' "$file" && complain "$file: C where there should be text"
done

for setting in $(grep -oE '^ *\{"HOCCL_[A-Z_]+' "$top_srcdir/src/base/setting.c" | tr -d ' {"' | grep -v HOCCL_TEST_); do
    grep -q "^\\.B $setting\$" "$(page hoccl.7)" || complain "hoccl(7) does not have the setting $setting"
done
[ $bad = 0 ] || exit 1

if ! command -v groff >/dev/null; then
    echo "no groff to render the man pages with"
    exit 77
fi
for function in hoccl $functions; do
    file=$(page "$function.3")
    [ "$function" != hoccl ] || file=$(page hoccl.7)
    grep -q '^\.so ' "$file" && continue
    output=$(groff -man -Tascii -ww -z "$file" 2>&1)
    [ -z "$output" ] || complain "$output"
    command -v man >/dev/null || continue
    output=$(LC_ALL=C MANWIDTH=80 man --warnings -l "$file" 2>&1 >/dev/null)
    [ -z "$output" ] || complain "$output"
done
exit $bad
