/* What only CUDA has among torch's operators, on the CPU: fused cells of recurrent
 * networks, attention, dropout, batch norms over devices, products of another type.
 *
 * Formulas as in their papers, not as in torch's kernels: right values, in any order of
 * rounding. What is missing here is told by name when it is called.
 */
#include "values.h"

#include <cmath>
#include <map>

namespace {

using at::Tensor;
using torch::jit::Stack;
using Tensors = std::vector<Tensor>;

Tensor tensor(const c10::IValue &value)
{
    return value.isTensor() ? value.toTensor() : Tensor();
}

Tensor or_zero(const Tensor &maybe, const Tensor &like)
{
    return maybe.defined() ? maybe : at::zeros_like(like);
}

/* ---- dropout: a mask of what stays, as bytes of its own type */

Tensor kept(at::IntArrayRef sizes, double share, Draw draw)
{
    Tensor chances = at::empty(sizes, at::kFloat).bernoulli_(share, draw.generator());
    return chances.to(at::kBool);
}

Tensors native_dropout(const Stack &in, Draw draw)
{
    Tensor input = in[0].toTensor();
    bool trains = in[2].isNone() || in[2].toBool();
    double share = trains ? 1 - in[1].toDouble() : 1;
    Tensor mask = kept(input.sizes(), share, draw);
    return {input.mul(mask).mul_(share > 0 ? 1 / share : 0.), mask};
}

Tensors fused_dropout(const Stack &in, Draw draw)
{
    Tensor input = in[0].toTensor();
    double share = in[1].toDouble();              /* what stays, unlike all others */
    Tensor mask = kept(input.sizes(), share, draw);
    return {input.mul(mask).mul_(1 / share), mask.to(at::kByte)};
}

Tensors masked_scale(const Stack &in, Draw)
{
    return {in[0].toTensor().mul(in[1].toTensor()).mul_(in[2].toDouble())};
}

/* ---- recurrent cells; their workspace is only read by their own backward */

Tensor gates_of(const Stack &in, int64_t chunks, int64_t chunk,
                bool hidden_alone = false)
{
    auto part = [&](const Tensor &gates, const Tensor &bias) {
        Tensor whole = bias.defined() ? gates + bias : gates;
        return whole.chunk(chunks, 1)[size_t(chunk)];
    };
    Tensor hidden = part(in[1].toTensor(), tensor(in[4]));
    return hidden_alone ? hidden : hidden + part(in[0].toTensor(), tensor(in[3]));
}

Tensors lstm_cell(const Stack &in, Draw)
{
    Tensor input = gates_of(in, 4, 0).sigmoid(), forget = gates_of(in, 4, 1).sigmoid();
    Tensor cell = gates_of(in, 4, 2).tanh(), output = gates_of(in, 4, 3).sigmoid();
    Tensor state = forget * in[2].toTensor() + input * cell;
    return {output * state.tanh(), state, at::cat({input, forget, cell, output}, 1)};
}

Tensors lstm_cell_backward(const Stack &in, Draw)
{
    Tensor before = in[2].toTensor(), state = in[3].toTensor();
    Tensor grad_out = or_zero(tensor(in[0]), state);
    Tensors gates = in[4].toTensor().chunk(4, 1);
    const Tensor &input = gates[0], &forget = gates[1];
    const Tensor &cell = gates[2], &output = gates[3];
    Tensor squashed = state.tanh();
    Tensor grad = or_zero(tensor(in[1]), state);
    grad = grad + grad_out * output * (1 - squashed * squashed);
    Tensor grad_gates = at::cat({grad * cell * input * (1 - input),
                                 grad * before * forget * (1 - forget),
                                 grad * input * (1 - cell * cell),
                                 grad_out * squashed * output * (1 - output)}, 1);
    return {grad_gates, grad * forget, in[5].toBool() ? grad_gates.sum(0) : Tensor()};
}

Tensors gru_cell(const Stack &in, Draw)
{
    Tensor before = in[2].toTensor();
    Tensor reset = gates_of(in, 3, 0).sigmoid(), update = gates_of(in, 3, 1).sigmoid();
    Tensor hidden = gates_of(in, 3, 2, true);
    Tensor fresh = (gates_of(in, 3, 2) - hidden + reset * hidden).tanh();
    return {fresh + update * (before - fresh),
            at::cat({reset, update, fresh, before, hidden}, 1)};
}

Tensors gru_cell_backward(const Stack &in, Draw)
{
    Tensor grad = in[0].toTensor();
    Tensors saved = in[1].toTensor().chunk(5, 1);
    const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2];
    const Tensor &before = saved[3], &hidden = saved[4];
    Tensor of_fresh = grad * (1 - update) * (1 - fresh * fresh);
    Tensor of_update = grad * (before - fresh) * update * (1 - update);
    Tensor of_reset = of_fresh * hidden * reset * (1 - reset);
    Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1);
    Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
    bool biased = in[2].toBool();
    return {of_input, of_hidden, grad * update, biased ? of_input.sum(0) : Tensor(),
            biased ? of_hidden.sum(0) : Tensor()};
}

