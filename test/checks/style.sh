#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the compiler does not check about the source: layers, macros, exports, headers, sizes, licence lines, format,
# spelling, scripts. Run by make check over the whole tree; "style.sh ROOT [CHECK…]" runs some checks over another tree.
# LIBRARY is the shared library whose exports are compared with hoccl.h; no comparison if it is empty.
set -u
root=${1:-${top_srcdir:?}}
[ $# = 0 ] || shift
checks=${*:-layers macros exports headers sizes licences format spelling scripts}
library=${LIBRARY-${top_builddir:+$top_builddir/.libs/libhoccl.so}}
cc=${CC:-cc}
cd "$root" || exit 1

# Which folders a folder of src/ may include from (besides itself and include/); "cuda" is the driver's header.
layers='
api       base core sched cuda
core      base device stream boot topo transport p2p sched cuda
sched     base topo
p2p       base device topo boot transport stream sched cuda
stream    base device cuda
transport base
topo      base device cuda
boot      base
device    base cuda
base
emu       cuda
cuda
nccl
'
max_function=100 max_source=600

# files PATTERN…: the tree's own files, without what a build makes.
files() {
    local pattern tests=()
    for pattern in "$@"; do
        tests+=(-o -name "$pattern")
    done
    find . \( -name 'build*' -o -name .git -o -name autom4te.cache \) -prune -o \
        \( -name configure -o -name 'configure~' -o -name aclocal.m4 -o -name libtool.m4 -o -name 'lt*.m4' \) -prune -o \
        -type f \( "${tests[@]:1}" \) -print | sed 's|^\./||' | sort
}

# code FILE: the file without comments and the contents of strings, lines kept.
code() {
    awk '
    {
        out = ""; line = $0
        while (line != "") {
            if (inside) {
                end = index(line, "*/")
                if (!end) { line = ""; break }
                inside = 0; line = substr(line, end + 2); continue
            }
            if (!match(line, /"|\047|\/\*|\/\//)) { out = out line; break }
            mark = substr(line, RSTART, RLENGTH); out = out substr(line, 1, RSTART - 1); line = substr(line, RSTART)
            if (mark == "//") break
            if (mark == "/*") { inside = 1; line = substr(line, 3); continue }
            if (mark == "\"" && match(line, /^"([^"\\]|\\.)*"/)) { out = out "\"\""; line = substr(line, RLENGTH + 1); continue }
            if (mark == "\047" && match(line, /^\047([^\047\\]|\\.)*\047/)) { out = out "0"; line = substr(line, RLENGTH + 1); continue }
            out = out substr(line, 1, 1); line = substr(line, 2)
        }
        print out
    }' "$1"
}

check_layers() {
    local file folder target number name allowed
    while read -r file; do
        folder=${file#src/}
        folder=${folder%%/*}
        while IFS=: read -r number name; do
            if [ -f "$(dirname "$file")/$name" ]; then
                target=$(realpath -m --relative-to=src "$(dirname "$file")/$name")
            elif [ "$name" = cuda.h ]; then
                target=cuda/cuda.h
            elif [ -f "src/$name" ]; then
                target=$name
            else
                continue
            fi
            case $target in ../*) continue ;; esac
            target=${target%%/*}
            allowed=$(awk -v folder="$folder" '$1 == folder { $1 = ""; print $0 " " folder " " }' <<<"$layers")
            case " $allowed" in
            *" $target "*) ;;
            *) echo "$file:$number: src/$folder may not include src/$target ($name)" ;;
            esac
        done < <(sed -n 's/^[ \t]*#[ \t]*include[ \t]*[<"]\([^>"]*\)[>"].*/\1/;T;=;p' "$file" | paste -d: - -)
    done < <(files '*.c' '*.h' '*.S' | grep '^src/[^/]*/')
}

check_macros() {
    local file
    while read -r file; do
        code "$file" | awk -v file="$file" '
        /^[ \t]*#[ \t]*define/ { start = NR; body = ""; inside = 1 }
        inside {
            body = body " " $0
            if ($0 !~ /\\$/) {
                inside = 0
                if (body ~ /(^|[^A-Za-z0-9_])(return|goto|break|continue)([^A-Za-z0-9_]|$)/)
                    print file ":" start ": a macro hides a jump (return, goto, break or continue)"
            }
        }'
    done < <(files '*.c' '*.h' | grep -E '^(src|include|launcher|examples)/')
}

declared() {
    code include/hoccl.h | tr '\n' ' ' | grep -oE 'HOCCL_API [^;]*;' | grep -oE 'HOCCL_[A-Za-z0-9_]+ *\(' | tr -d ' (' | sort -u
}

exported() {
    nm -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | sort -u
}

check_exports() {
    [ -n "$library" ] || return 0
    comm -23 <(exported) <(declared) | sed "s|.*|$(basename "$library"): exports &, which hoccl.h does not declare|"
}

# A header must compile as the only include of a file.
check_headers() {
    local file flags=(-I include -I src -I src/cuda)
    [ -z "${top_builddir:-}" ] || flags+=(-I "$top_builddir")
    # shellcheck disable=SC2206 # a list of words
    flags+=(${PMIX_CFLAGS:-})
    while read -r file; do
        $cc -std=gnu11 -Wall -Wextra -Werror -fsyntax-only "${flags[@]}" -x c - <<<"#include \"$PWD/$file\"" 2>&1 |
            sed "1s|^|$file: does not compile alone: |"
    done < <(files '*.h' | grep -E '^(src|include|launcher|examples|test)/')
    ${CXX:-c++} -std=c++11 -Wall -Wextra -Werror -fsyntax-only -I include -x c++ - <<<'#include <hoccl.h>' 2>&1 |
        sed '1s|^|include/hoccl.h: does not compile as C++: |'
}

check_sizes() {
    local file
    while read -r file; do
        awk -v file="$file" -v most="$max_function" -v lines="$max_source" '
        /^{/ { start = NR }
        /^}/ && start {
            if (NR - start + 1 > most) print file ":" start ": a function of " NR - start + 1 " lines, more than " most
            start = 0
        }
        END { if (NR > lines) print file ": " NR " lines, more than " lines }' "$file"
    done < <(files '*.c')
}

check_licences() {
    local file
    while read -r file; do
        head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$file:1: no SPDX line"
    done < <(files '*.c' '*.h' '*.sh' '*.S' '*.ptx' configure.ac Makefile.am; list_scripts)
}

list_scripts() {
    files '*' | while read -r file; do
        head -c 64 "$file" | head -n 1 | grep -aqE '^#!.*[ /](ba)?sh( |$)' && echo "$file"
    done
    files '*.sh'
}

# What users copy from is formatted by the tool; the rest of the source keeps tables that it would break up.
check_format() {
    files '*.c' '*.h' | grep '^examples/' | xargs -r clang-format --dry-run
}

check_spelling() {
    files '*.c' '*.h' '*.sh' '*.md' '*.inc' '*.m4' '*.am' '*.ac' '*.supp' | xargs codespell
}

check_scripts() {
    list_scripts | sort -u | xargs -r shellcheck --external-sources --format=gcc
}

# run_check NAME: prints every violation, nothing if there is none.
run_check() {
    case $1 in
    layers) check_layers ;;
    macros) check_macros ;;
    exports) check_exports ;;
    headers) check_headers ;;
    sizes) check_sizes ;;
    licences) check_licences ;;
    format) check_format ;;
    spelling) check_spelling ;;
    scripts) check_scripts ;;
    *) echo "no check is called $1" ;;
    esac
}

bad=0
for tool in clang-format codespell shellcheck; do
    if ! command -v $tool >/dev/null; then
        echo "SKIP: $tool is not installed"
        exit 77
    fi
done
for check in $checks; do
    echo "== $check"
    found=$(run_check "$check" 2>&1)
    if [ -n "$found" ]; then
        echo "$found"
        bad=1
    fi
done
if [ $bad = 0 ]; then
    echo "all checks passed: $checks"
fi
exit $bad
