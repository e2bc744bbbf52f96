// The calls that move what an engine holds to host memory or to disk and back: park, unpark.

#include "zero/engine/engine_state.hpp"
#include "zero/engine/parked_files.hpp"
#include "zero/engine/parked_memory.hpp"
#include "zero/layout/path_options.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace penstock::zero {

namespace {

/// What a rank tells its peers.
struct Verdict {
  std::uint32_t call, kinds, to, code, failed;
};

constexpr std::array stores = {tiers::Tier::host, tiers::Tier::nvme};

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
  const ParkKinds missing = parking_.kinds & kinds;
  if (missing == ParkKinds::none) return ok();
  return Error(ErrorCode::failed_state, operation)
      .reason("what the call needs is parked")
      .object(to_string(missing))
      .advice("call unpark() first, on all ranks");
}

Result<void> EngineState::check_park(tiers::Tier to, ParkKinds kinds,
                                     const std::vector<std::filesystem::path>& directories) const {
  constexpr const char* operation = "Engine::park";
  if (kinds == ParkKinds::none || (kinds | ParkKinds::all) != ParkKinds::all) {
    return Error::invalid_argument(operation)
        .object("kinds")
        .wanted("parameters, gradients, optimizer, or several of them")
        .got(static_cast<unsigned>(kinds));
  }
  if (to != tiers::Tier::host && to != tiers::Tier::nvme) {
    return Error::invalid_argument(operation)
        .object("to")
        .wanted("host or nvme")
        .got(std::string(to_string(to)));
  }
  if (to == tiers::Tier::host && !directories.empty()) {
    return Error::invalid_argument(operation)
        .object("directories")
        .wanted("none: what is parked in host memory needs no files")
        .got(directories.front().string());
  }
  if (to == tiers::Tier::nvme && directories.empty() && context_.internals.options().paths.empty()) {
    return Error::invalid_argument(operation)
        .object("directories")
        .reason("there are none, and the engine's runtime has no swap directory")
        .advice("pass the directories in which the swap files of what is parked may be");
  }
  for (std::size_t i = 0; i < directories.size(); ++i) {
    if (!directories[i].empty()) continue;
    return Error::invalid_argument(operation)
        .object("directories[" + std::to_string(i) + "]")
        .reason("it is empty")
        .advice("name a directory for swap files; \".\" is the current one");
  }
  if (parking_.kinds != ParkKinds::none) {
    return Error(ErrorCode::failed_state, operation)
        .reason("the engine is parked already")
        .object(to_string(parking_.kinds))
        .advice("call unpark(), then park() with all kinds that are to leave");
  }
  PENSTOCK_TRY(check_no_commit(operation));
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

/// No operation of a stream uses memory of `kinds` afterwards. Called on all ranks or on none: it drops flats.
Result<void> EngineState::finish_use_of(ParkKinds kinds) {
  // From here on a call may fail on this rank alone: its next one drops what the peers have dropped.
  if (has(kinds, ParkKinds::parameters)) residency_->begin_clear();
  PENSTOCK_TRY(residency_->finish_gradients(*this));
  PENSTOCK_TRY(gradients_.finish_reductions());
  std::vector<tiers::Fence> last_uses;
  if (has(kinds, ParkKinds::parameters)) {
    PENSTOCK_TRY(residency_->clear("Engine::park", *this));
    last_uses = checkpoints_->last_uses();
  }
  PENSTOCK_TRY(finish_moves());
  // The trainer's streams may still read what it has released.
  for (const auto& fences : {last_uses, context_.fences.all()}) {
    for (const tiers::Fence& fence : fences)
      PENSTOCK_TRY(context_.wait_for(*fence, "the trainer's use of the engine's tensors"));
  }
  return context_.finish_streams();
}

Result<void> EngineState::agree(const char* operation, ParkCall call, const Parking& parking,
                                const Result<void>& mine) {
  const Verdict verdict{.call = static_cast<std::uint32_t>(call),
                        .kinds = static_cast<std::uint32_t>(parking.kinds),
                        .to = static_cast<std::uint32_t>(parking.to),
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
  const auto different = [&](const char* argument, const std::string& wanted, const std::string& got,
                             std::size_t rank) {
    return Error::invalid_argument(operation)
        .object(argument)
        .reason("the ranks pass different ones; nothing has changed")
        .wanted(wanted + " on all ranks")
        .got(got + " on rank " + std::to_string(rank));
  };
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].kinds != verdict.kinds) {
      return different("kinds", to_string(parking.kinds), to_string(static_cast<ParkKinds>(all[rank].kinds)),
                       rank);
    }
    if (all[rank].to != verdict.to) {
      return different("to", std::string(to_string(parking.to)),
                       std::string(to_string(static_cast<tiers::Tier>(all[rank].to))), rank);
    }
    if (all[rank].failed == 0) continue;
    return Error(static_cast<ErrorCode>(all[rank].code), operation)
        .reason("it has failed on another rank; nothing has changed")
        .object("rank " + std::to_string(rank))
        .advice("look for that rank's error; then call it again on all ranks");
  }
  return ok();
}

