// SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
// SPDX-License-Identifier: MIT
//
// The few calls of CUDA's driver that the example makes itself, looked up at run time so that it builds without CUDA. An engine
// has its own: only streams and device pointers are handed to triton_dist.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

class CudaDriver {
public:
    explicit CudaDriver(int device) {
        library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) {
            std::fprintf(stderr, "no CUDA driver: %s\n", dlerror());
            std::exit(1);
        }
        int handle = 0;
        void *context = nullptr;
        check("cuInit", call<unsigned>("cuInit", 0));
        check("cuDeviceGet", call<int *, int>("cuDeviceGet", &handle, device));
        check("cuDevicePrimaryCtxRetain", call<void **, int>("cuDevicePrimaryCtxRetain", &context, handle));
        check("cuCtxSetCurrent", call<void *>("cuCtxSetCurrent", context));
    }

    static int devices() {
        int count = 0;
        void *found = dlopen("libcuda.so.1", RTLD_NOW);
        auto init = reinterpret_cast<int (*)(unsigned)>(found ? dlsym(found, "cuInit") : nullptr);
        auto ask = reinterpret_cast<int (*)(int *)>(found ? dlsym(found, "cuDeviceGetCount") : nullptr);
        return init && ask && init(0) == 0 && ask(&count) == 0 ? count : 0;
    }

    void *allocate(size_t bytes) {
        unsigned long long address = 0;
        check("cuMemAlloc", call<unsigned long long *, size_t>("cuMemAlloc_v2", &address, bytes));
        return reinterpret_cast<void *>(address);
    }

    void *stream() {
        void *made = nullptr;
        check("cuStreamCreateWithPriority", call<void **, unsigned, int>("cuStreamCreateWithPriority", &made, 1u, 0));
        return made;
    }

    void to_device(void *to, const void *from, size_t bytes, void *stream) {
        check("cuMemcpyHtoDAsync", call<unsigned long long, const void *, size_t, void *>(
                                       "cuMemcpyHtoDAsync_v2", reinterpret_cast<unsigned long long>(to), from, bytes, stream));
        wait(stream);
    }

    void to_host(void *to, const void *from, size_t bytes, void *stream) {
        check("cuMemcpyDtoHAsync", call<void *, unsigned long long, size_t, void *>(
                                       "cuMemcpyDtoHAsync_v2", to, reinterpret_cast<unsigned long long>(from), bytes, stream));
        wait(stream);
    }

    void wait(void *stream) { check("cuStreamSynchronize", call<void *>("cuStreamSynchronize", stream)); }

    void *event() {
        void *made = nullptr;
        check("cuEventCreate", call<void **, unsigned>("cuEventCreate", &made, 0u));
        return made;
    }

    void record(void *event, void *stream) { check("cuEventRecord", call<void *, void *>("cuEventRecord", event, stream)); }

    float milliseconds(void *start, void *end) {
        float found = 0;
        check("cuEventSynchronize", call<void *>("cuEventSynchronize", end));
        check("cuEventElapsedTime", call<float *, void *, void *>("cuEventElapsedTime", &found, start, end));
        return found;
    }

    // Records what `work` puts on the stream, as a graph.
    template <typename Work> void *graph(void *stream, Work work) {
        void *made = nullptr, *ready = nullptr;
        check("cuStreamBeginCapture", call<void *, int>("cuStreamBeginCapture_v2", stream, 2));
        work();
        check("cuStreamEndCapture", call<void *, void **>("cuStreamEndCapture", stream, &made));
        check("cuGraphInstantiateWithFlags", call<void **, void *, unsigned long long>("cuGraphInstantiateWithFlags", &ready, made, 0ull));
        return ready;
    }

    void launch(void *graph, void *stream) { check("cuGraphLaunch", call<void *, void *>("cuGraphLaunch", graph, stream)); }

private:
    void *library = nullptr;

    template <typename... Types> int call(const char *name, Types... values) {
        auto found = reinterpret_cast<int (*)(Types...)>(dlsym(library, name));
        return found == nullptr ? -1 : found(values...);
    }

    static void check(const char *what, int code) {
        if (code != 0) {
            std::fprintf(stderr, "%s failed with %d\n", what, code);
            std::exit(1);
        }
    }
};
