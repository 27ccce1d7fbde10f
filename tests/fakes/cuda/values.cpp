/* libvalues.so: right values for torch's operators on a machine whose kernels do nothing.
 *
 * Each operator that torch has for CUDA is wrapped. Its own implementation runs as it is,
 * so it allocates, launches, waits and fails as ever; then the CPU's implementation of the
 * same operator is given to its last kernel, on tensors that alias the same memory. What a
 * caller reads is right, and is there only once the stream has come so far.
 *
 *   GPUMAGIC_FAKE_MOST           elements of an operator's tensors beyond which no values
 *                                are made (33 million)
 *   GPUMAGIC_FAKE_MOST_PRODUCT   multiplications of a product or convolution beyond which
 *                                none are made (2e9: a product of 1024 has values, one of
 *                                2048 would take a core a quarter of a second)
 *   GPUMAGIC_FAKE_VERBOSE        names each operator on stderr as it is called
 */
#include "values.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_set>

#include "machine.h"
#include "rates.h"

namespace {

using torch::jit::Stack;

const int64_t most_elements = int64_t(rates::number_of("GPUMAGIC_FAKE_MOST", 1 << 25));
const double most_product = rates::number_of("GPUMAGIC_FAKE_MOST_PRODUCT", 2e9);
const bool verbose = getenv("GPUMAGIC_FAKE_VERBOSE") != nullptr;

/* Of an operator whose values are worked out as a whole: those that it calls are left be. */
thread_local bool inside = false;

enum class Way {
    BOTH,           /* its own implementation, then the CPU's */
    IN_ITS_PLACE,   /* its own needs a library that finds no driver here, as cuFFT */
    READ_BACK,      /* what it returns has a size that depends on values */
};

Way way_of(const std::string &name)
{
    static const std::set<std::string> read_back = {
        "aten::nonzero", "aten::nonzero_static", "aten::masked_select", "aten::_unique",
        "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
        "aten::unique_dim_consecutive", "aten::equal", "aten::bincount", "aten::histc",
        "aten::repeat_interleave", "aten::multinomial", "aten::linalg_matrix_exp",
    };
    static const std::set<std::string> in_its_place = {
        "aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r", "aten::cholesky",
        "aten::cholesky_inverse", "aten::_cholesky_solve_helper", "aten::geqrf",
        "aten::ormqr", "aten::triangular_solve",
    };
    static const std::set<std::string> without_library = {
        "aten::linalg_vector_norm", "aten::linalg_cross",
    };
    bool linear_algebra = name.rfind("aten::linalg_", 0) == 0
                       || name.rfind("aten::_linalg_", 0) == 0;
    if (read_back.count(name)) return Way::READ_BACK;
    if (in_its_place.count(name) || (linear_algebra && !without_library.count(name)))
        return Way::IN_ITS_PLACE;
    return Way::BOTH;
}

/* There is nothing to work out: it gives a view, reads back, leaves memory as it is, or is
 * made of other operators, as what makes a tensor sparse. */
bool has_no_values(const c10::FunctionSchema &schema)
{
    static const std::set<std::string> names = {
        "aten::empty", "aten::empty_strided", "aten::resize_", "aten::set_",
        "aten::_pin_memory", "aten::_cudnn_init_dropout_state", "aten::record_stream",
    };
    if (names.count(schema.name())) return true;
    if (schema.name().rfind("aten::_to_sparse", 0) == 0) return true;
    if (schema.name() == "aten::_assert_async" || schema.name() == "aten::equal") return false;
    for (const c10::Argument &argument : schema.arguments())
        if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
    for (const c10::Argument &result : schema.returns()) {
        bool tensors = result.type()->isSubtypeOf(*c10::TensorType::get())
                    || result.type()->isSubtypeOf(*c10::ListType::ofTensors());
        if (tensors && !result.alias_info()) return false;
    }
    return true;
}

/* ---- tensors of the device, as the CPU sees them */

template <class Visit> void each_tensor(const c10::IValue &value, Visit visit)
{
    if (value.isTensor()) {
        if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isTensorList()) {
        for (const at::Tensor &each : value.toTensorVector()) visit(each);
    } else if (value.isOptionalTensorList()) {
        for (const auto &each : value.toOptionalTensorVector())
            if (each && each->defined()) visit(*each);
    }
}

/* The same value with other tensors; a CUDA device becomes the device of these. */
template <class Change>
c10::IValue changed(const c10::IValue &value, at::DeviceType device, Change change)
{
    if (value.isTensor()) return change(value.toTensor());
    if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor &each : value.toTensorVector()) list.push_back(change(each));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto &each : value.toOptionalTensorVector())
            list.push_back(each ? std::optional<at::Tensor>(change(*each)) : std::nullopt);
        return list;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) return at::Device(device);
    return value;
}

