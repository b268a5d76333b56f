// SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
// SPDX-License-Identifier: MIT
//
// AG-GEMM on all GPUs of this machine, without Python: ranks are forks of this process, kernels come from the library that
// scripts/gen_aot_code.sh builds. Checks the result, prints the tick and the time.
//   ag_gemm [--ranks W] [--shape M N K] [--comm-sms S] [--calls C] [--no-check]
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_driver.hpp"
#include "triton_dist.h"

namespace {

struct Options {
    int ranks = 0, comm_sms = 4, calls = 20;
    long long m = 8192, n = 8192, k = 8192;     // of the whole problem: each rank has M / W rows of x, and N / W of the weight
    bool check = true;
};

void require(int status, const char *what) {
    if (status != TDIST_OK) {
        std::fprintf(stderr, "%s: %s: %s\n", what, tdist_status_name(status), tdist_last_error());
        std::exit(1);
    }
}

// Numbers between -1/2 and 1/2 that every rank can compute of every matrix.
float number(uint64_t matrix, uint64_t index) {
    uint64_t x = (matrix << 40) + index;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return static_cast<float>((x ^ (x >> 31)) >> 40) / 16777216.0f - 0.5f;
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_bf16(uint16_t half) {
    uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

float rounded(uint64_t matrix, uint64_t index) { return from_bf16(to_bf16(number(matrix, index))); }

void *matrix(CudaDriver &cuda, void *stream, uint64_t which, size_t elements) {
    std::vector<uint16_t> host(elements);
    for (size_t i = 0; i < elements; i++)
        host[i] = to_bf16(number(which, i));
    void *made = cuda.allocate(2 * elements);
    cuda.to_device(made, host.data(), 2 * elements, stream);
    return made;
}

// The largest error of some thousand elements, relative to the largest of them.
double error_of(const std::vector<uint16_t> &out, const Options &o, int ranks, int rank) {
    const long long m = o.m / ranks, n = o.n / ranks;
    double worst = 0, largest = 1e-30;
    for (int sample = 0; sample < 4096; sample++) {
        const long long row = sample * 7919ll % o.m, column = sample * 104729ll % n;
        double sum = rounded(300 + rank, column);
        for (long long i = 0; i < o.k; i++)
            sum += static_cast<double>(rounded(100 + row / m, (row % m) * o.k + i)) * rounded(200 + rank, column * o.k + i);
        worst = std::fmax(worst, std::fabs(from_bf16(out[row * n + column]) - sum));
        largest = std::fmax(largest, std::fabs(sum));
    }
    return worst / largest;
}

int run(const Options &o, const tdist_unique_id &id, int rank) {
    CudaDriver cuda(rank);
    tdist_world *world = nullptr;
    tdist_plan *eager = nullptr, *captured = nullptr;
    const long long m = o.m / o.ranks, n = o.n / o.ranks;

    tdist_world_options wanted{};
    wanted.struct_size = sizeof wanted;
    wanted.timeout_ms = 30000;
    wanted.heap_bytes = 8ull * o.m * o.k + (64ull << 20);
    require(tdist_world_create(&world, &id, rank, o.ranks, rank, &wanted), "world");

    tdist_gemm shape{};
    shape.struct_size = sizeof shape;
    shape.dtype = TDIST_BF16;
    shape.m = m;
    shape.n = n;
    shape.k = o.k;
    shape.has_bias = 1;
    require(tdist_ag_gemm_plan(world, &shape, &eager), "plan");
    shape.comm_sms = o.comm_sms;                // a graph replays its arguments, so there SMs send x
    require(tdist_ag_gemm_plan(world, &shape, &captured), "plan for graphs");

    void *stream = cuda.stream();
    void *x = matrix(cuda, stream, 100 + rank, m * o.k), *weight = matrix(cuda, stream, 200 + rank, n * o.k);
    void *bias = matrix(cuda, stream, 300 + rank, n);
    std::vector<uint16_t> host(o.m * n, 0x7fc0), replayed(o.m * n);     // NaNs, which a result has to replace
    void *out = cuda.allocate(2 * host.size());
    double errors[2] = {0, 0};
    float times[2] = {0, 0};

    cuda.to_device(out, host.data(), 2 * host.size(), stream);
    require(tdist_ag_gemm(eager, stream, x, weight, bias, out), "ag_gemm");
    cuda.to_host(host.data(), out, 2 * host.size(), stream);
    require(tdist_ag_gemm(captured, stream, x, weight, bias, out), "ag_gemm by SMs");
    cuda.wait(stream);
    void *graph = cuda.graph(stream, [&] { require(tdist_ag_gemm(captured, stream, x, weight, bias, out), "captured ag_gemm"); });
    std::vector<uint16_t> nothing(host.size(), 0x7fc0);
    cuda.to_device(out, nothing.data(), 2 * nothing.size(), stream);
    require(tdist_world_barrier(world), "barrier");
    cuda.launch(graph, stream);
    cuda.to_host(replayed.data(), out, 2 * replayed.size(), stream);
    if (o.check) {
        errors[0] = error_of(host, o, o.ranks, rank);
        errors[1] = error_of(replayed, o, o.ranks, rank);
    }

    void *start = cuda.event(), *end = cuda.event();
    for (int way = 0; way < 2; way++) {
        require(tdist_world_barrier(world), "barrier");
        for (int i = -2; i < o.calls; i++) {
            if (i == 0)
                cuda.record(start, stream);
            if (way == 0)
                require(tdist_ag_gemm(eager, stream, x, weight, bias, out), "ag_gemm");
            else
                cuda.launch(graph, stream);
        }
        cuda.record(end, stream);
        times[way] = cuda.milliseconds(start, end) / static_cast<float>(o.calls);
    }
    cuda.wait(stream);
    tdist_plan_destroy(eager);
    tdist_plan_destroy(captured);
    require(tdist_world_destroy(world), "leaving");

    const bool right = !o.check || (errors[0] < 1e-2 && errors[1] < 1e-2);
    if (rank == 0 || !right)
        std::printf("ag_gemm M=%lld N=%lld K=%lld bfloat16 on %d ranks, rank %d: %.4f ms, in a graph %.4f ms, relative errors %.1e, %.1e\n%s\n",
                    o.m, o.n, o.k, o.ranks, rank, times[0], times[1], errors[0], errors[1],
                    !o.check ? "not checked" : right ? "✅ C++ and the CPU match" : "❌ C++ and the CPU differ");
    return right ? 0 : 1;
}

Options parse(int argc, char **argv) {
    Options o;
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        const int left = argc - i - 1;
        if (word == "--ranks" && left >= 1)
            o.ranks = std::atoi(argv[++i]);
        else if (word == "--comm-sms" && left >= 1)
            o.comm_sms = std::atoi(argv[++i]);
        else if (word == "--calls" && left >= 1)
            o.calls = std::atoi(argv[++i]);
        else if (word == "--shape" && left >= 3) {
            o.m = std::atoll(argv[++i]);
            o.n = std::atoll(argv[++i]);
            o.k = std::atoll(argv[++i]);
        } else if (word == "--no-check")
            o.check = false;
        else {
            std::fprintf(stderr, "ag_gemm [--ranks W] [--shape M N K] [--comm-sms S] [--calls C] [--no-check]\n");
            std::exit(2);
        }
    }
    return o;
}

// A driver does not survive a fork, so a child counts the devices.
int count_devices() {
    const pid_t child = fork();
    int status = 0;
    if (child == 0)
        _exit(CudaDriver::devices());
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace

int main(int argc, char **argv) {
    Options o = parse(argc, argv);
    tdist_unique_id id;
    if (o.ranks == 0)
        o.ranks = count_devices();
    if (o.ranks < 1 || o.m % o.ranks != 0 || o.n % (8 * o.ranks) != 0) {
        std::fprintf(stderr, "expected GPUs, M that divides by the number of ranks, and N by 8 times that; found %d ranks\n", o.ranks);
        return 1;
    }
    require(tdist_unique_id_create(&id), "unique id");
    std::vector<pid_t> children;
    for (int rank = 0; rank < o.ranks; rank++) {
        const pid_t child = fork();
        if (child == 0) {
            const int code = run(o, id, rank);
            std::fflush(stdout);
            std::_Exit(code);
        }
        children.push_back(child);
    }
    int failed = 0;
    for (pid_t child : children) {
        int status = 0;
        waitpid(child, &status, 0);
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return failed;
}
