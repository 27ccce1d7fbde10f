/* What is known of torch's operators by their names. */
#ifndef GPUMAGIC_FAKE_OPERATORS_H
#define GPUMAGIC_FAKE_OPERATORS_H

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <string>

/* How an operator gets its values. */
enum class Way {
    NOT_AT_ALL,   /* there is nothing to work out, or others do that */
    BOTH,         /* its own implementation runs, then the CPU's */
    IN_ITS_PLACE, /* its own needs a library that finds no driver here, as cuFFT */
    READ_BACK,    /* what it returns has a size that depends on values */
};
Way way_of(const c10::FunctionSchema &schema);

/* Whether its own implementation reads what its steps have worked out. */
bool reads_its_own_steps(const std::string &name);

/* Whether it draws random numbers, but takes no generator. */
bool draws_without_asking(const std::string &name);

/* What is multiplied with what. */
enum class Product {
    NONE,
    PAIR,          /* the first two arguments */
    SUM,           /* the second and the third one, added to the first one */
    CONVOLUTION,
    TRANSPOSED_CONVOLUTION,
    CONVOLUTION_BACKWARD,
    ATTENTION,
    ATTENTION_BACKWARD,
};
Product product_of(const std::string &name);
double multiplications(Product product, const torch::jit::Stack &arguments,
                       const torch::jit::Stack &results);

#endif