/* Owns nothing: the memory is the stream's business, as it is for a kernel. */
at::Tensor alias_of(const at::Tensor &tensor)
{
    if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
    if (!tensor.is_cuda())          /* the caller may change it; a number's type is weaker */
        return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor
                                                                 : tensor.detach().clone();
    at::Tensor alias = at::from_blob(const_cast<void *>(tensor.const_data_ptr()),
                                     tensor.sizes(), tensor.strides(),
                                     tensor.options().device(at::kCPU));
    if (tensor.is_conj()) alias._set_conj(true);
    if (tensor.is_neg()) alias._set_neg(true);
    return alias;
}

c10::IValue alias_of(const c10::IValue &value)
{
    return changed(value, at::kCPU, [](const at::Tensor &t) { return alias_of(t); });
}

at::Tensor shape_of(const at::Tensor &tensor)
{
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(),
                             tensor.options().device(at::kMeta));
}

c10::DeviceIndex device_of(const Stack &values)
{
    c10::DeviceIndex device = -1;
    for (const c10::IValue &value : values)
        each_tensor(value, [&](const at::Tensor &t) {
            if (device < 0 && t.is_cuda()) device = t.device().index();
        });
    return device < 0 ? c10::cuda::current_device() : device;
}

bool is_half(const at::Tensor &tensor)
{
    return tensor.defined() && at::isReducedFloatingType(tensor.scalar_type());
}

/* ---- random numbers */

/* What an operator will draw; in a graph that is known at each replay, by what torch puts
 * into memory of the device. */
class RandomState {
public:
    RandomState(const c10::IValue &given, c10::DeviceIndex device)
    {
        at::Generator generator =
            given.isGenerator()
                ? given.toGenerator()
                : at::globalContext().defaultGenerator(at::Device(at::kCUDA, device));
        auto *own = at::check_generator<at::CUDAGeneratorImpl>(generator);
        std::lock_guard<std::mutex> guard(own->mutex_);
        state_ = own->philox_cuda_state(0);
    }

    Draw draw() const
    {
        if (!state_.captured_) return {state_.seed_.val, state_.offset_.val};
        return {uint64_t(*state_.seed_.ptr),
                uint64_t(*state_.offset_.ptr) + state_.offset_intragraph_};
    }

private:
    at::PhiloxCudaState state_;
};

/* ---- what the CPU works out */

struct Operator {
    c10::KernelFunction own;
    std::string name;
    Way way;
    bool reads_its_own_steps;      /* so that these need values, too */
    StandIn stand_in;
    std::vector<bool> written;     /* of its arguments */
    int generator = -1;            /* the place of the argument, if it has one */
    bool random, product;

    Operator(c10::KernelFunction kernel, const c10::FunctionSchema &schema)
        : own(std::move(kernel)), name(schema.name()), way(way_of(name)),
          reads_its_own_steps(name == "aten::segment_reduce"),
          stand_in(stand_in_of(schema.overload_name().empty()
                                   ? name
                                   : name + "." + schema.overload_name()))
    {
        for (const c10::Argument &argument : schema.arguments()) {
            if (argument.type()->str().find("Generator") != std::string::npos)
                generator = int(written.size());
            written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
        }
        random = generator >= 0 || draws_without_asking(name);
        static const std::set<std::string> products = {
            "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::mv",
            "aten::addmv", "aten::dot", "aten::addbmm", "aten::_addmm_activation",
        };
        product = products.count(name);
    }
};

struct Task {
    const Operator &kind;
    c10::OperatorHandle handle;
    Stack arguments;
    std::vector<at::Tensor> outputs;       /* where results go; undefined: nowhere */
    std::optional<RandomState> random;
    bool kept;                             /* by a graph, for every replay */
};

