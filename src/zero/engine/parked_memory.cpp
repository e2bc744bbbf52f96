#include "zero/engine/parked_memory.hpp"

#include "zero/layout/padded.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

namespace penstock::zero {

namespace {

constexpr ByteCount block = 256_KiB;
/// What is enqueued before the checksums of the part before it are computed. The device stages copies of pageable
/// memory in slots of its own.
constexpr ByteCount part_max = 64_MiB;
constexpr const char* copies = "copies of what is parked";

ByteCount padded(ByteCount size) {
  return round_up(size, extent_alignment);
}

}  // namespace

ParkedMemory::ParkedMemory(tiers::HostArena memory, std::vector<MemoryRange> ranges)
    : memory_(std::move(memory)) {
  ByteCount begin;
  for (MemoryRange& range : ranges) {
    const ByteCount size = range.size();
    // The seed is the part's number: bytes of another part do not verify.
    parts_.push_back({std::move(range), memory_.bytes().subspan(begin, size),
                      tiers::BlockTable(parts_.size(), size, block)});
    begin += padded(size);
  }
}

Result<std::unique_ptr<ParkedMemory>> ParkedMemory::copy(EngineContext& context,
                                                         const std::vector<MemoryRange>& ranges) {
  std::vector<MemoryRange> parts = divide(ranges, part_max);
  ByteCount size;
  for (const MemoryRange& part : parts) size += padded(part.size());
  PENSTOCK_TRY_ASSIGN(auto memory, tiers::HostArena::create({.size = size}));
  std::unique_ptr<ParkedMemory> parked(new ParkedMemory(std::move(memory), std::move(parts)));
  PENSTOCK_TRY(parked->copy_out(context));
  return parked;
}

Result<void> ParkedMemory::copy_out(EngineContext& context) {
  tiers::Stream& stream = *context.copy_out;
  const auto seal = [&context](Part& part) {
    context.workers.parallel_blocks(part.blocks.block_count(), [&part](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i)
        part.blocks.seal(i, part.blocks.block(ConstHostSpan(part.copy), i), 0);
    });
  };
  // The checksums of a part are computed while the next one is copied.
  tiers::Fence copied;
  for (std::size_t i = 0; i <= parts_.size(); ++i) {
    const tiers::Fence previous = std::move(copied);
    if (i < parts_.size()) {
      const Part& part = parts_[i];
      auto enqueued = context.device.copy_to_host(stream.handle(), part.range.on_device, part.copy);
      if (!enqueued) {
        PENSTOCK_TRY(finish(context, stream));  // a part of the copy may be enqueued
        return enqueued;
      }
      auto recorded = context.events.record(stream);
      if (!recorded) return memory_.leak(), context.fail(recorded.error());
      copied = *std::move(recorded);
    }
    if (previous == nullptr) continue;
    if (auto passed = context.wait_for(*previous, copies); !passed) return memory_.leak(), passed;
    seal(parts_[i - 1]);
  }
  return ok();
}

Result<void> ParkedMemory::verify(EngineContext& context, const Part& part) const {
  std::atomic<std::size_t> bad{part.blocks.block_count()};
  context.workers.parallel_blocks(part.blocks.block_count(), [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      if (!part.blocks.verify(i, part.blocks.block(ConstHostSpan(part.copy), i))) bad = i;
    }
  });
  if (bad == part.blocks.block_count()) return ok();
  return Error(ErrorCode::corrupted, "Engine::unpark")
      .object(part.range.name + ", block " + std::to_string(bad))
      .reason("parked bytes have changed in host memory")
      .advice("restore() a checkpoint into a new engine; test the machine's memory");
}

Result<void> ParkedMemory::copy_back(EngineContext& context,
                                     const std::function<DeviceSpan(DeviceSpan)>& now_at) {
  tiers::Stream& stream = *context.copy_in;
  Result<void> outcome = ok();
  for (const Part& part : parts_) {
    outcome = verify(context, part);
    if (outcome)
      outcome = context.device.copy_to_device(stream.handle(), part.copy, now_at(part.range.on_device));
    if (!outcome) break;
  }
  PENSTOCK_TRY(finish(context, stream));
  return outcome;
}

Result<void> ParkedMemory::finish(EngineContext& context, tiers::Stream& stream) {
  auto finished = context.finish(stream, copies);
  if (!finished) memory_.leak();
  return finished;
}

}  // namespace penstock::zero
