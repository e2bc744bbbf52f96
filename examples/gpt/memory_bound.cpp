#include "gpt/memory_bound.hpp"

#include "gpt/model_description.hpp"
#include "gpt/peak_memory.hpp"
#include "gpt/training_memory.hpp"

#include <penstock/tiers/memory/memory_limits.hpp>

#include <sys/resource.h>
#include <algorithm>
#include <optional>
#include <thread>

namespace gpt {

using penstock::ByteCount;
using penstock::Error;
using penstock::ErrorCode;
using penstock::Result;
using penstock::to_string;

namespace {

/// Of the process itself.
constexpr ByteCount beside(GPT_HAS_CUDA ? 224 << 20 : 64 << 20);

/// Of the arithmetic on the host.
ByteCount scratch_bytes(const ModelConfig& model) {
  return ByteCount(ModelDescription(model).scratch_count().value() * sizeof(float));
}

}  // namespace

MemoryBound memory_bound(const penstock::zero::MemoryPlan& plan, ByteCount host_budgets,
                         const ModelConfig& model, const TrainingConfig& training, std::uint32_t ranks,
                         bool device_is_host) {
  MemoryBound bound{.host = host_budgets, .beside = beside};
  if (!device_is_host) return bound;
  const ByteCount scratch = scratch_bytes(model);
  bound.device = plan.device_budget * ranks;
  bound.activations = (training_memory(model, training) + scratch) * ranks;
  return bound;
}

MemoryBound plain_memory_bound(ByteCount buffers, const ModelConfig& model, const TrainingConfig& training) {
  return {.device = buffers,
          .activations = Activations::size(model, activation_options(training)) + scratch_bytes(model),
          .beside = beside};
}

namespace {

std::optional<ByteCount> address_space_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return ByteCount(limit.rlim_cur);
}

/// An upper bound of the address space that `ranks` need beside `resident`: OpenBLAS reserves 128 MiB for each thread
/// that multiplies, its own included, and the C library 64 MiB and a stack of 8 MiB for each thread.
Result<void> check_address_space(ByteCount limit, ByteCount resident, std::uint32_t ranks) {
  const std::uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const ByteCount needed = resident + ByteCount(128 << 20) * (ranks + cores) +
                           ByteCount(72 << 20) * (4 * std::uint64_t{ranks} + cores);
  const ByteCount left = limit - std::min(limit, virtual_memory());
  if (needed <= left) return penstock::ok();
  return Error(ErrorCode::no_space, "check_memory")
      .reason("the limit on address space is too small")
      .wanted(needed)
      .got(to_string(left) + " left of " + to_string(limit))
      .advice("raise RLIMIT_AS (ulimit -v), or limit memory with a control group instead");
}

}  // namespace

Result<void> check_memory(const MemoryBound& bound, std::uint32_t ranks) {
  if (const auto limit = address_space_limit())
    PENSTOCK_TRY(check_address_space(*limit, bound.total(), ranks));
  const ByteCount total = bound.total();
  const ByteCount further = total - std::min(total, resident_memory());
  auto enough = penstock::tiers::check_memory("check_memory", further, penstock::tiers::memory_limit());
  if (enough) return enough;
  return std::move(enough).error().note(
      "needed  host budgets " + to_string(bound.host) + ", device budgets " + to_string(bound.device) +
      ", activations " + to_string(bound.activations) + ", the process " + to_string(bound.beside));
}

}  // namespace gpt
