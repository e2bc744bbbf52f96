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
    copy_ = zeros(sum_.bytes.size());
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
    std::vector<Kernel> all = {
        {"copy on the device", 8, [=, this] { return device_->copy_on_device(stream, sum_.bytes, copy_); }}};
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
  [[nodiscard]] tiers::Stream& stream() { return *stream_; }

 private:
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
  DeviceSpan copy_, partials_, flag_;
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
  const std::vector<Kernel> kernels = operands.kernels();
  for (const Kernel& kernel : kernels) rate_of(kernel, operands.stream(), options);  // not counted
  std::map<std::string, std::vector<double>> rates;
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      // The first one rotates, so that drift affects all alike.
      const Kernel& kernel = kernels[(i + static_cast<std::size_t>(round)) % kernels.size()];
      rates[kernel.name].push_back(rate_of(kernel, operands.stream(), options));
    }
  }
  std::vector<KernelRow> rows;
  for (const Kernel& kernel : kernels) {
    const auto& own = rates.at(kernel.name);
    rows.push_back({kernel.name, kernel.bytes_per_element, measure::center(own),
                    measure::center(measure::ratios(own, rates.at(kernels.front().name)))});
  }
  return rows;
}

}  // namespace penstock::bench