/* ---- attention */

/* Weights before and after dropout, and the logarithm of what they were divided by. */
struct Weights {
    Tensor softmax, dropped, logsumexp;
};

Tensor widened(const Tensor &heads, const Tensor &like)      /* of grouped queries */
{
    return heads.repeat_interleave(like.size(1) / heads.size(1), 1).to(at::kFloat);
}

Weights weights_of(const Tensor &query, const Tensor &key, const Tensor &bias,
                   bool causal, double dropout, Draw draw, double scale)
{
    Tensor scores = query.to(at::kFloat).matmul(widened(key, query).transpose(-2, -1));
    scores.mul_(scale);
    if (bias.defined()) scores.add_(bias.to(at::kFloat));
    if (causal) {
        Tensor ahead = at::ones({scores.size(-2), scores.size(-1)}, at::kBool).triu_(1);
        scores.masked_fill_(ahead, -INFINITY);
    }
    Weights weights{scores.softmax(-1), {}, scores.logsumexp(-1)};
    weights.dropped = weights.softmax;
    if (dropout > 0)
        weights.dropped = weights.softmax * kept(scores.sizes(), 1 - dropout, draw)
                              / (1 - dropout);
    return weights;
}

double scale_of(const c10::IValue &given, const Tensor &query)
{
    return given.isNone() ? 1 / std::sqrt(double(query.size(-1))) : given.toDouble();
}

/* As torch notes a draw for the backward. */
Tensor noted(uint64_t number) { return at::scalar_tensor(int64_t(number), at::kLong); }

Draw draw_of(const Tensor &seed, const Tensor &offset)
{
    return {uint64_t(seed.item().toLong()), uint64_t(offset.item().toLong())};
}

Tensors attention(const Stack &in, const Tensor &bias, double dropout, bool causal,
                  Draw draw, const c10::IValue &scale)
{
    Tensor query = in[0].toTensor(), value = in[2].toTensor();
    Weights weights = weights_of(query, in[1].toTensor(), bias, causal, dropout, draw,
                                 scale_of(scale, query));
    return {weights.dropped.matmul(widened(value, query)), weights.logsumexp};
}

/* Gradients of query, key, value and bias; `in` begins with one and these three. */
Tensors attention_backward(const Stack &in, const Tensor &bias, double dropout,
                           bool causal, Draw draw, const c10::IValue &given_scale)
{
    Tensor grad = in[0].toTensor().to(at::kFloat), query = in[1].toTensor();
    Tensor key = in[2].toTensor(), value = in[3].toTensor();
    double scale = scale_of(given_scale, query);
    Weights weights = weights_of(query, key, bias, causal, dropout, draw, scale);
    auto narrowed = [](const Tensor &heads, const Tensor &like) {
        return heads.unflatten(1, {like.size(1), heads.size(1) / like.size(1)}).sum(2);
    };
    Tensor of_value = weights.dropped.transpose(-2, -1).matmul(grad);
    Tensor of_dropped = grad.matmul(widened(value, query).transpose(-2, -1));
    Tensor inner = weights.dropped * of_dropped;
    Tensor of_scores = inner - weights.softmax * inner.sum(-1, true);
    Tensor of_query = of_scores.matmul(widened(key, query)) * scale;
    Tensor of_key = of_scores.transpose(-2, -1).matmul(query.to(at::kFloat)) * scale;
    return {of_query, narrowed(of_key, key), narrowed(of_value, value), of_scores};
}

Tensors flash_attention(const Stack &in, Draw draw)
{
    Tensors out = attention(in, {}, in[3].toDouble(), in[4].toBool(), draw, in[6]);
    Tensor state = at::stack({noted(draw.seed), noted(draw.offset)});
    return {out[0], out[1], {}, {}, state, {}, {}};
}

