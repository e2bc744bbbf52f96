#include "kernels/operands.hpp"

#include "kernels/floating_point_mode.hpp"

#include <penstock/base/compute.hpp>

#include <string>

namespace penstock::kernels {

Result<void> check_operand(const char* operation, const char* name, ByteRange bytes, DType dtype) {
  if (static_cast<std::uint8_t>(dtype) > static_cast<std::uint8_t>(DType::fp16)) {
    return Error::invalid_argument(operation)
        .object(name)
        .reason("unknown dtype")
        .got(static_cast<std::uint64_t>(dtype));
  }
  if (bytes.address == 0 && !bytes.size.is_zero()) {
    return Error::invalid_argument(operation).object(name).reason("its address is null").got(bytes.size);
  }
  const std::uint64_t size = size_of(dtype).value();
  if (bytes.size.value() % size != 0) {
    return Error::invalid_argument(operation)
        .object(name)
        .reason("not a whole number of elements")
        .wanted("a multiple of " + std::to_string(size) + " B")
        .got(bytes.size);
  }
  if (!is_aligned(std::uint64_t{bytes.address}, Alignment(size))) {
    return Error::invalid_argument(operation)
        .object(name)
        .reason("address is not aligned to its element")
        .wanted("a multiple of " + std::to_string(size) + " B")
        .got("an address " + std::to_string(bytes.address % size) + " B past a multiple");
  }
  return ok();
}

Result<void> check_same_count(const char* operation, const char* name, ElementCount wanted,
                              ElementCount got) {
  if (wanted == got) return ok();
  return Error::invalid_argument(operation).object(name).reason("lengths differ").wanted(wanted).got(got);
}

Result<void> check_apart(const char* operation, const char* name, ByteRange a, ByteRange b) {
  if (!overlap(a, b)) return ok();
  return Error::invalid_argument(operation).object(name).reason("operands overlap");
}

Result<void> check_partials(const char* operation, ElementCount count, ByteRange partials) {
  const ByteCount wanted = ByteCount(sizeof(double)) * ceil_divide(count.value(), Compute::square_sum_block);
  if (partials.size != wanted) {
    return Error::invalid_argument(operation)
        .object("partials")
        .reason("needs one double for each block of elements")
        .wanted(wanted)
        .got(partials.size);
  }
  if (partials.address == 0 && !wanted.is_zero()) {
    return Error::invalid_argument(operation).object("partials").reason("its address is null").got(wanted);
  }
  if (!is_aligned(std::uint64_t{partials.address}, Alignment(alignof(double)))) {
    return Error::invalid_argument(operation).object("partials").reason("address is not aligned to 8 B");
  }
  return ok();
}

Result<void> check_cast(DeviceTensor from, DeviceTensor to) {
  constexpr const char* operation = "Compute::cast";
  PENSTOCK_TRY(check_operand(operation, "from", ByteRange::of(from.bytes), from.dtype));
  PENSTOCK_TRY(check_operand(operation, "to", ByteRange::of(to.bytes), to.dtype));
  PENSTOCK_TRY(check_same_count(operation, "to", from.count(), to.count()));
  return check_apart(operation, "to", ByteRange::of(from.bytes), ByteRange::of(to.bytes));
}

Result<void> check_scale(DeviceTensor x) {
  return check_operand("Compute::scale", "x", ByteRange::of(x.bytes), x.dtype);
}

Result<void> check_accumulate(DeviceTensor x, DeviceTensor sum) {
  constexpr const char* operation = "Compute::accumulate";
  PENSTOCK_TRY(check_operand(operation, "x", ByteRange::of(x.bytes), x.dtype));
  PENSTOCK_TRY(check_operand(operation, "sum", ByteRange::of(sum.bytes), sum.dtype));
  PENSTOCK_TRY(check_same_count(operation, "sum", x.count(), sum.count()));
  return check_apart(operation, "sum", ByteRange::of(x.bytes), ByteRange::of(sum.bytes));
}

Result<void> check_mean(std::span<const DeviceTensor> x, DeviceTensor out) {
  constexpr const char* operation = "Compute::mean";
  if (x.empty() || x.size() > mean_inputs_max) {
    return Error::invalid_argument(operation)
        .object("x")
        .reason("number of inputs out of range")
        .wanted("1 to " + std::to_string(mean_inputs_max))
        .got(x.size());
  }
  const ByteRange out_range = ByteRange::of(out.bytes);
  PENSTOCK_TRY(check_operand(operation, "out", out_range, out.dtype));
  for (const DeviceTensor& input : x) {
    const ByteRange range = ByteRange::of(input.bytes);
    if (input.dtype != x[0].dtype) {
      return Error::invalid_argument(operation)
          .object("x")
          .reason("inputs differ in dtype")
          .wanted(std::string(to_string(x[0].dtype)))
          .got(std::string(to_string(input.dtype)));
    }
    PENSTOCK_TRY(check_operand(operation, "x", range, input.dtype));
    PENSTOCK_TRY(check_same_count(operation, "x", out.count(), input.count()));
    const bool is_out = range == out_range && input.dtype == out.dtype;
    if (!is_out) PENSTOCK_TRY(check_apart(operation, "x", range, out_range));
  }
  return ok();
}

Result<void> check_square_sums(DeviceTensor x, DeviceSpan partials) {
  constexpr const char* operation = "Compute::square_sums";
  const ByteRange range = ByteRange::of(x.bytes), sums = ByteRange::of(partials);
  PENSTOCK_TRY(check_operand(operation, "x", range, x.dtype));
  PENSTOCK_TRY(check_partials(operation, x.count(), sums));
  return check_apart(operation, "partials", range, sums);
}

float mean_factor(std::size_t inputs) {
  volatile float factor = static_cast<float>(inputs);  // in memory: see DefaultFloatingPointMode
  {
    const DefaultFloatingPointMode mode;
    factor = 1.0f / factor;
  }
  return factor;
}

}  // namespace penstock::kernels
