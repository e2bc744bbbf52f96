#include <penstock/base/check.hpp>
#include <penstock/swap/runtime.hpp>

#include <pthread.h>
#include <algorithm>

namespace penstock::swap {

using tiers::TensorId;

namespace {
// How often the mover looks at hops that nothing wakes it for: a stream's event, a peer's arrival.
constexpr TimePoint poll_interval = std::chrono::microseconds(50);

ExtentAllocator make_extent_allocator(std::span<const std::unique_ptr<Path>> paths) {
  std::vector<ExtentAllocator::PathRoom> rooms;
  Alignment alignment;
  for (const auto& path : paths) {
    rooms.push_back({.weight = path->options().weight,
                     .capacity = path->options().capacity,
                     .reserved = path->options().reserved.value_or(path->options().capacity)});
    alignment = std::max(alignment, path->alignment());
  }
  return ExtentAllocator(rooms, alignment);
}

}  // namespace

void Lease::end() noexcept {
  if (runtime_ != nullptr) std::exchange(runtime_, nullptr)->end_lease(tensor_, access_);
}

Result<std::unique_ptr<Runtime>> Runtime::create(RuntimeOptions options) {
  if (!options.paths.empty() && !options.swap_need.total.is_zero()) {
    auto messages = size_swap_files(options.swap_need, options.paths);
    if (!messages) return messages.error();
    options.messages = std::move(*messages);
  }
  std::vector<std::unique_ptr<Path>> paths;
  for (const PathOptions& path : options.paths) {
    auto created = Path::create(path);
    if (!created) return created.error();
    paths.push_back(std::move(*created));
  }
  return create(std::move(options), std::move(paths));
}

Result<std::unique_ptr<Runtime>> Runtime::create(RuntimeOptions options,
                                                 std::vector<std::unique_ptr<Path>> paths) {
  auto arena = tiers::HostArena::create({.size = options.host_budget, .pinning = options.pinning});
  if (!arena) return arena.error();
  return std::unique_ptr<Runtime>(new Runtime(std::move(options), std::move(*arena), std::move(paths)));
}

Runtime::Runtime(RuntimeOptions options, tiers::HostArena arena, std::vector<std::unique_ptr<Path>> paths)
    : options_(std::move(options)),
      executor_(options_.executor != nullptr ? options_.executor : &inline_executor_),
      arena_(std::move(arena)),
      paths_(std::move(paths)),
      budget_(std::make_unique<tiers::MemoryBudget>(tiers::Tier::host, options_.host_budget, ledger_)),
      store_(std::make_unique<tiers::TensorStore>()),
      extents_(make_extent_allocator(paths_)),
      transfers_(paths_) {
  for (const auto& path : paths_) {
    if (!arena_.bytes().empty()) path->attach(arena_.bytes());
  }
  swapper_ = std::make_unique<Swapper>(
      *store_, *budget_, extents_, transfers_, ledger_,
      Swapper::Options{
          .arena = arena_.bytes(),
          .policy = options_.eviction == Eviction::lru ? make_lru_policy() : make_planned_policy(),
          .lookahead = options_.lookahead,
          .executor = executor_,
          .wake = [this] { wake(); },
          .messages = std::move(options_.messages)});
  if (options_.idle_handler == nullptr) {
    for (const auto& path : paths_) path->start_driver([this] { wake(); });
    mover_ = std::thread([this] { run_mover(); });
  }
}

Runtime::~Runtime() {
  {
    const std::lock_guard lock(mutex_);
    swapper_->stop();
  }
  // A store that fails here was reported by drain(), or belongs to a run that is being abandoned.
  wait_for_rest([this] { return transfers_.active() == 0; });
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  if (mover_.joinable()) mover_.join();
  bool at_rest = true;
  for (const auto& path : paths_) at_rest &= path->stop_driver();
  if (!at_rest) arena_.leak();
}

Result<TensorId> Runtime::add(tiers::TensorDescription description, bool on_disk) {
  const std::lock_guard lock(mutex_);
  if (on_disk) {
    auto extent = extents_.allocate(description.size);
    if (!extent) return std::move(extent).error().object(description.name);
    description.extent = *extent;
    ledger_.hold(tiers::Tier::nvme, description.purpose, extent->length);
  }
  const TensorId tensor = store_->add(std::move(description));
  if (!store_->description(tensor).stays_in_memory()) return tensor;
  if (auto settled = swapper_->settle(tensor); !settled) {
    (void)store_->remove(tensor);
    return settled.error();
  }
  return tensor;
}

void Runtime::remove(TensorId tensor) {
  {
    std::unique_lock lock(mutex_);
    swapper_->forget(tensor);  // or a prefetch of it would start while this waits
    drive_until(lock, [&] { return swapper_->at_rest(tensor); });
    swapper_->forget(tensor);
    const tiers::TensorDescription description = swapper_->remove(tensor);
    if (description.extent) {
      ledger_.give_back(tiers::Tier::nvme, description.purpose, description.extent->length);
    }
    swapper_->advance();  // others may have waited for its room, or for the failed store of it to be heard of
  }
  wake();
}

Ticket Runtime::request(TensorId tensor, Access access) {
  Ticket ticket;
  {
    const std::lock_guard lock(mutex_);
    ticket = swapper_->request(tensor, access);
    swapper_->advance();
  }
  wake();
  return ticket;
}

std::optional<Result<Lease>> Runtime::take(Ticket ticket, TensorId tensor, Access access) {
  const std::lock_guard lock(mutex_);
  auto outcome = swapper_->take(ticket);
  if (!outcome) return std::nullopt;
  if (!*outcome) return outcome->error();
  return Lease(*this, tensor, access, **outcome);
}

void Runtime::cancel(Ticket ticket, TensorId tensor, Access access) {
  {
    const std::lock_guard lock(mutex_);
    swapper_->cancel(ticket, tensor, access);
    swapper_->advance();
  }
  wake();
}

Result<Lease> Runtime::acquire(TensorId tensor, Access access) {
  PENSTOCK_TRY(check_stores());
  const Ticket ticket = request(tensor, access);
  std::optional<Result<HostSpan>> outcome;
  std::optional<Error> failed;
  std::unique_lock lock(mutex_);
  drive_until(lock, [&] {
    outcome = swapper_->take(ticket);
    return outcome || (failed = swapper_->take_store_error());
  });
  if (failed) {
    swapper_->cancel(ticket, tensor, access);  // before it can be granted to nobody
    return tell(lock, std::move(failed)).error();
  }
  if (!*outcome) return outcome->error();
  return Lease(*this, tensor, access, **outcome);
}

void Runtime::end_lease(TensorId tensor, Access access) noexcept {
  {
    const std::lock_guard lock(mutex_);
    swapper_->release(tensor, access);
    swapper_->advance();
  }
  wake();
}

void Runtime::use(TensorId tensor) {
  {
    const std::lock_guard lock(mutex_);
    swapper_->use(tensor);
  }
  wake();
}

void Runtime::end_round() {
  const std::lock_guard lock(mutex_);
  swapper_->end_round();
}

void Runtime::prefetch(TensorId tensor) {
  {
    const std::lock_guard lock(mutex_);
    swapper_->prefetch(tensor);
  }
  wake();
}

void Runtime::discard(TensorId tensor) {
  {
    const std::lock_guard lock(mutex_);
    swapper_->discard(tensor);
  }
  wake();
}

void Runtime::wait_for_stores(std::size_t count) {
  wait_for_rest([&] { return swapper_->stores_pending() <= count; });
}

Result<void> Runtime::drain() {
  return wait_until([this] { return swapper_->drained(); });
}

std::vector<std::string> Runtime::take_messages() {
  const std::lock_guard lock(mutex_);
  return swapper_->take_messages();
}

Result<void> Runtime::check_stores() {
  std::unique_lock lock(mutex_);
  return tell(lock, swapper_->take_store_error());
}

/// Whoever hears of the error may go on, and so do the stores.
Result<void> Runtime::tell(std::unique_lock<std::mutex>& lock, std::optional<Error> store_error) {
  if (!store_error) return ok();
  swapper_->advance();
  lock.unlock();
  wake();
  return *store_error;
}

void Runtime::start(Move move) {
  {
    const std::lock_guard lock(mutex_);
    transfers_.announce();
    starting_.push_back(std::move(move));
  }
  wake();
}

void Runtime::wake() noexcept {
  if (options_.idle_handler != nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  mover_wake_.notify_one();
}

Result<void> Runtime::wait_until(const std::function<bool()>& done) {
  std::unique_lock lock(mutex_);
  std::optional<Error> failed;
  drive_until(lock, [&] { return done() || (failed = swapper_->take_store_error()).has_value(); });
  return tell(lock, std::move(failed));
}

void Runtime::wait_for_rest(const std::function<bool()>& at_rest) {
  std::unique_lock lock(mutex_);
  drive_until(lock, at_rest);
}

/// `done` is evaluated with the lock held.
template <class Done>
void Runtime::drive_until(std::unique_lock<std::mutex>& lock, const Done& done) {
  if (done()) return;
  const TimePoint began = Clock::steady().now();
  if (options_.idle_handler == nullptr) {
    changed_.wait(lock, done);
  } else {
    while (!done()) {
      lock.unlock();
      if (!poll()) options_.idle_handler->idle();
      lock.lock();
    }
  }
  stall_ns_ += (Clock::steady().now() - began).count();
}

Result<void> Runtime::wait_for(const tiers::Event& event) {
  if (options_.idle_handler == nullptr) return event.synchronize();
  while (true) {
    auto passed = event.query();
    if (!passed) return passed.error();
    if (*passed) return ok();
    if (!poll()) options_.idle_handler->idle();
  }
}

bool Runtime::poll() {
  bool moved = false;
  if (options_.idle_handler != nullptr) {
    for (const auto& path : paths_) moved |= path->drive();
  }
  events_.clear();
  moved |= transfers_.poll(events_);

  {
    const std::lock_guard lock(mutex_);
    for (const MoveEvent& event : events_) {
      if (event.state == HopState::done) transfers_.settle();
      event.on_event(event.state, event.result);
    }
    swapper_->advance();
    std::swap(starts_, starting_);
    swapper_->take_moves(starts_);
    moved |= !starts_.empty();
    if (moved) changed_.notify_all();
  }
  for (Move& move : starts_) transfers_.start(std::move(move));
  starts_.clear();
  return moved;
}

void Runtime::run_mover() {
  ::pthread_setname_np(::pthread_self(), "penstock-mover");
  while (true) {
    if (poll()) continue;
    std::unique_lock lock(mutex_);
    const auto woken = [this] { return woken_ || stopping_; };
    // A grant may have come from another thread's advance(): tell those who wait for it.
    changed_.notify_all();
    if (transfers_.needs_polling()) {
      mover_wake_.wait_for(lock, poll_interval, woken);
    } else {
      mover_wake_.wait(lock, woken);
    }
    if (stopping_) return;
    woken_ = false;
  }
}

}  // namespace penstock::swap