std::vector<at::Tensor> call(const Task &task, const Stack &arguments)
{
    Draw draw = task.random ? task.random->draw() : Draw{};
    if (task.kind.stand_in) return task.kind.stand_in(arguments, draw);
    Stack stack = arguments;
    if (task.kind.generator >= 0) stack[size_t(task.kind.generator)] = draw.generator();
    task.handle.callBoxed(stack);
    std::vector<at::Tensor> results;
    for (const c10::IValue &value : stack) {
        if (value.isTensor()) results.push_back(value.toTensor());
        else if (value.isTensorList())
            for (const at::Tensor &each : value.toTensorVector()) results.push_back(each);
    }
    return results;
}

/* As kernels do it: products of halves are summed up in float, and much that the CPU has
 * only for float exists for halves. */
std::vector<at::Tensor> call_in_float(const Task &task)
{
    const auto &schema = task.handle.schema();
    std::vector<std::pair<at::Tensor, at::Tensor>> written;
    Stack arguments;
    for (size_t i = 0; i < task.arguments.size(); i++) {
        arguments.push_back(changed(task.arguments[i], at::kCPU, [&](const at::Tensor &t) {
            if (!is_half(t)) return t;
            at::Tensor wide = t.to(at::kFloat);
            if (task.kind.written[i]) written.emplace_back(t, wide);
            return wide;
        }));
        const std::string &name = schema.arguments()[i].name();
        if (name == "half_to_float") arguments[i] = false;
        if (name.find("dtype") != std::string::npos && arguments[i].isInt()
            && at::isReducedFloatingType(at::ScalarType(arguments[i].toInt())))
            arguments[i] = int64_t(at::kFloat);
    }
    std::vector<at::Tensor> results = call(task, arguments);
    for (auto &[narrow, wide] : written) narrow.copy_(wide);
    return results;
}

bool has_halves(const Stack &arguments)
{
    bool any = false;
    for (const c10::IValue &value : arguments)
        each_tensor(value, [&](const at::Tensor &t) { any = any || is_half(t); });
    return any;
}

/* What a kernel asserts, and the CPU says. */
bool is_assertion(const char *message)
{
    for (const char *part : {"out of bounds", "out of range", "Expected index",
                             "should be between 0 and 1", "Expected p_in >= 0",
                             "Expected Tensor with single nonzero", "assertion failed",
                             "Class values must be", "Assertion"})
        if (strstr(message, part)) return true;
    return false;
}

void tell_missing(const c10::OperatorHandle &handle, const char *reason)
{
    static std::mutex lock;
    static auto *told = new std::set<std::string>;
    std::lock_guard<std::mutex> guard(lock);
    std::string name = toString(handle.operator_name());
    if (told->insert(name).second)
        fprintf(stderr, "fake CUDA: no values of %s: %.300s\n", name.c_str(), reason);
}

void compute(const Task &task)
{
    at::AutoDispatchBelowADInplaceOrView below;
    std::vector<at::Tensor> results;
    bool halves = has_halves(task.arguments);
    if (halves && task.kind.product) results = call_in_float(task);
    else try {
        results = call(task, task.arguments);
    } catch (const std::exception &e) {
        if (!halves || is_assertion(e.what())) throw;
        results = call_in_float(task);
    }
    for (size_t i = 0; i < std::min(task.outputs.size(), results.size()); i++) {
        at::Tensor to = task.outputs[i];
        const at::Tensor &result = results[i];
        if (to.defined() && result.defined() && result.numel() == to.numel())
            to.copy_(result.sizes() == to.sizes() ? result : result.reshape(to.sizes()));
    }
}

class Silent : public c10::WarningHandler {
    void process(const c10::Warning &) override {}
};

/* One thread works for each stream, and the user's own take the processor too. */
void stay_on_one_processor()
{
    using SetThreads = void (*)(int);
    static auto set_threads =
        reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    thread_local bool done = (set_threads ? set_threads(1) : void(), true);
    (void)done;
}

void run(void *data)
{
    stay_on_one_processor();
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard guard(&silent);
    auto *task = static_cast<Task *>(data);
    try {
        compute(*task);
    } catch (const std::exception &e) {
        constexpr int DEVICE_ASSERT = 710;
        if (is_assertion(e.what())) machine_break(DEVICE_ASSERT);
        else tell_missing(task->handle, e.what());
    }
    if (!task->kept) delete task;
}

/* ---- what it would take */

