# SPDX-License-Identifier: Apache-2.0
# Makes C source from the prototypes of cuda.h.
#   awk -v kind=forward: one forwarder a function (and one for each per-thread-default-stream variant), which asks
#       hoccl_cuda_find() for the driver's entry at its first call;
#   awk -v kind=entry: the emulated driver's entry points: each asks emu_fault_call() whether the call is to fail, then
#       calls the function itself, which is called emu_ and the exported name; the variants, too, as the same calls on
#       CU_STREAM_PER_THREAD;
#   awk -v kind=rename: the macros that give the emulator's functions those names.
# The header's lines "#define name __CUDA_API_PTSZ(exported)" say which functions have a variant, its lines
# "#define name exported" which are exported under another name.

function parameter_name(text)
{
    sub(/[ \t]+$/, "", text)
    match(text, /[A-Za-z_0-9]+$/)
    return substr(text, RSTART)
}

function argument_names(params, parts, n, i, out)
{
    if (params == "void")
        return ""
    n = split(params, parts, ",")
    for (i = 1; i <= n; i++)
        out = out (i > 1 ? ", " : "") parameter_name(parts[i])
    return out
}

function forward(name, params, args)
{
    printf "CUresult CUDAAPI %s(%s)\n{\n", name, params
    printf "    static struct hoccl_forward self = HOCCL_FORWARD(%s);\n", name
    printf "    CUresult(CUDAAPI * entry)(%s);\n", params
    printf "    *(void **)&entry = hoccl_cuda_find(&self);\n"
    printf "    return entry ? entry(%s) : hoccl_cuda_missing(&self);\n}\n\n", args
}

function entry(name, params, args)
{
    printf "__attribute__((visibility(\"hidden\"))) CUresult CUDAAPI EMU(%s)(%s);\n", name, params
    printf "CUresult CUDAAPI %s(%s)\n{\n", name, params
    printf "    CUresult result = emu_fault_call(\"%s\");\n", name
    printf "    return result == CUDA_SUCCESS ? EMU(%s)(%s) : result;\n}\n\n", name, args
}

function per_thread(exported, name, kind_of, params, args)
{
    printf "CUresult CUDAAPI %s_%s(%s);\n", exported, kind_of, params
    if (kind == "forward") {
        forward(exported "_" kind_of, params, args)
        return
    }
    printf "CUresult CUDAAPI %s_%s(%s)\n{\n", exported, kind_of, params
    if (kind_of == "ptsz" && args ~ /(hStream|stream)/) {
        sub(/(hStream|stream)/, "emu_stream_own(&)", args)
        printf "    return %s(%s);\n}\n\n", name, args
        return
    }
    printf "    emu_stream_own_default(1);\n"
    printf "    CUresult result = %s(%s);\n", name, args
    printf "    emu_stream_own_default(-1);\n    return result;\n}\n\n"
}

/^#define cu[A-Za-z0-9_]+ cu[A-Za-z0-9_]+$/ { plain[$2] = $3 }
/^#define [A-Za-z0-9_]+ __CUDA_API_PT[DS][SZ]\(/ {
    split($3, part, /[()]/)
    variant[$2] = part[1] ~ /PTSZ/ ? "ptsz" : "ptds"
    export[$2] = part[2]
}

/^CUresult CUDAAPI/ { collecting = 1; line = "" }
collecting {
    sub(/^[ \t]+/, " ")
    line = line $0
}
collecting && /;/ {
    collecting = 0
    open_at = index(line, "(")
    name = line
    sub(/^CUresult CUDAAPI /, "", name)
    sub(/\(.*/, "", name)
    params = substr(line, open_at + 1)
    sub(/\);.*/, "", params)
    args = argument_names(params)
    if (kind == "forward")
        forward(name, params, args)
    if (kind == "entry")
        entry(name, params, args)
    if (kind == "rename") {
        out = name in plain ? plain[name] : name in export ? export[name] : name
        printf "#define %s emu_%s\n", out, out
        next
    }
    if (name == "cuGetProcAddress") {
        variant[name] = "ptsz"
        export[name] = "cuGetProcAddress_v2"
    }
    if (name in variant)
        per_thread(export[name], name, variant[name], params, args)
}