Tensors flash_attention_backward(const Stack &in, Draw)
{
    double dropout = in[10].toDouble();
    Tensor state = in[12].toTensor();
    Draw draw = dropout > 0 ? draw_of(state[0], state[1]) : Draw{};
    Tensors grads = attention_backward(in, {}, dropout, in[11].toBool(), draw, in[14]);
    grads.pop_back();
    return grads;
}

Tensors efficient_attention(const Stack &in, Draw draw)
{
    double dropout = in[5].toDouble();
    Tensors out = attention(in, tensor(in[3]), dropout, in[6].toBool(), draw, in[7]);
    Tensor sums = in[4].toBool() ? out[1] : Tensor();
    return {out[0], sums, noted(draw.seed), noted(draw.offset)};
}

Tensors efficient_attention_backward(const Stack &in, Draw)
{
    double dropout = in[9].toDouble();
    Draw draw = dropout > 0 ? draw_of(in[7].toTensor(), in[8].toTensor()) : Draw{};
    bool causal = in[11].toBool();
    return attention_backward(in, tensor(in[4]), dropout, causal, draw, in[12]);
}

/* ---- norms */

Tensors rms_norm_backward(const Stack &in, Draw)
{
    Tensor grad = in[0].toTensor(), input = in[1].toTensor(), rstd = in[3].toTensor();
    Tensor weight = tensor(in[4]);
    std::vector<int64_t> inner, outer;
    int64_t first_inner = input.dim() - int64_t(in[2].toIntVector().size());
    for (int64_t d = 0; d < input.dim(); d++)
        (d < first_inner ? outer : inner).push_back(d);
    Tensor normed = input * rstd, weighted = weight.defined() ? grad * weight : grad;
    Tensor along = (weighted * normed).mean(inner, true);
    Tensor of_input = rstd * (weighted - normed * along);
    Tensor of_weight = weight.defined() ? (grad * normed).sum(outer) : Tensor();
    return {of_input, of_weight};
}

/* A statistic of each channel, beside tensors that have channels second. */
Tensor by_channel(const Tensor &statistic, const Tensor &input)
{
    std::vector<int64_t> sizes(size_t(input.dim()), 1);
    sizes[1] = -1;
    return statistic.reshape(sizes);
}

std::vector<int64_t> but_channels(const Tensor &input)
{
    std::vector<int64_t> dimensions;
    for (int64_t d = 0; d < input.dim(); d++)
        if (d != 1) dimensions.push_back(d);
    return dimensions;
}

Tensors batch_norm_stats(const Stack &in, Draw)
{
    Tensor input = in[0].toTensor().to(at::kFloat);
    auto [variance, mean] = at::var_mean(input, but_channels(input), false);
    return {mean, (variance + in[1].toDouble()).rsqrt()};
}

Tensors batch_norm_elemt(const Stack &in, Draw)
{
    Tensor input = in[0].toTensor(), weight = tensor(in[1]), bias = tensor(in[2]);
    Tensor normed = (input - by_channel(in[3].toTensor(), input))
                        * by_channel(in[4].toTensor(), input);
    if (weight.defined()) normed = normed * by_channel(weight, input);
    return {bias.defined() ? normed + by_channel(bias, input) : normed};
}

Tensors batch_norm_gather_stats(const Stack &in, Draw)
{
    Tensor means = in[1].toTensor(), invstds = in[2].toTensor();
    double momentum = in[5].toDouble(), eps = in[6].toDouble();
    Tensor counts = in[7].isTensor()
                        ? in[7].toTensor().to(means.scalar_type())
                        : at::full({means.size(0)}, in[7].toInt(), means.options());
    Tensor weights = counts.unsqueeze(1), total = counts.sum();
    Tensor mean = (means * weights).sum(0) / total;
    Tensor squares = invstds.pow(-2) - eps + (means - mean).square();
    Tensor variance = (squares * weights).sum(0) / total;
    Tensor running_mean = tensor(in[3]), running_variance = tensor(in[4]);
    if (running_mean.defined()) running_mean.lerp_(mean, momentum);
    if (running_variance.defined())
        running_variance.lerp_(variance * total / (total - 1), momentum);
    return {mean, (variance + eps).rsqrt()};
}

Tensors batch_norm_backward_reduce(const Stack &in, Draw)
{
    Tensor grad = in[0].toTensor(), input = in[1].toTensor();
    Tensor centred = input - by_channel(in[2].toTensor(), input);
    Tensor sum = grad.sum(but_channels(input));
    Tensor product = (grad * centred).sum(but_channels(input));
    return {in[5].toBool() ? sum : Tensor(), in[5].toBool() ? product : Tensor(),
            in[6].toBool() ? product * in[3].toTensor() : Tensor(),
            in[7].toBool() ? sum : Tensor()};
}

