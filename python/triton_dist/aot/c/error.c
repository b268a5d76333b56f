/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Status codes and the words of a thread's last error. */
#include <stdarg.h>
#include <stdio.h>

#include "tdist_internal.h"

static _Thread_local char words[512];
static _Thread_local int driver_code;

int tdist_version(void) { return TDIST_VERSION; }

const char *tdist_status_name(int status) {
    static const char *const names[] = {
        "OK", "ARGUMENT", "NOT_BUILT", "WRONG_ARCH", "VERSION", "DRIVER", "NO_DRIVER", "NO_WORLD", "NO_NVSHMEM", "SHARED_MEMORY",
        "CAPTURE", "TIMEOUT", "PEER", "MISMATCH", "OUT_OF_HEAP", "MEMORY", "SYSTEM", "TENSOR", "POISONED", "UNSUPPORTED",
    };
    return status >= 0 && (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown";
}

const char *tdist_last_error(void) { return words; }

int tdist_driver_code(void) { return driver_code; }

int tdist_fail(int status, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(words, sizeof words, format, rest);
    va_end(rest);
    return status;
}

int tdist_fail_driver(const char *call, int code) {
    driver_code = code;
    return tdist_fail(TDIST_ERR_DRIVER, "%s failed with %d", call, code);
}