/* Of products, convolutions and attention; 0 for all else. */
double multiplications(const std::string &name, const Stack &given, const Stack &returned)
{
    auto tensor = [](const c10::IValue &value) {
        return value.isTensor() ? value.toTensor() : at::Tensor();
    };
    auto argument = [&](size_t i) { return i < given.size() ? tensor(given[i]) : at::Tensor(); };
    auto size = [](const at::Tensor &t) { return double(t.numel()); };
    at::Tensor first = argument(0), second = argument(1), third = argument(2);
    at::Tensor result = returned.empty() ? at::Tensor() : tensor(returned[0]);
    if (!first.defined() || !second.defined() || !result.defined()) return 0;
    auto named = [&](const char *part) { return name.find(part) != std::string::npos; };
    if (named("attention")) {
        bool backward = named("backward");
        const at::Tensor &query = backward ? second : first, &key = backward ? third : second;
        return 2. * size(query) * double(key.size(-2)) * (backward ? 2.5 : 1);
    }
    if (named("convolution_backward"))
        return third.defined() ? 2 * size(first) * size(third) / double(third.size(0)) : 0;
    if (named("conv_transpose")) return size(first) * size(second) / double(second.size(0));
    if (named("conv")) return size(result) * size(second) / double(second.size(0));
    static const std::set<std::string> pairs = {"aten::mm", "aten::bmm", "aten::mv"};
    static const std::set<std::string> sums = {"aten::addmm", "aten::baddbmm", "aten::addmv",
                                               "aten::addbmm", "aten::_addmm_activation"};
    if (pairs.count(name) || name == "aten::_scaled_mm" || name == "aten::_int_mm")
        return size(result) * double(first.size(-1));
    if (sums.count(name)) return size(result) * double(second.size(-1));
    return 0;
}

rates::Unit unit_of(const at::Tensor &tensor)
{
    switch (tensor.element_size()) {
    case 1: return rates::EIGHT_BITS;
    case 2: return rates::HALF;
    case 4:
        return at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST
                   ? rates::FP32
                   : rates::TF32;
    default: return rates::FP64;
    }
}

/* ---- the operators */

/* The last kernel launched meanwhile waits for what it is to work out. */
class Collecting {
public:
    Collecting() { machine_collect(1); }
    ~Collecting() { machine_collect(0); }
};

class Inside {
public:
    explicit Inside(bool now) { inside = now; }
    ~Inside() { inside = false; }
};

class Wrapped : public c10::OperatorKernel {
public:
    Wrapped(c10::KernelFunction own, const c10::FunctionSchema &schema)
        : kind_(std::move(own), schema),
          copies_(kind_.name == "aten::copy_" || kind_.name == "aten::_foreach_copy_")
    {
    }

    void operator()(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, Stack *stack)
    {
        size_t count = kind_.written.size();
        Stack given(stack->end() - ptrdiff_t(count), stack->end());
        if (kind_.way == Way::READ_BACK) return read_back(handle, given, stack);
        if (kind_.way == Way::IN_ITS_PLACE) return in_its_place(handle, given, stack);
        if (inside) return kind_.own.callBoxed(handle, keys, stack);
        if (kind_.name == "aten::copy_" && spread_over_devices(given[0], given[1]))
            return copy_in_steps(given[0].toTensor(), given[1].toTensor(), stack);
        if (!is_ours(given)) return kind_.own.callBoxed(handle, keys, stack);
        if (verbose)
            fprintf(stderr, "fake CUDA: %s\n", toString(handle.operator_name()).c_str());

        c10::cuda::CUDAGuard on(device_of(given));
        auto task = begin(handle, given);
        Collecting collecting;     /* to the end: the values go into the last kernel */
        {
            Inside now(!kind_.reads_its_own_steps);
            kind_.own.callBoxed(handle, keys, stack);
        }
        finish(std::move(task), given, returned(handle, *stack));
    }

private:
    /* Copies from one device, or the host, to another are the machine's own, and so is all
     * that is sparse. */
    bool is_ours(const Stack &given) const
    {
        std::unordered_set<at::Device> devices;
        bool strided = true;
        for (const c10::IValue &value : given)
            each_tensor(value, [&](const at::Tensor &t) {
                devices.insert(t.device());
                strided = strided && t.layout() == at::kStrided;
            });
        bool within_one = devices.size() == 1 && devices.begin()->is_cuda();
        return strided && (within_one || !copies_);
    }