Tensors batch_norm_backward_elemt(const Stack &in, Draw)
{
    Tensor grad = in[0].toTensor(), input = in[1].toTensor(), weight = tensor(in[4]);
    Tensor total = in[7].toTensor().sum().to(at::kFloat), invstd = in[3].toTensor();
    Tensor centred = input - by_channel(in[2].toTensor(), input);
    Tensor of_mean = by_channel(in[5].toTensor() / total, input);
    Tensor of_scale = by_channel(in[6].toTensor() / total * invstd * invstd, input);
    Tensor scale = weight.defined() ? invstd * weight : invstd;
    return {(grad - of_mean - centred * of_scale) * by_channel(scale, input)};
}

/* ---- convolutions, products of another type, bags */


template <size_t dimensions> Tensors depthwise(const Stack &in, Draw)
{
    Tensor input = in[0].toTensor();
    std::vector<int64_t> no_padding_of_output(dimensions);
    auto numbers = [&](size_t i) { return in[i].toIntVector(); };
    return {at::convolution(input, in[1].toTensor(), tensor(in[3]), numbers(4),
                            numbers(5), numbers(6), false, no_padding_of_output,
                            input.size(1))};
}

Tensors product_of_type(const Stack &in, Draw)
{
    at::ScalarType type = at::ScalarType(in[2].toInt());
    return {at::matmul(in[0].toTensor().to(type), in[1].toTensor().to(type))};
}

Tensors sum_of_type(const Stack &in, Draw)
{
    at::ScalarType type = at::ScalarType(in[3].toInt());
    Tensor product = at::matmul(in[1].toTensor().to(type), in[2].toTensor().to(type));
    return {in[0].toTensor().to(type) * in[4].toScalar() + product * in[5].toScalar()};
}

/* The CPU leaves out which bag an index belongs to where it can do without. */
Tensors embedding_bag(const Stack &in, Draw)
{
    Tensor indices = in[1].toTensor(), offsets = in[2].toTensor();
    auto [out, bags, sizes, largest] = at::_embedding_bag(
        in[0].toTensor(), indices, offsets, in[3].toBool(), in[4].toInt(),
        in[5].toBool(), tensor(in[6]), in[7].toBool(), in[8].toInt());
    if (bags.numel() != indices.numel())
        bags = at::searchsorted(offsets, at::arange(indices.numel(), offsets.options()),
                                false, true) - 1;
    return {out, bags, sizes, largest};
}

}  // namespace

StandIn stand_in_of(const c10::OperatorName &operator_name)
{
    static const std::map<std::string, StandIn> all = {
        {"aten::native_dropout", native_dropout},
        {"aten::_fused_dropout", fused_dropout},
        {"aten::_masked_scale", masked_scale},
        {"aten::_thnn_fused_lstm_cell", lstm_cell},
        {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
        {"aten::_thnn_fused_gru_cell", gru_cell},
        {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
        {"aten::_scaled_dot_product_flash_attention", flash_attention},
        {"aten::_scaled_dot_product_flash_attention_backward",
         flash_attention_backward},
        {"aten::_scaled_dot_product_efficient_attention", efficient_attention},
        {"aten::_scaled_dot_product_efficient_attention_backward",
         efficient_attention_backward},
        {"aten::_fused_rms_norm_backward", rms_norm_backward},
        {"aten::batch_norm_stats", batch_norm_stats},
        {"aten::batch_norm_elemt", batch_norm_elemt},
        {"aten::batch_norm_gather_stats", batch_norm_gather_stats},
        {"aten::batch_norm_gather_stats_with_counts", batch_norm_gather_stats},
        {"aten::batch_norm_backward_reduce", batch_norm_backward_reduce},
        {"aten::batch_norm_backward_elemt", batch_norm_backward_elemt},
        {"aten::_conv_depthwise2d", depthwise<2>},
        {"aten::conv_depthwise3d", depthwise<3>},
        {"aten::mm.dtype", product_of_type},
        {"aten::bmm.dtype", product_of_type},
        {"aten::addmm.dtype", sum_of_type},
        {"aten::baddbmm.dtype", sum_of_type},
        {"aten::_embedding_bag", embedding_bag},
    };
    auto found = all.find(toString(operator_name));
    return found == all.end() ? nullptr : found->second;
}
