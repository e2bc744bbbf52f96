// The calls that move what an engine holds on the device to host memory and back: park, unpark.

#include "zero/engine/engine_state.hpp"

#include <algorithm>
#include <utility>

namespace penstock::zero {

namespace {

bool has(ParkKinds kinds, ParkKinds kind) {
  return (kinds & kind) != ParkKinds::none;
}

/// What a rank tells its peers.
struct Verdict {
  std::uint32_t call, kinds, code, failed;
};

}  // namespace

std::string to_string(ParkKinds kinds) {
  std::string text;
  const auto add = [&](ParkKinds kind, const char* name) {
    if (has(kinds, kind)) text.append(text.empty() ? "" : " and ").append(name);
  };
  add(ParkKinds::parameters, "parameters");
  add(ParkKinds::gradients, "gradients");
  add(ParkKinds::optimizer, "optimizer");
  return text.empty() ? "nothing" : text;
}

Result<void> EngineState::check_here(const char* operation, ParkKinds kinds) const {
  const ParkKinds missing = parked_kinds_ & kinds;
  if (missing == ParkKinds::none) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("what the call needs is parked")
      .object(to_string(missing))
      .advice("call unpark() first, on all ranks");
}

Result<void> EngineState::check_park(tiers::Tier to, ParkKinds kinds) const {
  constexpr const char* operation = "Engine::park";
  if (kinds == ParkKinds::none || (kinds | ParkKinds::all) != ParkKinds::all) {
    return Error::invalid_argument(operation)
        .object("kinds")
        .wanted("parameters, gradients, optimizer, or several of them")
        .got(static_cast<unsigned>(kinds));
  }
  if (to == tiers::Tier::nvme) {
    return Error::unsupported(operation)
        .object("to")
        .reason("what is kept in host memory has no place on disk reserved for it")
        .wanted("host")
        .got("nvme")
        .advice("park to host");
  }
  if (to != tiers::Tier::host) {
    return Error::invalid_argument(operation).object("to").wanted("host").got(std::string(to_string(to)));
  }
  if (parked_kinds_ != ParkKinds::none) {
    return Error(ErrorCode::failed_state, operation)
        .reason("the engine is parked already")
        .object(to_string(parked_kinds_))
        .advice("call unpark(), then park() with all kinds that are to leave");
  }
  PENSTOCK_TRY(residency_->check_no_leases(operation));
  PENSTOCK_TRY(checkpoints_->check_no_leases(operation));
  for (std::uint32_t f = 0; f < context_.flats.size(); ++f) {
    if (!residency_->is_open(f)) continue;
    return Error(ErrorCode::failed_state, operation)
        .reason("a gradient is being written")
        .object(context_.flats[f].layout->name)
        .advice(
            "pass the result of gradients() to reduce(), for every unit that uses it, or call "
            "abandon_step()");
  }
  return ok();
}

std::vector<DeviceRegion*> EngineState::regions_of(ParkKinds kinds) {
  std::vector<DeviceRegion*> regions;
  if (has(kinds, ParkKinds::parameters)) {
    if (!context_.flats_region.borrowed()) regions.push_back(&context_.flats_region);
    regions.push_back(&context_.parameter_region);
  }
  if (has(kinds, ParkKinds::gradients)) regions.push_back(&context_.gradient_region);
  if (has(kinds, ParkKinds::optimizer)) regions.push_back(&context_.optimizer_region);
  return regions;
}

std::vector<ParkedMemory::Range> EngineState::contents_of(ParkKinds kinds) const {
  std::vector<ParkedMemory::Range> ranges;
  const auto add = [&](std::string name, DeviceSpan bytes) {
    if (!bytes.empty()) ranges.push_back({std::move(name), bytes});
  };
  for (const FlatState& flat : context_.flats) {
    const std::string& name = flat.layout->name;
    if (has(kinds, ParkKinds::parameters)) add(name + " parameter shard", flat.kept_shard);
    // Between two steps the accumulators have no contents.
    if (has(kinds, ParkKinds::gradients) && !gradients_.untouched(flat))
      add(name + " gradient shard", flat.kept_gradient);
    if (!has(kinds, ParkKinds::optimizer)) continue;
    for (const TileState& tile : flat.tiles) add(tile.name(), tile.kept);
  }
  if (has(kinds, ParkKinds::parameters)) {
    for (auto& [name, bytes] : checkpoints_->contents()) add(std::move(name), bytes);
  }
  return ranges;
}

std::vector<std::string> EngineState::staying(ParkKinds kinds) const {
  std::vector<std::string> lines;
  const auto add = [&](bool stays, ByteCount size, const char* what) {
    if (stays && !size.is_zero()) lines.push_back(to_string(size) + " " + what);
  };
  const MemoryPlan& plan = options_.plan;
  const bool parameters = has(kinds, ParkKinds::parameters), gradients = has(kinds, ParkKinds::gradients);
  add(parameters && context_.flats_region.borrowed(), context_.flats_region.size(),
      "on the device: gathered flats and full gradients are in memory that the communicator has registered");
  add(!parameters && gradients, context_.flats_region.size(),
      "on the device: full gradients share their memory with gathered flats, which leave with the "
      "parameters");
  add(true, context_.communicator.scratch(), "on the device: the communicator's memory for exact reductions");
  add(parameters, plan.host_shards, "in host memory: parameter shards are kept there");
  add(gradients, plan.host_gradients, "in host memory: accumulated gradients are kept there");
  add(has(kinds, ParkKinds::optimizer), plan.host_tiles, "in host memory: optimizer tiles are kept there");
  return lines;
}

/// No operation of a stream uses memory of `kinds` afterwards. Called on all ranks or on none: it drops flats.
Result<void> EngineState::finish_use_of(ParkKinds kinds) {
  PENSTOCK_TRY(residency_->finish_gradients(*this));
  PENSTOCK_TRY(gradients_.finish_reductions());
  std::vector<tiers::Fence> last_uses;
  if (has(kinds, ParkKinds::parameters)) {
    PENSTOCK_TRY(residency_->clear("Engine::park", *this));
    last_uses = checkpoints_->last_uses();
  }
  context_.internals.wait_ignoring_stores([this] { return moves_are_idle(); });
  // The trainer's streams may still read what it has released.
  for (const auto& fences : {last_uses, context_.fences.all()}) {
    for (const tiers::Fence& fence : fences)
      PENSTOCK_TRY(context_.wait_for(*fence, "the trainer's use of the engine's tensors"));
  }
  return context_.finish_streams();
}

Result<void> EngineState::agree(const char* operation, ParkCall call, ParkKinds kinds,
                                const Result<void>& mine) {
  const Verdict verdict{.call = static_cast<std::uint32_t>(call),
                        .kinds = static_cast<std::uint32_t>(kinds),
                        .code = mine ? 0 : static_cast<std::uint32_t>(mine.error().code()),
                        .failed = mine ? 0u : 1u};
  std::vector<Verdict> all(context_.communicator.size());
  PENSTOCK_TRY(context_.exchange(ConstHostSpan(std::span(&verdict, 1)), HostSpan(std::span(all)),
                                 CollectiveSignature::Subject::park));
  PENSTOCK_TRY(mine);
  const auto another = [&](const Verdict& of_rank) { return of_rank.call != verdict.call; };
  if (std::any_of(all.begin(), all.end(), another)) {
    return context_
        .fail(Error::invalid_argument(operation)
                  .reason("the ranks have not called the same")
                  .advice("call park() and unpark() at the same places on every rank"))
        .error();
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].kinds != verdict.kinds) {
      return Error::invalid_argument(operation)
          .object("kinds")
          .reason("the ranks pass different ones; nothing has changed")
          .wanted(to_string(kinds) + " on all ranks")
          .got(to_string(static_cast<ParkKinds>(all[rank].kinds)) + " on rank " + std::to_string(rank));
    }
    if (all[rank].failed == 0) continue;
    return Error(static_cast<ErrorCode>(all[rank].code), operation)
        .reason("it has failed on another rank; nothing has changed")
        .object("rank " + std::to_string(rank))
        .advice("look for that rank's error; then call it again on all ranks");
  }
  return ok();
}

