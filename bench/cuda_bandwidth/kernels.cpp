#include "kernels.hpp"

#include "cpu_adam/adam_coefficients.hpp"
#include "tiers/device/cuda_device.hpp"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <penstock/cpu_adam/state_format.hpp>
#include "kernels/cuda_adam.hpp"
#include "kernels/cuda_compute.hpp"

namespace penstock::bench {

namespace {

using kernels::StateFormat;

struct Kernel {
  std::string name;
  double bytes_per_element;  ///< that it reads and writes
  std::function<Result<void>()> enqueue;
};

/// Operands of all kernels, in device memory: noise as the gradient and the parameters, zeros as the states. No value
/// becomes infinite or NaN, which the Adam kernel would report for each element.
class Operands {
 public:
  explicit Operands(ElementCount elements)
      : elements_(elements), device_(tiers::create_cuda_device(0).value()) {
    stream_ = device_->create_stream().value();
    compute_ = kernels::make_cuda_compute(0).value();
    gradient_ = noise(DType::bf16), parameter_ = noise(DType::bf16), sum_ = noise(DType::fp32);
    master_ = noise(DType::fp32);
    copy_from_ = zeros(copied_bytes_max / 2 * elements.value()), copy_to_ = zeros(copy_from_.size());
    for (const StateFormat format : formats) {
      states_[format] = zeros(cpu_adam::tile_bytes(format, elements).value());
    }
    partials_ = zeros(ByteCount(8) * ceil_divide(elements.value(), Compute::square_sum_block));
    flag_ = zeros(ByteCount(8));
    stream_->synchronize().value();
  }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;
  ~Operands() {
    (void)stream_->synchronize();
    for (const DeviceSpan span : allocated_) device_->release(span);
  }

  [[nodiscard]] std::vector<Kernel> kernels() {
    const StreamHandle stream = stream_->handle();
    std::vector<Kernel> all;
    for (const StateFormat format : formats) {
      const double state =
          static_cast<double>(states_.at(format).size().value()) / static_cast<double>(elements_.value());
      const double gradient = 2, parameter = format == StateFormat::fp32      ? 2
                                             : format == StateFormat::moments ? 2 * 4
                                                                              : 2 * 2;
      all.push_back({"adam " + std::string(to_string(format)), gradient + 2 * state + parameter,
                     [=, this] { return adam(format); }});
    }
    const std::vector<Kernel> operations = {
        {"accumulate bf16 into fp32", 2 + 2 * 4,
         [=, this] { return compute_->accumulate(stream, gradient_, sum_); }},
        {"cast fp32 to bf16", 4 + 2, [=, this] { return compute_->cast(stream, master_, parameter_); }},
        {"cast bf16 to fp32", 2 + 4, [=, this] { return compute_->cast(stream, gradient_, sum_); }},
        {"scale fp32", 2 * 4, [=, this] { return compute_->scale(stream, sum_, 1.0f); }},
        {"scale bf16", 2 * 2, [=, this] { return compute_->scale(stream, parameter_, 1.0f); }},
        {"mean of two, bf16", 3 * 2,
         [=, this] {
           const DeviceTensor inputs[] = {gradient_, parameter_};
           return compute_->mean(stream, inputs, gradient_);
         }},
        {"square sums of fp32", 4 + 8.0 / Compute::square_sum_block,
         [=, this] { return compute_->square_sums(stream, sum_, partials_); }},
        {"square sums of bf16", 2 + 8.0 / Compute::square_sum_block,
         [=, this] { return compute_->square_sums(stream, gradient_, partials_); }}};
    all.insert(all.end(), operations.begin(), operations.end());
    return all;
  }
  /// A copy that reads and writes `bytes_per_element` in all. Its memory is apart from that of the kernels.
  [[nodiscard]] Kernel copy(double bytes_per_element) {
    const ByteCount half(
        static_cast<std::uint64_t>(bytes_per_element / 2 * static_cast<double>(elements_.value())));
    return {"copy on the device", bytes_per_element, [=, this] {
              return device_->copy_on_device(stream_->handle(), copy_from_.subspan(ByteCount(), half),
                                             copy_to_.subspan(ByteCount(), half));
            }};
  }
  [[nodiscard]] tiers::Stream& stream() { return *stream_; }

