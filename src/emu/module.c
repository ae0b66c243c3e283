/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules and functions. A module is PTX text; only the names and parameters of its entries are read. The emulator
 * runs entries that it knows by name (kernel.c): hold(ns) and nop. Loading takes the driver's lock and waits for
 * the GPU, as the real one does.
 */
#include "module.h"

#include "device.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct CUmod_st {
    CUmodule next;
    CUcontext ctx;
    CUfunction functions;
};

static CUmodule modules;

static bool word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

/* Reads "NAME(.param ..., .param ...)" behind ".entry"; returns where it ends, NULL if it is malformed. */
static const char *read_entry(const char *text, CUfunction fn)
{
    size_t n = 0;
    while (isspace((unsigned char)*text))
        text++;
    while (word_char(text[n]))
        n++;
    if (!n || n >= sizeof fn->name)
        return NULL;
    memcpy(fn->name, text, n);
    fn->name[n] = '\0';
    text += n;
    while (isspace((unsigned char)*text))
        text++;
    if (*text != '(')
        return text;
    const char *end = strchr(text, ')');
    for (const char *p = text; end && (p = strstr(p, ".param")) && p < end; p++)
        fn->params++;
    return end;
}

static void module_free(CUmodule module)
{
    while (module->functions) {
        CUfunction fn = module->functions;
        module->functions = fn->next;
        free(fn);
    }
    free(module);
}

static CUmodule read_module(const char *text)
{
    CUmodule module = calloc(1, sizeof *module);
    while (module && (text = strstr(text, ".entry")) != NULL) {
        CUfunction fn = calloc(1, sizeof *fn);
        text = fn ? read_entry(text + strlen(".entry"), fn) : NULL;
        if (!text) {
            free(fn);
            module_free(module);
            return NULL;
        }
        fn->next = module->functions;
        module->functions = fn;
    }
    return module;
}

static CUmodule find_module(CUmodule handle)
{
    CUmodule m = modules;
    while (m && m != handle)
        m = m->next;
    return m;
}

CUfunction emu_function_check(CUfunction handle)
{
    for (CUmodule m = modules; m; m = m->next)
        for (CUfunction fn = m->functions; fn; fn = fn->next)
            if (fn == handle)
                return fn;
    return NULL;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || !image)
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    if (!isprint(*(const unsigned char *)image) && !isspace(*(const unsigned char *)image))
        return emu_leave(CUDA_ERROR_NO_BINARY_FOR_GPU);
    if (!strstr(image, ".version"))
        return emu_leave(CUDA_ERROR_INVALID_PTX);
    emu_hazard_take(ctx->dev);
    CUmodule module = read_module(image);
    if (module) {
        module->ctx = ctx;
        module->next = modules;
        modules = module;
        *out = module;
    }
    emu_hazard_give();
    return emu_leave(module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX);
}

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n, CUjit_option *options, void **values)
{
    (void)n;
    (void)options;
    (void)values;
    return cuModuleLoadData(out, image);
}

CUresult cuModuleUnload(CUmodule handle)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    if (!find_module(handle))
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    emu_drain(NULL, handle->ctx); /* waits, but without the lock (measured) */
    CUmodule *link = &modules;
    while (*link && *link != handle)
        link = &(*link)->next;
    if (!*link)
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    *link = handle->next;
    module_free(handle);
    return emu_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
    CUcontext ctx;
    CUresult result = emu_enter_ctx(&ctx);
    if (result != CUDA_SUCCESS)
        return result;
    CUmodule module = find_module(handle);
    if (!out || !name || !module)
        return emu_leave(module ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    for (CUfunction fn = module->functions; fn; fn = fn->next)
        if (!strcmp(fn->name, name)) {
            *out = fn;
            return emu_leave(CUDA_SUCCESS);
        }
    return emu_leave(CUDA_ERROR_NOT_FOUND);
}

CUresult cuModuleGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUmodule handle, const char *name)
{
    (void)ptr;
    (void)bytes;
    (void)handle;
    (void)name;
    return CUDA_ERROR_NOT_FOUND; /* no emulated module has variables */
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = emu.set.lazy ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}