Result<ParkReport> EngineState::park(tiers::Tier to, ParkKinds kinds) {
  constexpr const char* operation = "Engine::park";
  PENSTOCK_TRY(ready(operation));
  Result<void> allowed = check_park(to, kinds);
  if (allowed) allowed = context_.finish_update();
  if (context_.failure) return *context_.failure;
  PENSTOCK_TRY(agree(operation, ParkCall::check, kinds, allowed));
  PENSTOCK_TRY(finish_use_of(kinds));
  auto copied = ParkedMemory::copy(context_, contents_of(kinds));
  if (!copied && copied.error().code() == ErrorCode::no_space) {
    copied = Error(ErrorCode::no_space, operation)
                 .reason("the machine has no room for what leaves the device")
                 .object(to_string(kinds))
                 .note("cause   " + copied.error().message())
                 .advice("free host memory, or park fewer kinds; nothing has changed");
  }
  if (context_.failure) return *context_.failure;
  // Nothing is released before all ranks have copied: a peer that cannot must not be alone.
  PENSTOCK_TRY(agree(operation, ParkCall::park, kinds, copied ? ok() : Result<void>(copied.error())));
  parked_ = *std::move(copied);
  parked_kinds_ = kinds;
  if (has(kinds, ParkKinds::parameters)) context_.fences.clear();
  ParkReport report{.stays = staying(kinds)};
  if (has(kinds, ParkKinds::gradients))
    report.tiers[std::size_t(tiers::Tier::device)].given_back += caller_gradients_.release();
  for (DeviceRegion* const region : regions_of(kinds)) {
    report.tiers[std::size_t(tiers::Tier::device)].given_back += region->size();
    region->release();
  }
  report.tiers[std::size_t(tiers::Tier::host)].taken = parked_->size();
  tiers::Ledger& ledger = context_.runtime.ledger();
  if (parked_->size() > parked_max_) {
    ledger.predict(tiers::Tier::host, tiers::Purpose::parked, parked_->size() - parked_max_);
    parked_max_ = parked_->size();
  }
  ledger.hold(tiers::Tier::host, tiers::Purpose::parked, parked_->size());
  return report;
}

