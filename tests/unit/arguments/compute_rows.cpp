#include "unit/arguments/bad_arguments.hpp"

#include "kernels/host_compute.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <memory>
#include <vector>

namespace penstock::test {
namespace {

using tiers::HostDevice;

/// An accelerator with memory for a few operands.
struct Bench {
  HostDevice device{{.memory = 1_MiB}};
  std::unique_ptr<Compute> compute = kernels::make_host_compute();
  std::unique_ptr<tiers::Stream> stream = device.create_stream().value();
  DeviceSpan memory = device.allocate(64_KiB).value();

  [[nodiscard]] DeviceTensor tensor(std::uint64_t index, std::uint64_t bytes = 4096) const {
    return {memory.subspan(ByteCount(index * 8192), ByteCount(bytes)), DType::fp32};
  }
};

struct Wrong {
  const char* value;
  std::function<DeviceTensor(const Bench&)> make;
};

/// Operands that are wrong beside one of 1024 fp32 elements.
const std::vector<Wrong> wrong_operands = {
    {"null",
     [](const Bench&) {
       return DeviceTensor{DeviceSpan(DeviceAddress{}, 4096_B), DType::fp32};
     }},
    {"of an unknown dtype",
     [](const Bench& b) {
       return DeviceTensor{b.tensor(0).bytes, unknown<DType>};
     }},
    {"misaligned",
     [](const Bench& b) {
       return DeviceTensor{b.memory.subspan(1_B, 4096_B), DType::fp32};
     }},
    {"not whole elements", [](const Bench& b) { return b.tensor(0, 4093); }},
};
const std::vector<Wrong> wrong_lengths = {
    {"shorter", [](const Bench& b) { return b.tensor(0, 4092); }},
    {"longer", [](const Bench& b) { return b.tensor(0, 4100); }},
    {"empty", [](const Bench&) { return DeviceTensor{}; }},
    {"overlapping",
     [](const Bench& b) {
       return DeviceTensor{b.memory.subspan(10240_B, 4096_B), DType::fp32};
     }},
};

void add_operand_rows(BadArguments& bad) {
  for (const Wrong& wrong : wrong_operands) {
    bad("Compute::scale", "x", wrong.value, [&wrong] {
      Bench b;
      return refused(b.compute->scale(b.stream->handle(), wrong.make(b), 1), "Compute::scale");
    });
    bad("Compute::square_sums", "x", wrong.value, [&wrong] {
      Bench b;
      return refused(b.compute->square_sums(b.stream->handle(), wrong.make(b), b.memory.subspan(32_KiB, 8_B)),
                     "Compute::square_sums");
    });
  }
  for (const auto& list : {wrong_operands, wrong_lengths}) {
    for (const Wrong& wrong : list) {
      const auto make = wrong.make;
      bad("Compute::cast", "from", wrong.value, [make] {
        Bench b;
        return refused(b.compute->cast(b.stream->handle(), make(b), b.tensor(1)), "Compute::cast");
      });
      bad("Compute::cast", "to", wrong.value, [make] {
        Bench b;
        return refused(b.compute->cast(b.stream->handle(), b.tensor(1), make(b)), "Compute::cast");
      });
      bad("Compute::accumulate", "x", wrong.value, [make] {
        Bench b;
        return refused(b.compute->accumulate(b.stream->handle(), make(b), b.tensor(1)),
                       "Compute::accumulate");
      });
      bad("Compute::accumulate", "sum", wrong.value, [make] {
        Bench b;
        return refused(b.compute->accumulate(b.stream->handle(), b.tensor(1), make(b)),
                       "Compute::accumulate");
      });
      bad("Compute::mean", "x", wrong.value, [make] {
        Bench b;
        const std::vector<DeviceTensor> x = {b.tensor(2), make(b)};
        return refused(b.compute->mean(b.stream->handle(), x, b.tensor(1)), "Compute::mean");
      });
      bad("Compute::mean", "out", wrong.value, [make] {
        Bench b;
        const std::vector<DeviceTensor> x = {b.tensor(2), b.tensor(1)};
        return refused(b.compute->mean(b.stream->handle(), x, make(b)), "Compute::mean");
      });
    }
  }
}

}  // namespace

void add_compute_rows(BadArguments& bad) {
  add_operand_rows(bad);
  for (const std::size_t count : {std::size_t{0}, Compute::mean_inputs_max + 1}) {
    bad("Compute::mean", "x", std::to_string(count) + " inputs", [count] {
      Bench b;
      const std::vector<DeviceTensor> x(count, b.tensor(1));
      return refused(b.compute->mean(b.stream->handle(), x, b.tensor(1)), "x");
    });
  }
  for (const std::uint64_t bytes : {0u, 7u, 16u}) {
    bad("Compute::square_sums", "partials", std::to_string(bytes) + " B", [bytes] {
      Bench b;
      return refused(
          b.compute->square_sums(b.stream->handle(), b.tensor(0), b.memory.subspan(32_KiB, ByteCount(bytes))),
          "partials");
    });
  }
  bad("Compute::square_sums", "partials", "null", [] {
    Bench b;
    return refused(b.compute->square_sums(b.stream->handle(), b.tensor(0), DeviceSpan(DeviceAddress{}, 8_B)),
                   "partials");
  });
  bad("Compute::square_sums", "partials", "misaligned", [] {
    Bench b;
    return refused(b.compute->square_sums(b.stream->handle(), b.tensor(0), b.memory.subspan(32769_B, 8_B)),
                   "partials");
  });
  bad("Compute::cast", "stream", "a default handle", [] {
    Bench b;
    return refused(b.compute->cast({}, b.tensor(0), b.tensor(1)), "stream");
  });
  bad("Compute::scale", "stream", "a default handle", [] {
    Bench b;
    return refused(b.compute->scale({}, b.tensor(0), 1), "stream");
  });
  bad("Compute::accumulate", "stream", "a default handle", [] {
    Bench b;
    return refused(b.compute->accumulate({}, b.tensor(0), b.tensor(1)), "stream");
  });
  bad("Compute::mean", "stream", "a default handle", [] {
    Bench b;
    const std::vector<DeviceTensor> x = {b.tensor(0)};
    return refused(b.compute->mean({}, x, b.tensor(1)), "stream");
  });
  bad("Compute::square_sums", "stream", "a default handle", [] {
    Bench b;
    return refused(b.compute->square_sums({}, b.tensor(0), b.memory.subspan(32_KiB, 8_B)), "stream");
  });
  for (const float factor : {nan, infinity, -infinity}) {
    bad("Compute::scale", "factor", std::to_string(factor), [factor] {
      Bench b;
      return expect(b.compute->scale(b.stream->handle(), b.tensor(0), factor).has_value(),
                    "a factor is arithmetic");
    });
  }
}

}  // namespace penstock::test
