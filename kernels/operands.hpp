#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/base/span.hpp>

#include <cstdint>
#include <span>

// Checks that the host and the CUDA adapters share.
namespace penstock::kernels {

/// A range of bytes in any kind of memory.
struct ByteRange {
  std::uintptr_t address;
  ByteCount size;

  static ByteRange of(DeviceSpan span) { return {static_cast<std::uintptr_t>(span.address()), span.size()}; }
  static ByteRange of(ConstHostSpan span) {
    return {reinterpret_cast<std::uintptr_t>(span.data()), span.size()};
  }
  [[nodiscard]] bool operator==(const ByteRange&) const = default;
};

[[nodiscard]] inline bool overlap(ByteRange a, ByteRange b) {
  if (a.size.is_zero() || b.size.is_zero()) return false;
  return a.address < b.address ? b.address - a.address < a.size.value()
                               : a.address - b.address < b.size.value();
}

/// Checks that the range is a whole number of elements of a known dtype at an aligned address.
Result<void> check_operand(const char* operation, const char* name, ByteRange bytes, DType dtype);
Result<void> check_same_count(const char* operation, const char* name, ElementCount wanted, ElementCount got);
Result<void> check_apart(const char* operation, const char* name, ByteRange a, ByteRange b);
/// Checks that `partials` holds one aligned double for each square-sum block of `count` elements.
Result<void> check_partials(const char* operation, ElementCount count, ByteRange partials);

// Checks of the arguments of each Compute operation.
Result<void> check_cast(DeviceTensor from, DeviceTensor to);
Result<void> check_scale(DeviceTensor x);
Result<void> check_accumulate(DeviceTensor x, DeviceTensor sum);
Result<void> check_mean(std::span<const DeviceTensor> x, DeviceTensor out);
Result<void> check_square_sums(DeviceTensor x, DeviceSpan partials);

inline constexpr std::size_t mean_inputs_max = Compute::mean_inputs_max;

/// 1 / inputs, rounded to nearest in any floating-point mode of the caller.
[[nodiscard]] float mean_factor(std::size_t inputs);

}  // namespace penstock::kernels