Result<ParkReport> EngineState::unpark() {
  constexpr const char* operation = "Engine::unpark";
  PENSTOCK_TRY(ready(operation));
  if (parked_kinds_ == ParkKinds::none) {
    return Error(ErrorCode::failed_state, operation).reason("nothing is parked").advice("call park() first");
  }
  context_.internals.wait_ignoring_stores([this] { return moves_are_idle(); });
  std::vector<Relocation> relocations;
  const auto release = [&] {
    for (const Relocation& one : relocations) {
      if (!one.replacement.empty()) context_.device.release(one.replacement);
    }
  };
  const auto bring_back = [&]() -> Result<void> {
    for (DeviceRegion* const region : regions_of(parked_kinds_)) {
      auto replacement = region->allocate_replacement();
      if (!replacement) {
        return Error(replacement.error().code(), operation)
            .reason("the device has no room for what is parked")
            .wanted(to_string(region->size()) + " more")
            .got(to_string(context_.device.free_memory()))
            .note("cause   " + replacement.error().message())
            .advice("free memory of the device and call unpark() again: all is still parked");
      }
      relocations.push_back({region, *replacement});
    }
    return parked_->copy_back(context_, [&](const ParkedMemory::Range& range) {
      DeviceSpan to = range.bytes;
      relocate(to, relocations);
      return to;
    });
  };
  Result<void> mine = bring_back();
  if (!mine && mine.error().code() == ErrorCode::corrupted) (void)context_.fail(mine.error());
  if (context_.failure) {
    if (!context_.device_hangs()) release();
    return mine ? *context_.failure : mine.error();
  }
  if (auto agreed = agree(operation, ParkCall::unpark, parked_kinds_, mine); !agreed) {
    release();
    return agreed.error();
  }
  relocate_ranges(relocations);
  ParkReport report;
  for (const Relocation& one : relocations) {
    one.region->replace_memory(one.replacement);
    report.tiers[std::size_t(tiers::Tier::device)].taken += one.replacement.size();
  }
  report.tiers[std::size_t(tiers::Tier::host)].given_back = parked_->size();
  context_.runtime.ledger().give_back(tiers::Tier::host, tiers::Purpose::parked, parked_->size());
  parked_.reset();
  parked_kinds_ = ParkKinds::none;
  return report;
}

void EngineState::relocate(DeviceSpan& range, std::span<const Relocation> relocations) {
  for (const Relocation& one : relocations) {
    if (!one.region->contains(range)) continue;
    range = one.region->translate(range, one.replacement);
    return;
  }
}

void EngineState::relocate_ranges(std::span<const Relocation> relocations) {
  for (FlatState& flat : context_.flats) {
    relocate(flat.kept_shard, relocations);
    relocate(flat.kept_gradient, relocations);
    for (TileState& tile : flat.tiles) relocate(tile.kept, relocations);
  }
  relocate(context_.partials, relocations);
  for (DeviceSpan& slot : device_update_.slots()) relocate(slot, relocations);
  relocate(checkpoints_->memory(), relocations);
}

}  // namespace penstock::zero