    Stack returned(const c10::OperatorHandle &handle, const Stack &stack) const
    {
        return Stack(stack.end() - ptrdiff_t(handle.schema().returns().size()), stack.end());
    }

    /* Inputs as they are now: an operator may resize what it writes. */
    std::unique_ptr<Task> begin(const c10::OperatorHandle &handle, const Stack &given) const
    {
        auto task = std::make_unique<Task>(Task{kind_, handle, Stack(given.size()), {}, {}, false});
        for (size_t i = 0; i < given.size(); i++)
            if (!kind_.written[i]) task->arguments[i] = alias_of(given[i]);
        if (kind_.random) {
            c10::IValue generator;
            if (kind_.generator >= 0) generator = given[size_t(kind_.generator)];
            task->random.emplace(generator, c10::cuda::current_device());
        }
        return task;
    }

    void finish(std::unique_ptr<Task> task, const Stack &given, const Stack &returned) const
    {
        int64_t elements = 0;
        double bytes = 0;
        auto count = [&](const at::Tensor &t) {
            elements += t.numel();
            if (t.is_cuda()) bytes += double(t.nbytes());
        };
        for (size_t i = 0; i < given.size(); i++) {
            if (kind_.written[i]) task->arguments[i] = alias_of(given[i]);
            each_tensor(given[i], count);
        }
        const auto &returns = task->handle.schema().returns();
        for (size_t i = 0; i < returned.size(); i++) {
            bool is_argument = returns[i].alias_info() != nullptr;
            each_tensor(returned[i], [&](const at::Tensor &t) {
                if (!is_argument) count(t);
                bool ours = !is_argument && t.is_cuda();
                task->outputs.push_back(ours ? alias_of(t) : at::Tensor());
            });
            if (returned[i].isTensor() && !returned[i].toTensor().defined())
                task->outputs.emplace_back();
        }
        double products = multiplications(kind_.name, given, returned);
        int64_t takes_ns = rates::moving_ns(bytes);
        if (products)
            takes_ns = std::max(takes_ns, rates::computing_ns(
                                              2 * products, unit_of(given[0].toTensor())));
        machine_cost(takes_ns);
        if (elements > most_elements || products > most_product) return;
        auto stream = c10::cuda::getCurrentCUDAStream().stream();
        task->kept = machine_capturing(stream);
        machine_work(stream, run, task.release());
    }

    /* A kernel of a library that is not there; torch's meta functions know what it gives. */
    void in_its_place(const c10::OperatorHandle &handle, const Stack &given, Stack *stack)
    {
        c10::DeviceIndex device = device_of(given);
        c10::cuda::CUDAGuard on(device);
        Stack shapes;
        for (const c10::IValue &value : given)
            shapes.push_back(changed(value, at::kMeta, shape_of));
        Stack results = shapes;
        try {
            handle.callBoxed(results);
        } catch (const c10::NotImplementedError &) {
            return read_back(handle, given, stack);
        }
        auto task = begin(handle, given);
        for (size_t i = 0; i < given.size(); i++)
            if (kind_.written[i] && given[i].isTensor() && given[i].toTensor().is_cuda())
                given[i].toTensor().resize_(shapes[i].toTensor().sizes());
        auto real = [&](const at::Tensor &shape) -> at::Tensor {
            if (!shape.defined() || !shape.is_meta()) return shape;
            for (size_t i = 0; i < given.size(); i++)
                if (shapes[i].isTensor() && shapes[i].toTensor().is_same(shape))
                    return given[i].toTensor();
            return at::empty_strided(shape.sizes(), shape.strides(),
                                     shape.options().device(at::Device(at::kCUDA, device)));
        };
        torch::jit::drop(*stack, given.size());
        for (const c10::IValue &value : results)
            stack->push_back(changed(value, at::kCUDA, real));
        Collecting collecting;
        machine_kernel(kind_.name.c_str() + strlen("aten::"),
                       c10::cuda::getCurrentCUDAStream().stream(), 2000);
        finish(std::move(task), given, returned(handle, *stack));
    }