/// What has its home in host memory leaves to its place on disk, and is read from there when it is used next.
Result<void> EngineState::store_homes(ParkKinds kinds) {
  tiers::Ledger& ledger = context_.runtime.ledger();
  const auto predict = [&](ParkKinds kind, tiers::Purpose purpose, ByteCount homes) {
    if (has(kinds, kind)) ledger.predict_traffic(purpose, homes, homes);
  };
  predict(ParkKinds::parameters, tiers::Purpose::parameter_shard, options_.plan.home_shards);
  predict(ParkKinds::optimizer, tiers::Purpose::optimizer_tile, options_.plan.home_tiles);
  wear_.note_other_writes();
  const std::vector<tiers::TensorId> homes = homes_of(kinds);
  context_.internals.begin_stores(homes);
  return context_.internals.end_stores(homes);
}

/// Nothing is released yet.
Result<std::unique_ptr<ParkedContents>> EngineState::copy_contents(
    tiers::Tier to, ParkKinds kinds, const std::vector<std::filesystem::path>& directories) {
  std::vector<MemoryRange> ranges = device_contents_of(kinds);
  if (to == tiers::Tier::host) {
    auto copied = ParkedMemory::copy(context_, ranges);
    if (copied) return std::unique_ptr<ParkedContents>(*std::move(copied));
    if (copied.error().code() != ErrorCode::no_space) return copied.error();
    return Error(ErrorCode::no_space, "Engine::park")
        .reason("the machine has no room for what leaves the device")
        .object(to_string(kinds))
        .note("cause   " + copied.error().message())
        .advice("free host memory, park to nvme, or park fewer kinds; nothing has changed");
  }
  PENSTOCK_TRY(store_homes(kinds));
  for (HostRange& one : host_ranges_of(kinds)) {
    if (one.has_contents) ranges.push_back(std::move(one.range));
  }
  std::vector<swap::PathOptions> paths;
  if (directories.empty()) paths = context_.internals.options().paths;
  for (swap::PathOptions& path : paths) path.file_name.clear();
  for (const auto& directory : directories)
    paths.push_back(path_options(options_.config, directory, directories.size() == 1 ? 1 : 0));
  PENSTOCK_TRY_ASSIGN(auto stored, ParkedFiles::store(context_, ranges, std::move(paths)));
  return std::unique_ptr<ParkedContents>(std::move(stored));
}

Result<ParkReport> EngineState::park(tiers::Tier to, ParkKinds kinds,
                                     const std::vector<std::filesystem::path>& directories) {
  constexpr const char* operation = "Engine::park";
  PENSTOCK_TRY(ready(operation));
  Result<void> allowed = check_park(to, kinds, directories);
  if (allowed) allowed = context_.finish_update();
  if (context_.failure) return *context_.failure;
  PENSTOCK_TRY(finish_moves(allowed));
  Parking wanted{.kinds = kinds, .to = to};
  PENSTOCK_TRY(agree(operation, ParkCall::check, wanted, allowed));
  const Result<void> unused = finish_use_of(kinds);
  auto copied = unused ? copy_contents(to, kinds, directories) : unused.error();
  if (context_.failure) return *context_.failure;
  // Nothing is released before all ranks have copied: a peer that cannot must not be alone.
  PENSTOCK_TRY(agree(operation, ParkCall::park, wanted, copied ? ok() : Result<void>(copied.error())));
  wanted.contents = *std::move(copied);
  parking_ = std::move(wanted);
  if (has(kinds, ParkKinds::parameters)) context_.fences.clear();
  ParkReport report;
  if (has(kinds, ParkKinds::gradients)) report[tiers::Tier::device].given_back += caller_gradients_.release();
  for (DeviceRegion* const region : regions_of(kinds)) {
    report[tiers::Tier::device].given_back += region->size();
    region->release();
  }
  if (to == tiers::Tier::nvme) {
    parking_.homes = context_.internals.vacate(homes_of(kinds));
    std::vector<HostSpan> ranges = parking_.homes.ranges;
    for (const HostRange& one : host_ranges_of(kinds)) ranges.push_back(one.range.in_host);
    parking_.given_back = context_.internals.give_back_memory(ranges);
    report[tiers::Tier::host].given_back = parking_.given_back.bytes;
  }
  report.stays = staying();
  report.notes = parking_.contents->take_messages();
  hold_parked(report);
  return report;
}

