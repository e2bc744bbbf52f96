// Two ranks of one process, each on its own thread with its own Ops.
#include "gpt/host_ops.hpp"
#include "gpt/model.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace gpt {
namespace {

using penstock::DType;

constexpr ModelConfig config{.layers = 1, .width = 64, .heads = 4, .context = 32, .seed = 5};

class EagerQueue final : public penstock::HostQueue {
 public:
  void enqueue(std::function<void()> operation, const penstock::OperationCost&) override { operation(); }
};

/// Losses and all gradients of one micro-batch, as bytes.
std::vector<std::byte> run_rank() {
  EagerQueue queue;
  HostAllocator allocator;
  const ModelDescription description(config);
  const auto allocate = [&](penstock::ElementCount count, DType dtype) {
    return allocator.allocate(bytes_of(count, dtype).value()).value();
  };
  const auto pointer = [](DeviceSpan span) {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(span.address()));
  };
  const auto ops = make_host_ops(allocate(description.scratch_count(), DType::fp32)).value();
  Model model = Model::create(config, *ops).value();
  Activations activations = Activations::allocate(config, {.sequences = 2}, allocator).value().front();
  std::memset(pointer(activations.tokens), 'a', 64);
  std::memset(pointer(activations.targets), 'b', 64);

  std::vector<DeviceBuffer> buffers;
  std::vector<std::vector<DeviceTensor>> weights, gradients;
  for (std::size_t unit = 0; unit < description.units().size(); ++unit) {
    weights.emplace_back();
    gradients.emplace_back();
    for (std::size_t index = 0; index < description.units()[unit].parameters.size(); ++index) {
      const penstock::ElementCount count = description.parameter({unit, index}).count;
      for (auto* tensors : {&weights, &gradients}) {
        buffers.push_back(allocate(count, DType::fp32));
        tensors->back().push_back(buffers.back().as(DType::fp32));
      }
      const penstock::HostSpan bytes(pointer(weights[unit][index].bytes), weights[unit][index].bytes.size());
      description.initial_values({unit, index}, 0, bytes.as<float>());
    }
  }
  weights.back().push_back(weights[0][0]);
  gradients.back().push_back(gradients[0][0]);

  const StreamHandle stream = StreamHandle::of(queue);
  for (std::size_t unit = 0; unit < weights.size(); ++unit) {
    EXPECT_TRUE(model.forward(stream, unit, weights[unit], activations));
  }
  for (std::size_t unit = weights.size(); unit-- > 0;) {
    std::vector<Gradient> writes;
    for (const DeviceTensor& tensor : gradients[unit]) writes.push_back({tensor});
    if (unit == 0) writes[0].write = GradientWrite::accumulate;
    EXPECT_TRUE(model.backward(stream, unit, weights[unit], writes, activations, 1.0f));
  }

  std::vector<std::byte> result;
  const auto append = [&](DeviceSpan span) {
    result.insert(result.end(), pointer(span), pointer(span) + span.size().value());
  };
  append(activations.losses.bytes);
  for (const auto& unit : gradients) {
    for (const DeviceTensor& tensor : unit) append(tensor.bytes);
  }
  return result;
}

TEST(TwoRanks, WorkSideBySideAndGetTheBitsOfOneAlone) {
  const std::vector<std::byte> alone = run_rank();
  std::vector<std::byte> beside[2];
  {
    std::jthread other([&] { beside[1] = run_rank(); });
    beside[0] = run_rank();
  }

  EXPECT_TRUE(beside[0] == alone);
  EXPECT_TRUE(beside[1] == alone);
}

}  // namespace
}  // namespace gpt