 private:
  static constexpr ByteCount copied_bytes_max{28};  // an element: Adam's, in fp32
  static constexpr StateFormat formats[] = {StateFormat::fp32, StateFormat::moments, StateFormat::split,
                                            StateFormat::split_bf16, StateFormat::split_q8};

  Result<void> adam(StateFormat format) {
    return kernels::cuda_adam_step(0, stream_->handle(), coefficients_,
                                   {.state = states_.at(format),
                                    .gradient = gradient_,
                                    .parameter = format == StateFormat::moments ? master_ : parameter_,
                                    .first_non_finite_block = flag_,
                                    .format = format,
                                    .step = 1});
  }

  DeviceSpan zeros(ByteCount size) {
    allocated_.push_back(device_->allocate(size).value());
    device_->fill_zero(stream_->handle(), allocated_.back()).value();
    return allocated_.back();
  }
  /// bf16 values of magnitude 2^-7 to 2^-6 with random signs. Read as fp32, each pair is one such value.
  DeviceTensor noise(DType dtype) {
    std::vector<std::uint16_t> values(std::uint64_t{1} << 20);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto bits = static_cast<std::uint32_t>((i * 0x9e3779b97f4a7c15u) >> 40);
      values[i] = static_cast<std::uint16_t>((bits & 0x8000u) | 0x3c00u | (bits & 0x7fu));
    }
    const DeviceSpan span = zeros(size_of(dtype) * elements_.value());
    const ConstHostSpan piece{std::span<const std::uint16_t>(values)};
    for (ByteCount at; at < span.size(); at += piece.size()) {
      const ByteCount part = std::min(piece.size(), span.size() - at);
      device_->copy_to_device(stream_->handle(), piece.subspan(ByteCount(), part), span.subspan(at, part))
          .value();
    }
    stream_->synchronize().value();
    return {span, dtype};
  }

  const ElementCount elements_;
  const kernels::AdamCoefficients coefficients_ =
      cpu_adam::adam_coefficients({.weight_decay = 0.01f}, 1, 1.0f).value();
  std::unique_ptr<tiers::Device> device_;
  std::unique_ptr<tiers::Stream> stream_;
  std::unique_ptr<Compute> compute_;
  std::vector<DeviceSpan> allocated_;
  DeviceTensor gradient_, parameter_, sum_, master_;
  std::map<StateFormat, DeviceSpan> states_;
  DeviceSpan copy_from_, copy_to_, partials_, flag_;
};

/// GB/s.
double rate_of(const Kernel& kernel, tiers::Stream& stream, const KernelOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < options.launches; ++i) kernel.enqueue().value();
  stream.synchronize().value();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return options.launches * kernel.bytes_per_element * static_cast<double>(options.elements.value()) /
         seconds / 1e9;
}

}  // namespace

std::vector<KernelRow> measure_kernels(const KernelOptions& options) {
  Operands operands(options.elements);
  struct Measured {
    Kernel kernel, copy;
    std::vector<double> rates, copy_rates;
  };
  std::vector<Measured> all;
  for (Kernel& kernel : operands.kernels()) {
    Kernel copy = operands.copy(kernel.bytes_per_element);
    all.push_back({std::move(kernel), std::move(copy), {}, {}});
  }
  const auto measure = [&](const Kernel& kernel) { return rate_of(kernel, operands.stream(), options); };
  for (const Measured& one : all) measure(one.copy), measure(one.kernel);  // not counted
  for (int round = 0; round < options.rounds; ++round) {
    for (Measured& one : all) {
      // Which of the two is first alternates, so that drift affects both alike.
      if (round % 2 == 0) one.copy_rates.push_back(measure(one.copy));
      one.rates.push_back(measure(one.kernel));
      if (round % 2 != 0) one.copy_rates.push_back(measure(one.copy));
    }
  }
  std::vector<KernelRow> rows;
  for (const Measured& one : all) {
    rows.push_back({one.kernel.name, one.kernel.bytes_per_element, measure::center(one.rates),
                    measure::center(one.copy_rates),
                    measure::center(measure::ratios(one.rates, one.copy_rates))});
  }
  return rows;
}

}  // namespace penstock::bench
