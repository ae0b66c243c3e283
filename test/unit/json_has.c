/* SPDX-License-Identifier: Apache-2.0 */
/* json_has PATH=VALUE…: standard input must be one JSON document in which every PATH (keys and indices with dots
 * between them) leads to VALUE, written as JSON or, for a string, bare; "*" stands for any value but null, "#N" for N
 * elements. */
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const json_t *find(const json_t *at, char *path)
{
    for (char *key = strtok(path, "."); at && key; key = strtok(NULL, "."))
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    return at;
}

static bool matches(const json_t *found, const char *value)
{
    if (!found || !strcmp(value, "*"))
        return found && !json_is_null(found);
    if (*value == '#')
        return (json_is_array(found) ? json_array_size(found) : json_object_size(found)) == (size_t)atoi(value + 1);
    if (json_is_string(found))
        return !strcmp(json_string_value(found), value);
    char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT);
    bool same = text && !strcmp(text, value);
    free(text);
    return same;
}

int main(int argc, char **argv)
{
    json_error_t error;
    json_t *document = json_loadf(stdin, 0, &error);
    int bad = 0;
    if (!document) {
        printf("no JSON: line %d: %s\n", error.line, error.text);
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        char path[256];
        const char *value = argv[i] + strcspn(argv[i], "=");
        snprintf(path, sizeof path, "%.*s", (int)(value - argv[i]), argv[i]);
        value += *value == '=';
        const json_t *found = find(document, path);
        if (matches(found, value))
            continue;
        char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        printf("%s: it is %s\n", argv[i], text ? text : "not there");
        free(text);
        bad = 1;
    }
    json_decref(document);
    return bad;
}
