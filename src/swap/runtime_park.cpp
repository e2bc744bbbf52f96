#include "swap/runtime_park.hpp"

#include "swap/runtime_state.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

namespace penstock::swap {

namespace {

// No tensor of a caller has it: those have a purpose of their own.
constexpr tiers::TensorKey key_of_all_memory{.owner = ~std::uint32_t{0}, .role = tiers::Purpose::parked};

Result<void> check_park_state(const char* operation, ParkState is, ParkState wanted) {
  if (is == wanted) return ok();
  Error error(ErrorCode::failed_state, operation);
  if (is == ParkState::changing)
    return std::move(error).reason("another thread parks or unparks the runtime");
  if (is == ParkState::in_use) return std::move(error).reason("the runtime is not parked");
  return std::move(error).reason("the runtime is parked").advice("call unpark() first");
}

}  // namespace

Result<void> RuntimeState::check_not_parked(const char* operation) const {
  return check_park_state(operation, park_state, ParkState::in_use);
}

Result<void> RuntimeState::begin_park() {
  constexpr const char* operation = "Runtime::park";
  const std::lock_guard lock(mutex);
  PENSTOCK_TRY(check_not_parked(operation));
  if (!users.empty()) {
    return Error(ErrorCode::failed_state, operation)
        .reason("an engine uses the runtime")
        .advice("zero::Engine::park() parks what an engine has");
  }
  if (memory_limit < budget.size()) {
    return Error(ErrorCode::failed_state, operation)
        .reason("the runtime's memory is limited")
        .advice(advice_without_limit);
  }
  const std::vector<tiers::TensorId> tensors = store.tensors();
  const auto stays = std::find_if(tensors.begin(), tensors.end(), [this](tiers::TensorId tensor) {
    return store.description(tensor).stays_in_memory();
  });
  if (stays != tensors.end()) {
    return Error(ErrorCode::unsupported, operation)
        .object(store.description(*stays).name)
        .reason("the tensor stays in memory: it has no place on disk")
        .advice("remove it, or add it on disk");
  }
  park_state = ParkState::changing;
  return ok();
}

Result<ByteCount> Runtime::park() {
  PENSTOCK_TRY(state_->begin_park());
  parking_ = std::make_unique<Parking>();
  std::vector<tiers::TensorId> dirty;
  state_->change([&] { dirty = state_->residency.dirty(); });
  // A lease of all memory would store one tensor at a time.
  RuntimeInternals(*this).begin_stores(dirty);
  const auto stored = RuntimeInternals(*this).end_stores(dirty);
  auto held = stored ? hold_all_memory() : stored.error();
  const std::lock_guard lock(state_->mutex);
  state_->park_state = held ? ParkState::parked : ParkState::in_use;
  if (!held) parking_.reset();
  return held;
}

/// Evicts every tensor by a lease of all memory.
Result<ByteCount> Runtime::hold_all_memory() {
  const ByteCount all = state_->budget.size();
  PENSTOCK_TRY_ASSIGN(parking_->memory, add({.name = "all memory, to be parked",
                                             .key = key_of_all_memory,
                                             .purpose = tiers::Purpose::parked,
                                             .size = all,
                                             .transient = true},
                                            /*on_disk=*/false));
  state_->change([this] { state_->all_memory = parking_->memory; });
  auto lease = acquire(parking_->memory, Access::overwrite, Use::unrecorded);
  if (!lease) {
    (void)remove(parking_->memory);
    return lease.error();
  }
  parking_->lease = *std::move(lease);
  const HostSpan memory[] = {parking_->lease.bytes()};
  parking_->given_back = RuntimeInternals(*this).give_back_memory(memory);
  if (parking_->given_back.bytes < all) {
    const std::lock_guard lock(state_->mutex);
    state_->messages.push_back("park() gave back " + to_string(parking_->given_back.bytes) + " of " +
                               to_string(all) + ": " + parking_->given_back.reason);
  }
  return parking_->given_back.bytes;
}

Result<void> Runtime::unpark() {
  {
    const std::lock_guard lock(state_->mutex);
    PENSTOCK_TRY(check_park_state("Runtime::unpark", state_->park_state, ParkState::parked));
    state_->park_state = ParkState::changing;
  }
  const auto taken = RuntimeInternals(*this).take_back_memory(parking_->given_back);
  if (taken) {
    parking_->lease.end();
    (void)remove(parking_->memory);
    parking_.reset();
  }
  const std::lock_guard lock(state_->mutex);
  state_->park_state = taken ? ParkState::in_use : ParkState::parked;
  if (!taken) return taken.error();
  return ok();
}

bool Runtime::parked() const {
  const std::lock_guard lock(state_->mutex);
  return state_->park_state == ParkState::parked;
}

}  // namespace penstock::swap
