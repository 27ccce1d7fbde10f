#include "operators.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <set>

namespace {

using Names = std::set<std::string>;

bool starts_with(const std::string &name, const char *start)
{
    return name.rfind(start, 0) == 0;
}

/* Neither writes into an argument nor returns a tensor with memory of its own. */
bool makes_nothing(const c10::FunctionSchema &schema)
{
    for (const c10::Argument &argument : schema.arguments())
        if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
    for (const c10::Argument &result : schema.returns()) {
        bool tensors = result.type()->isSubtypeOf(*c10::TensorType::get())
                    || result.type()->isSubtypeOf(*c10::ListType::ofTensors());
        if (tensors && !result.alias_info()) return false;
    }
    return true;
}

}  // namespace

Way way_of(const c10::FunctionSchema &schema)
{
    static const Names leave_memory_as_it_is = {
        "aten::empty", "aten::empty_strided", "aten::resize_", "aten::set_",
        "aten::_pin_memory", "aten::_cudnn_init_dropout_state", "aten::record_stream",
    };
    static const Names read_back = {
        "aten::nonzero", "aten::nonzero_static", "aten::masked_select", "aten::_unique",
        "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
        "aten::unique_dim_consecutive", "aten::equal", "aten::bincount", "aten::histc",
        "aten::repeat_interleave", "aten::multinomial", "aten::linalg_matrix_exp",
    };
    static const Names of_libraries = {
        "aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r", "aten::cholesky",
        "aten::cholesky_inverse", "aten::_cholesky_solve_helper", "aten::geqrf",
        "aten::ormqr", "aten::triangular_solve",
    };
    static const Names need_no_library = {
        "aten::linalg_vector_norm", "aten::linalg_cross",
    };
    const std::string &name = schema.name();
    if (read_back.count(name)) return Way::READ_BACK;
    bool linear_algebra = (starts_with(name, "aten::linalg_")
                           || starts_with(name, "aten::_linalg_"))
                       && !need_no_library.count(name);
    if (linear_algebra || of_libraries.count(name)) return Way::IN_ITS_PLACE;
    if (name == "aten::_assert_async") return Way::BOTH;      /* it breaks the device */
    bool of_other_operators = starts_with(name, "aten::_to_sparse");
    bool nothing_to_do = leave_memory_as_it_is.count(name) || makes_nothing(schema);
    return of_other_operators || nothing_to_do ? Way::NOT_AT_ALL : Way::BOTH;
}

bool reads_its_own_steps(const std::string &name)
{
    return name == "aten::segment_reduce";
}

bool draws_without_asking(const std::string &name)
{
    static const Names names = {
        "aten::native_dropout",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
    };
    return names.count(name);
}

Product product_of(const std::string &name)
{
    static const std::map<std::string, Product> products = {
        {"aten::mm", Product::PAIR},
        {"aten::bmm", Product::PAIR},
        {"aten::mv", Product::PAIR},
        {"aten::_int_mm", Product::PAIR},
        {"aten::_scaled_mm", Product::PAIR},
        {"aten::addmm", Product::SUM},
        {"aten::addbmm", Product::SUM},
        {"aten::addmv", Product::SUM},
        {"aten::baddbmm", Product::SUM},
        {"aten::_addmm_activation", Product::SUM},
        {"aten::_slow_conv2d_forward", Product::CONVOLUTION},
        {"aten::_conv_depthwise2d", Product::CONVOLUTION},
        {"aten::conv_depthwise3d", Product::CONVOLUTION},
        {"aten::slow_conv_dilated2d", Product::CONVOLUTION},
        {"aten::slow_conv_dilated3d", Product::CONVOLUTION},
        {"aten::slow_conv_transpose2d", Product::TRANSPOSED_CONVOLUTION},
        {"aten::slow_conv_transpose3d", Product::TRANSPOSED_CONVOLUTION},
        {"aten::convolution_backward", Product::CONVOLUTION_BACKWARD},
        {"aten::_scaled_dot_product_flash_attention", Product::ATTENTION},
        {"aten::_scaled_dot_product_efficient_attention", Product::ATTENTION},
        {"aten::_scaled_dot_product_flash_attention_backward",
         Product::ATTENTION_BACKWARD},
        {"aten::_scaled_dot_product_efficient_attention_backward",
         Product::ATTENTION_BACKWARD},
    };
    auto found = products.find(name);
    return found == products.end() ? Product::NONE : found->second;
}

double multiplications(Product product, const torch::jit::Stack &arguments,
                       const torch::jit::Stack &results)
{
    auto size = [](const c10::IValue &of) { return double(of.toTensor().numel()); };
    auto argument = [&](size_t i) { return size(arguments[i]); };
    auto extent = [&](size_t i, int64_t dimension) {
        return double(arguments[i].toTensor().size(dimension));
    };
    auto a_filter = [&](size_t i) { return argument(i) / std::max(1., extent(i, 0)); };
    switch (product) {
    case Product::PAIR: return size(results[0]) * extent(0, -1);
    case Product::SUM: return size(results[0]) * extent(1, -1);
    case Product::CONVOLUTION: return size(results[0]) * a_filter(1);
    case Product::TRANSPOSED_CONVOLUTION: return argument(0) * a_filter(1);
    case Product::CONVOLUTION_BACKWARD: return 2 * argument(0) * a_filter(2);
    case Product::ATTENTION: return 2 * argument(0) * extent(1, -2);
    case Product::ATTENTION_BACKWARD: return 5 * argument(1) * extent(2, -2);
    case Product::NONE: break;
    }
    return 0;
}
