/* What values.cpp and stand_ins.cpp know of each other. */
#ifndef GPUMAGIC_FAKE_VALUES_H
#define GPUMAGIC_FAKE_VALUES_H

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/operator_name.h>
#include <ATen/core/stack.h>

#include <vector>

/* Where a generator of CUDA's stood when an operator drew from it. */
struct Draw {
    uint64_t seed = 0, offset = 0;

    at::Generator generator() const
    {
        constexpr uint64_t SPREAD = 0x9E3779B97F4A7C15;   /* no two look alike */
        return at::make_generator<at::CPUGeneratorImpl>(seed * SPREAD + offset);
    }
};

/* Works out on the CPU what an operator of CUDA's alone gives. */
using StandIn = std::vector<at::Tensor> (*)(const torch::jit::Stack &arguments,
                                            Draw draw);

/* nullptr: the CPU has this operator. */
StandIn stand_in_of(const c10::OperatorName &operator_name);

#endif
