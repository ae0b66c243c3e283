/* SPDX-License-Identifier: Apache-2.0 */
/* hoccl-info: what HOCCL sees on this machine, and what it would do with it. It makes no context on any GPU, joins no
 * job, and has an answer everywhere: that there is no GPU, or no driver, is one. */
#include "hoccl_info.h"

#include "base/error.h"

#include <getopt.h>
#include <hoccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
    "Usage: hoccl-info [OPTION]...\n"
    "Show what HOCCL sees here: driver, GPUs, NICs, which belong together, settings, limits, launcher.\n"
    "\n"
    "  -j, --json       print JSON\n"
    "  -x, --xml FILE   look at the machine recorded in FILE by \"lstopo FILE.xml\", without a driver\n"
    "  -h, --help       print this\n"
    "  -V, --version    print the version\n"
    "\n"
    "HOCCL_DEVICE=cuda asks for real GPUs only, HOCCL_DEVICE=emu for emulated ones.\n"
    "Exit status: 0, also without a GPU; 1 if FILE or a setting cannot be read; 2 if the command line cannot.\n";

struct options {
    const char *file;
    bool json;
};

/* False if the program is done, with *status. */
static bool parse(int argc, char **argv, struct options *o, int *status)
{
    static const struct option names[] = {{"json", 0, NULL, 'j'},
                                          {"xml", 1, NULL, 'x'},
                                          {"help", 0, NULL, 'h'},
                                          {"version", 0, NULL, 'V'},
                                          {NULL, 0, NULL, 0}};
    int letter;
    *status = 0;
    while ((letter = getopt_long(argc, argv, "jx:hV", names, NULL)) != -1) {
        if (letter == 'j') {
            o->json = true;
        } else if (letter == 'x') {
            o->file = optarg;
        } else if (letter == 'V') {
            printf("hoccl-info %d.%d.%d\n", HOCCL_VERSION_MAJOR, HOCCL_VERSION_MINOR, HOCCL_VERSION_PATCH);
            return false;
        } else {
            fputs(usage, letter == 'h' ? stdout : stderr);
            *status = letter == 'h' ? 0 : 2;
            return false;
        }
    }
    if (optind == argc)
        return true;
    fprintf(stderr, "hoccl-info: %s is no option\n%s", argv[optind], usage);
    *status = 2;
    return false;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    int status;
    if (!parse(argc, argv, &o, &status))
        return status;
    json_t *document = json_pack(
        "{s:o}", "version", json_sprintf("%d.%d.%d", HOCCL_VERSION_MAJOR, HOCCL_VERSION_MINOR, HOCCL_VERSION_PATCH));
    /* Settings first: HOCCL_TOPO_FILE and HOCCL_DEBUG count for what follows. */
    if (!o.file && info_process(document))
        status = 1;
    if (!o.file)
        info_rdma(document);
    if (info_machine(document, o.file)) {
        fprintf(stderr, "hoccl-info: %s\n", hoccl_error_text());
        status = 1;
    }
    if (o.json) {
        json_dumpf(document, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        info_print(document);
    }
    json_decref(document);
    if (fflush(stdout) || ferror(stdout)) {
        perror("hoccl-info: standard output");
        return 1;
    }
    return status;
}
