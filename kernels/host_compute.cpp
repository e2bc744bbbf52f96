#include "kernels/host_compute.hpp"

#include "kernels/host_kernels.hpp"
#include "kernels/operands.hpp"

#include <vector>

namespace penstock::kernels {

namespace {

std::byte* host_address(DeviceSpan span) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(span.address()));
}
Elements elements_of(DeviceTensor x) {
  return {host_address(x.bytes), x.dtype};
}
ConstElements const_elements_of(DeviceTensor x) {
  return {host_address(x.bytes), x.dtype};
}

class HostCompute final : public Compute {
 public:
  Result<void> cast(StreamHandle stream, DeviceTensor from, DeviceTensor to) override {
    PENSTOCK_TRY(check_cast(from, to));
    stream.host_queue().enqueue(
        [from, to] { cast_elements(const_elements_of(from), elements_of(to), from.count().value()); });
    return ok();
  }

  Result<void> scale(StreamHandle stream, DeviceTensor x, float factor) override {
    PENSTOCK_TRY(check_scale(x));
    stream.host_queue().enqueue([x, factor] { scale_elements(elements_of(x), factor, x.count().value()); });
    return ok();
  }

  Result<void> accumulate(StreamHandle stream, DeviceTensor x, DeviceTensor sum) override {
    PENSTOCK_TRY(check_accumulate(x, sum));
    stream.host_queue().enqueue(
        [x, sum] { accumulate_elements(const_elements_of(x), elements_of(sum), x.count().value()); });
    return ok();
  }

  Result<void> mean(StreamHandle stream, std::span<const DeviceTensor> x, DeviceTensor out) override {
    PENSTOCK_TRY(check_mean(x, out));
    std::vector<const std::byte*> inputs;
    for (const DeviceTensor& input : x) inputs.push_back(host_address(input.bytes));
    stream.host_queue().enqueue([inputs = std::move(inputs), dtype = x[0].dtype, out] {
      mean_elements(inputs, dtype, elements_of(out), out.count().value());
    });
    return ok();
  }

  Result<void> square_sums(StreamHandle stream, DeviceTensor x, DeviceSpan partials) override {
    PENSTOCK_TRY(check_square_sums(x, partials));
    stream.host_queue().enqueue([x, partials] {
      square_sums_of_elements(const_elements_of(x), x.count().value(),
                              reinterpret_cast<double*>(host_address(partials)));
    });
    return ok();
  }
};

}  // namespace

std::unique_ptr<Compute> make_host_compute() {
  return std::make_unique<HostCompute>();
}

}  // namespace penstock::kernels