    /* The CPU's implementation, after waiting for the stream; what it gives is brought
     * home by a kernel. */
    void read_back(const c10::OperatorHandle &handle, const Stack &given, Stack *stack)
    {
        c10::DeviceIndex device = device_of(given);
        c10::cuda::CUDAGuard on(device);
        auto stream = c10::cuda::getCurrentCUDAStream();
        auto task = begin(handle, given);
        stream.synchronize();
        std::vector<std::pair<at::Tensor, at::Tensor>> written;      /* there, here */
        for (size_t i = 0; i < given.size(); i++)
            if (kind_.written[i]) {
                at::Tensor there = given[i].toTensor();
                at::Tensor here = at::empty({0}, there.options().device(at::kCPU));
                written.emplace_back(there, here);
                task->arguments[i] = here;
            }
        if (kind_.generator >= 0)
            task->arguments[size_t(kind_.generator)] = task->random->draw().generator();
        Stack results = task->arguments;
        machine_freeze(1);
        {
            at::AutoDispatchBelowADInplaceOrView below;
            struct Thaw { ~Thaw() { machine_freeze(0); } } thaw;
            handle.callBoxed(results);
        }
        auto home = [&](const at::Tensor &t) -> at::Tensor {
            for (auto &[there, here] : written)
                if (here.is_same(t)) {
                    there.resize_(here.sizes());
                    bring(here, there, stream);
                    return there;
                }
            if (!t.defined() || !t.device().is_cpu()) return t;
            at::Tensor there = at::empty(
                t.sizes(), t.options().device(at::Device(at::kCUDA, device)));
            bring(t, there, stream);
            return there;
        };
        torch::jit::drop(*stack, given.size());
        for (const c10::IValue &value : results)
            stack->push_back(changed(value, at::kCUDA, home));
    }

    void bring(const at::Tensor &here, const at::Tensor &there, cudaStream_t stream) const
    {
        if (!here.numel()) return;
        using Pair = std::pair<at::Tensor, at::Tensor>;
        Collecting collecting;
        machine_kernel(kind_.name.c_str() + strlen("aten::"), stream, 2000);
        machine_work(
            stream,
            [](void *data) {
                std::unique_ptr<Pair> pair(static_cast<Pair *>(data));
                pair->second.copy_(pair->first);
            },
            new Pair(here, alias_of(there)));
    }

    /* One kernel reads another device's memory then, unless it is a plain copy. */
    static bool spread_over_devices(const c10::IValue &to, const c10::IValue &from)
    {
        const at::Tensor &a = to.toTensor(), &b = from.toTensor();
        if (!a.is_cuda() || !b.is_cuda() || a.device() == b.device()) return false;
        return a.scalar_type() != b.scalar_type() || !a.is_contiguous() || !b.is_contiguous()
            || a.sizes() != b.sizes() || a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg();
    }

    static void copy_in_steps(const at::Tensor &to, const at::Tensor &from, Stack *stack)
    {
        at::Tensor sent = from.to(to.scalar_type()).resolve_conj().resolve_neg().contiguous();
        at::Tensor landed = at::empty_like(sent, sent.options().device(to.device()));
        landed.copy_(sent);
        to.copy_(landed);
        torch::jit::drop(*stack, 3);
        stack->push_back(to);
    }

    Operator kind_;
    bool copies_;
};

bool wrap_all()
{
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard guard(&silent);
    auto library = [](c10::DispatchKey key) {
        return new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    };
    auto *cuda = library(c10::DispatchKey::CUDA);
    auto *general = library(c10::DispatchKey::CompositeExplicitAutograd);
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        auto op = dispatcher.findOp(name);
        if (name.name.rfind("aten::", 0) || !op || !op->hasSchema()) continue;
        /* The copy has no kernel of CUDA's own, and others may put one there. */
        bool copies = name.name == "aten::copy_";
        if (!copies && !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
        if (has_no_values(op->schema())) continue;
        auto own = op->getComputedKernelForDispatchKey(c10::DispatchKey::CUDA).kernelFunction();
        std::string rest = toString(name).substr(strlen("aten::"));
        (copies ? general : cuda)
            ->impl(rest.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                     std::make_unique<Wrapped>(own, op->schema())));
    }
    /* There is no cuDNN that could run: torch's own kernels take over. */
    at::globalContext().setUserEnabledCuDNN(false);
    at::globalContext().setSDPUseCuDNN(false);
    return true;
}

[[maybe_unused]] const bool wrapped = wrap_all();      /* when the library is loaded */

}  // namespace
