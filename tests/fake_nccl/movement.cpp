// The bytes of collectives, and their arithmetic.
#include "fake_cuda/fake_cuda.hpp"
#include "fake_nccl/world.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

namespace penstock::test::fake_nccl {

namespace {

std::byte* memory(const void* address, std::size_t size) {
  return fake_cuda::bytes(address, size);
}

std::string freed(const Task& task) {
  return task.text() + " uses memory that is not allocated";
}

float to_float(float x) {
  return x;
}
float to_float(__half x) {
  return __half2float(x);
}
float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
template <class T>
T round_to(float x) {
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
  if constexpr (std::is_same_v<T, float>) return x;
}

template <class T>
T load(const std::byte* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

/// Slot `slot` of every rank's input, averaged.
template <class T>
std::vector<std::byte> average(const std::vector<const std::byte*>& inputs, std::size_t slot,
                               std::size_t count) {
  const std::size_t ranks = inputs.size();
  const T factor = round_to<T>(1.0f / static_cast<float>(ranks));
  std::vector<std::byte> out(count * sizeof(T));
  for (std::size_t e = 0; e < count; ++e) {
    float sum = 0;
    for (std::size_t step = 1; step <= ranks; ++step) {
      const T value = load<T>(inputs[(slot + step) % ranks], slot * count + e);
      const T scaled = round_to<T>(to_float(value) * to_float(factor));
      sum = step == 1 ? to_float(scaled) : to_float(round_to<T>(sum + to_float(scaled)));
    }
    const T rounded = round_to<T>(sum);
    std::memcpy(out.data() + e * sizeof(T), &rounded, sizeof(T));
  }
  return out;
}

std::string gather(const std::vector<std::optional<Task>>& ranks) {
  const std::size_t slot = ranks[0]->bytes();
  std::vector<std::vector<std::byte>> inputs;
  for (const auto& task : ranks) {
    const std::byte* const from = memory(task->from, slot);
    if (from == nullptr) return freed(*task);
    inputs.emplace_back(from, from + slot);
  }
  for (const auto& task : ranks) {
    std::byte* const to = memory(task->to, slot * ranks.size());
    if (to == nullptr) return freed(*task);
    for (std::size_t r = 0; r < ranks.size(); ++r) std::memcpy(to + r * slot, inputs[r].data(), slot);
  }
  return {};
}

std::string reduce(const std::vector<std::optional<Task>>& ranks) {
  const std::size_t slot = ranks[0]->bytes(), count = ranks[0]->count;
  std::vector<const std::byte*> inputs;
  for (const auto& task : ranks) {
    inputs.push_back(memory(task->from, slot * ranks.size()));
    if (inputs.back() == nullptr || memory(task->to, slot) == nullptr) return freed(*task);
  }
  std::vector<std::vector<std::byte>> means;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const ncclDataType_t type = ranks[0]->type;
    means.push_back(type == ncclFloat32   ? average<float>(inputs, r, count)
                    : type == ncclFloat16 ? average<__half>(inputs, r, count)
                                          : average<__nv_bfloat16>(inputs, r, count));
  }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    std::memcpy(memory(ranks[r]->to, slot), means[r].data(), slot);
  return {};
}

}  // namespace

std::size_t Task::bytes() const {
  switch (type) {
    case ncclFloat16:
    case ncclBfloat16: return count * 2;
    case ncclFloat32: return count * 4;
    default: return count;
  }
}

std::string Task::text() const {
  constexpr const char* names[] = {"all-gather", "reduce-scatter", "send", "receive"};
  return std::string(names[static_cast<std::size_t>(kind)]) + " of " + std::to_string(count) +
         " elements of type " + std::to_string(type);
}

std::string move_collective(const std::vector<std::optional<Task>>& ranks) {
  if (ranks[0]->count == 0) return {};
  return ranks[0]->kind == Task::Kind::all_gather ? gather(ranks) : reduce(ranks);
}

std::string move_part(const Task& send, const Task& receive) {
  if (send.count == 0) return {};
  const std::byte* const from = memory(send.from, send.bytes());
  std::byte* const to = memory(receive.to, receive.bytes());
  if (from == nullptr || to == nullptr) return freed(from == nullptr ? send : receive);
  std::memcpy(to, from, send.bytes());
  return {};
}

std::string spoil(const Task& task, int rank, int ranks) {
  if (task.kind == Task::Kind::send || task.count == 0) return {};
  const bool gathers = task.kind == Task::Kind::all_gather;
  const std::size_t slot = task.bytes();
  for (int r = 0; r < (gathers ? ranks : 1); ++r) {
    std::byte* const to = memory(static_cast<std::byte*>(task.to) + static_cast<std::size_t>(r) * slot, slot);
    if (to == nullptr) return freed(task);
    if (!gathers || r != rank) std::memset(to, 0xdb, slot);
  }
  return {};
}

}  // namespace penstock::test::fake_nccl
