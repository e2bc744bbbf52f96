#include "kernels/host_compute.hpp"

#include "kernels/host_kernels.hpp"
#include "kernels/operands.hpp"

#include <functional>
#include <utility>
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

/// `bytes` are read and written. Errors: invalid_argument, for a default handle.
Result<void> enqueue(const char* operation, StreamHandle stream, ByteCount bytes, std::function<void()> run) {
  if (stream.host_queue() == nullptr) {
    return Error::invalid_argument(operation).object("stream").reason("a default StreamHandle is no stream");
  }
  stream.host_queue()->enqueue(std::move(run), {.bytes = bytes});
  return ok();
}

class HostCompute final : public Compute {
 public:
  Result<void> cast(StreamHandle stream, DeviceTensor from, DeviceTensor to) override {
    PENSTOCK_TRY(check_cast(from, to));
    return enqueue("Compute::cast", stream, from.bytes.size() + to.bytes.size(), [from, to] {
      cast_elements(const_elements_of(from), elements_of(to), from.count().value());
    });
  }

  Result<void> scale(StreamHandle stream, DeviceTensor x, float factor) override {
    PENSTOCK_TRY(check_scale(x));
    return enqueue("Compute::scale", stream, x.bytes.size() * 2,
                   [x, factor] { scale_elements(elements_of(x), factor, x.count().value()); });
  }

  Result<void> accumulate(StreamHandle stream, DeviceTensor x, DeviceTensor sum) override {
    PENSTOCK_TRY(check_accumulate(x, sum));
    return enqueue("Compute::accumulate", stream, x.bytes.size() + sum.bytes.size() * 2, [x, sum] {
      accumulate_elements(const_elements_of(x), elements_of(sum), x.count().value());
    });
  }

  Result<void> mean(StreamHandle stream, std::span<const DeviceTensor> x, DeviceTensor out) override {
    PENSTOCK_TRY(check_mean(x, out));
    std::vector<const std::byte*> inputs;
    for (const DeviceTensor& input : x) inputs.push_back(host_address(input.bytes));
    const ByteCount bytes = out.bytes.size() * (x.size() + 1);
    return enqueue("Compute::mean", stream, bytes, [inputs = std::move(inputs), dtype = x[0].dtype, out] {
      mean_elements(inputs, dtype, elements_of(out), out.count().value());
    });
  }

  Result<void> square_sums(StreamHandle stream, DeviceTensor x, DeviceSpan partials) override {
    PENSTOCK_TRY(check_square_sums(x, partials));
    return enqueue("Compute::square_sums", stream, x.bytes.size() + partials.size(), [x, partials] {
      square_sums_of_elements(const_elements_of(x), x.count().value(),
                              reinterpret_cast<double*>(host_address(partials)));
    });
  }
};

}  // namespace

std::unique_ptr<Compute> make_host_compute() {
  return std::make_unique<HostCompute>();
}

}  // namespace penstock::kernels
