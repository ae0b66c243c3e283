#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC1003,SC2016 # the planted text is meant as it stands
# Shows that style.sh finds what it looks for: a small clean tree passes, and each planted violation is reported.
set -u
style=$(realpath "${top_srcdir:?}/test/checks/style.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset top_builddir
bad=0

# A tree with nothing wrong in it.
clean_tree() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/include" "$work/tree/src/base" "$work/tree/src/sched" "$work/tree/src/api"
    cd "$work/tree" || exit 1
    printf '%s\n' '/* SPDX-License-Identifier: Apache-2.0 */' '#ifndef HOCCL_H' '#define HOCCL_H' \
        '#define HOCCL_API __attribute__((visibility("default")))' \
        '#ifdef __cplusplus' 'extern "C" {' '#endif' 'HOCCL_API int HOCCL_One(void);' \
        '#ifdef __cplusplus' '}' '#endif' '#endif' >include/hoccl.h
    printf '%s\n' '/* SPDX-License-Identifier: Apache-2.0 */' '#ifndef BASE_H' '#define BASE_H' \
        '#define TEXT "a return in a string" /* and a goto in a comment */' \
        'int base_one(void);' '#endif' >src/base/base.h
    printf '%s\n' '/* SPDX-License-Identifier: Apache-2.0 */' '#include "base/base.h"' '#include <hoccl.h>' \
        'int base_one(void)' '{' '    return 1;' '}' 'int HOCCL_One(void)' '{' '    return base_one();' '}' >src/base/base.c
    printf '%s\n' '/* SPDX-License-Identifier: Apache-2.0 */' '#include "base/base.h"' >src/sched/plan.c
    printf '%s\n' '#!/bin/sh' '# SPDX-License-Identifier: Apache-2.0' 'echo "$1"' >run.sh
    build_library
}

build_library() {
    ${CC:-cc} -shared -fPIC -fvisibility=hidden -I include -I src -o "$work/libhoccl.so" src/base/base.c
}

# planted CHECK TEXT: style.sh must fail in that check and say TEXT.
planted() {
    local output
    if output=$(LIBRARY=$work/libhoccl.so "$style" "$work/tree" "$1" 2>&1); then
        echo "FAIL: $1 did not notice the planted violation ($2)"
        bad=1
    elif ! grep -q -- "$2" <<<"$output"; then
        echo "FAIL: $1 does not say \"$2\":"
        echo "$output"
        bad=1
    else
        echo "ok: $1 reports: $(grep -m 1 -- "$2" <<<"$output")"
    fi
}

clean_tree
LIBRARY=$work/libhoccl.so "$style" "$work/tree" || { echo "FAIL: the clean tree does not pass" && bad=1; }

clean_tree && mkdir src/core && echo '#include "sched/plan.h"' >>src/base/base.c && touch src/sched/plan.h
planted layers 'base.c:12: src/base may not include src/sched'
clean_tree && echo '#include "../api/call.h"' >>src/sched/plan.c && touch src/api/call.h
planted layers 'plan.c:3: src/sched may not include src/api'
clean_tree && echo '#include <cuda.h>' >>src/sched/plan.c
planted layers 'src/sched may not include src/cuda'
clean_tree && printf '%s\n' '#define TRY(x) \' '    if (x) \' '        return 1' >>src/base/base.c
planted macros 'base.c:12: a macro hides a jump'
clean_tree && echo '#define LEAVE goto end' >>include/hoccl.h
planted macros 'hoccl.h:13: a macro hides a jump'
clean_tree && echo '__attribute__((visibility("default"))) int stray; int stray;' >>src/base/base.c && build_library
planted exports 'exports stray'
clean_tree && echo 'size_t base_two(void);' >>src/base/base.h
planted headers 'src/base/base.h: does not compile alone'
clean_tree && echo 'int HOCCL_Two(int class);' >>include/hoccl.h
planted headers 'does not compile as C++'
clean_tree && { echo 'int two(void)' && echo '{' && yes '    ;' | head -n 100 && echo '}'; } >>src/base/base.c
planted sizes 'base.c:13: a function of 102 lines'
clean_tree && yes '' | head -n 600 >>src/base/base.c
planted sizes 'base.c: 611 lines'
clean_tree && echo 'int x;' >src/api/call.c
planted licences 'call.c:1: no SPDX line'
clean_tree && mkdir examples && echo 'int  x;' >examples/one.c
planted format 'examples/one.c:1'
clean_tree && printf '%s%s\n' '/* rec' 'ieve */' >>src/base/base.c
planted spelling 'receive'
clean_tree && echo 'echo $1' >>run.sh
planted scripts 'run.sh:4'
exit $bad