/// Counts what is parked in the ledger and in the report.
void EngineState::hold_parked(ParkReport& report) {
  tiers::Ledger& ledger = context_.runtime.ledger();
  for (const tiers::Tier tier : stores) {
    const ByteCount bytes = parking_.contents->held(tier);
    ByteCount& predicted = parked_max_[static_cast<std::size_t>(tier)];
    if (bytes > predicted) {
      ledger.predict(tier, tiers::Purpose::parked, bytes - predicted);
      predicted = bytes;
    }
    ledger.hold(tier, tiers::Purpose::parked, bytes);
    report[tier].taken = bytes;
  }
  count_traffic();
}

/// Counts what was read and written since the last call. Each byte is written once and read once, so that the files'
/// size predicts both, for each call that has to read.
void EngineState::count_traffic() {
  tiers::Ledger& ledger = context_.runtime.ledger();
  const ParkedContents::Traffic now = parking_.contents->traffic();
  const ByteCount read = now.read - parking_.counted.read;
  const ByteCount written = now.written - parking_.counted.written;
  const ByteCount files = parking_.contents->held(tiers::Tier::nvme);
  ledger.predict_traffic(tiers::Purpose::parked, read.is_zero() ? ByteCount() : files,
                         written.is_zero() ? ByteCount() : files);
  ledger.read(tiers::Purpose::parked, read);
  ledger.wrote(tiers::Purpose::parked, written);
  parking_.counted = now;
}

Result<void> EngineState::bring_back(std::vector<Relocation>& relocations) {
  for (DeviceRegion* const region : regions_of(parking_.kinds)) {
    auto replacement = region->allocate_replacement();
    if (!replacement) {
      return Error(replacement.error().code(), "Engine::unpark")
          .reason("the device has no room for what is parked")
          .wanted(to_string(region->size()) + " more")
          .got(to_string(context_.device.free_memory()))
          .note("cause   " + replacement.error().message())
          .advice("free memory of the device and call unpark() again: all is still parked");
    }
    relocations.push_back({region, *replacement});
  }
  return parking_.contents->copy_back(context_, [&](DeviceSpan range) {
    relocate(range, relocations);
    return range;
  });
}

Result<ParkReport> EngineState::unpark() {
  constexpr const char* operation = "Engine::unpark";
  PENSTOCK_TRY(ready(operation));
  if (parking_.kinds == ParkKinds::none) {
    return Error(ErrorCode::failed_state, operation).reason("nothing is parked").advice("call park() first");
  }
  PENSTOCK_TRY(finish_moves());
  std::vector<Relocation> relocations;
  const std::vector<HostSpan> host_ranges = parking_.given_back.ranges;
  const ByteCount host_bytes = parking_.given_back.bytes;
  const auto host_memory = context_.internals.take_back_memory(parking_.given_back);
  Result<void> mine = ok();
  if (!host_memory) {
    mine = Error(host_memory.error().code(), operation)
               .reason("the machine has no room for what is parked")
               .note("cause   " + host_memory.error().message())
               .advice("free host memory and call unpark() again: all is still parked");
  }
  if (mine) mine = bring_back(relocations);
  count_traffic();
  const auto undo = [&] {
    for (const Relocation& one : relocations) {
      if (!one.replacement.empty()) context_.device.release(one.replacement);
    }
    if (host_memory && !host_ranges.empty())
      parking_.given_back = context_.internals.give_back_memory(host_ranges);
  };
  if (!mine && mine.error().code() == ErrorCode::corrupted) (void)context_.fail(mine.error());
  if (context_.failure) {
    if (!context_.device_hangs()) undo();
    return mine ? *context_.failure : mine.error();
  }
  if (auto agreed = agree(operation, ParkCall::unpark, parking_, mine); !agreed) {
    undo();
    return agreed.error();
  }
  relocate_ranges(relocations);
  ParkReport report{.notes = parking_.contents->take_messages()};
  if (!host_memory->empty()) report.notes.push_back(*host_memory);
  for (const Relocation& one : relocations) {
    one.region->replace_memory(one.replacement);
    report[tiers::Tier::device].taken += one.replacement.size();
  }
  report[tiers::Tier::host].taken = host_bytes;
  for (const tiers::Tier tier : stores) report[tier].given_back = parking_.contents->held(tier);
  end_parking();
  return report;
}

/// Frees what holds the contents. They are back, or not needed any more.
void EngineState::end_parking() {
  if (parking_.contents == nullptr) return;
  for (const tiers::Tier tier : stores)
    context_.runtime.ledger().give_back(tier, tiers::Purpose::parked, parking_.contents->held(tier));
  context_.internals.reuse(std::move(parking_.homes));
  parking_ = {};
}

}  // namespace penstock::zero
