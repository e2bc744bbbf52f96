#include "swap/path/path.hpp"

#include "base/notes.hpp"
#include "base/number_text.hpp"
#include "base/start_thread.hpp"
#include "tiers/io/bounded_call.hpp"

#include <pthread.h>
#include <time.h>
#include <algorithm>
#include <cmath>
#include <string>

namespace penstock::swap {

using tiers::BlockFile;

namespace {

/// Enough requests for in_flight_max, and more where transfers are shorter than request_max.
std::uint32_t queue_depth(const PathOptions& options) {
  const std::uint64_t request = std::max<std::uint64_t>(options.request_max.value(), 1);
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(ceil_divide(options.in_flight_max.value(), request), 64, 4096));
}

}  // namespace

Result<void> check_weight(const PathOptions& path) {
  if (path.weight > 0 && std::isfinite(path.weight)) return ok();
  return Error::invalid_argument("Path::create")
      .object("weight of " + path.directory.string())
      .wanted("a finite number above 0")
      .got(number_text(path.weight));
}

Result<void> check_options(const PathOptions& path) {
  const auto refused = [&](const char* name) {
    return Error::invalid_argument("Path::create").object(name + (" of " + path.directory.string()));
  };
  if (path.clock == nullptr) return refused("clock").reason("it is null");
  if (path.file_system == nullptr) return refused("file_system").reason("it is null");
  if (path.deadline <= TimePoint::zero()) {
    return refused("deadline").wanted("a time above 0").got(std::to_string(path.deadline.count()) + " ns");
  }
  if (path.direct_io > tiers::DirectIo::off) return refused("direct_io").got(unsigned(path.direct_io));
  if (path.engine > tiers::EngineChoice::threads) return refused("engine").got(unsigned(path.engine));
  return ok();
}

namespace {

Result<tiers::ChosenEngine> engine_for(const PathOptions& options, const tiers::File::Properties& file) {
  if (!options.make_engine) return tiers::choose_engine(options.engine, queue_depth(options), file);
  PENSTOCK_TRY_ASSIGN(auto made, options.make_engine(file));
  return tiers::ChosenEngine{std::move(made), {}};
}

/// `maker` is what made or replaced the engine.
Result<void> check_made(const char* maker, const tiers::ChosenEngine& chosen) {
  Error refused = Error::invalid_argument("Path::create").object(maker);
  if (chosen.engine == nullptr) return std::move(refused).reason("it returned no engine");
  if (const std::string failure = chosen.engine->failure(); !failure.empty()) {
    return std::move(refused).reason("its engine has failed").got(failure);
  }
  const tiers::IoLimits limits = chosen.engine->limits();
  if (limits.depth > 0 && !limits.request_max.is_zero()) return ok();
  return std::move(refused).reason("its engine accepts no request: its limits are zero");
}

struct MadeFile {
  tiers::File file;
  std::string growth_note;  // why it may not grow to the capacity
};

/// Opening and reserving have no deadline of their own, and a file system may never answer.
Result<MadeFile> make_file(const PathOptions& options, ByteCount reserved) {
  const auto make = [=]() -> Result<MadeFile> {
    MadeFile made;
    PENSTOCK_TRY_ASSIGN(made.file,
                        options.file_system->create_scratch(options.directory, reserved, options.direct_io));
    if (reserved >= options.capacity) return made;
    if (auto extended = made.file.extend(options.capacity); !extended) {
      made.growth_note = "may not grow: " + extended.error().message();
    }
    return made;
  };
  return tiers::bounded_call<MadeFile>("Path::create", options.directory.string(), options.deadline, make);
}

}  // namespace

Result<PathReport> probe_path(const PathOptions& options) {
  PENSTOCK_TRY_ASSIGN(const auto path, Path::create(options));
  return path->report();
}

PathReport Path::report() const {
  return {.directory = options_.directory,
          .file = file_.properties(),
          .capacity = options_.capacity,
          .reserved = options_.reserved.value_or(options_.capacity),
          .weight = options_.weight,
          .request_max = options_.request_max,
          .in_flight_max = options_.in_flight_max,
          .engine = engine_->name(),
          .notes = notes(),
          .counters = counters(),
          .driver_cpu_time = driver_cpu_time()};
}

Result<std::unique_ptr<Path>> Path::create(const PathOptions& wanted) {
  PENSTOCK_TRY(check_weight(wanted));
  PENSTOCK_TRY(check_options(wanted));
  PathOptions options = wanted;
  if (options.capacity.is_zero()) {
    return Error::invalid_argument("Path::create")
        .object("capacity of " + options.directory.string())
        .wanted("the length of the swap file, at least one tensor")
        .got(options.capacity);
  }
  const ByteCount reserved = options.reserved.value_or(options.capacity);
  if (reserved > options.capacity) {
    return Error::invalid_argument("Path::create")
        .object("reserved of " + options.directory.string())
        .wanted("at most the capacity, " + to_string(options.capacity))
        .got(reserved);
  }
  PENSTOCK_TRY_ASSIGN(auto made, make_file(options, reserved));
  auto& [file, growth_note] = made;
  if (!growth_note.empty()) options.capacity = reserved;
  PENSTOCK_TRY_ASSIGN(auto chosen, engine_for(options, file.properties()));
  PENSTOCK_TRY(check_made(options.make_engine ? "PathOptions::make_engine" : "PathOptions::engine", chosen));
  if (options.decorate) chosen.engine = options.decorate(std::move(chosen.engine));
  PENSTOCK_TRY(check_made("PathOptions::decorate", chosen));
  PENSTOCK_TRY_ASSIGN(auto block_file, BlockFile::create(std::move(file), *chosen.engine,
                                                         {.size = options.capacity,
                                                          .request_max = options.request_max,
                                                          .in_flight_max = options.in_flight_max,
                                                          .deadline = options.deadline,
                                                          .clock = options.clock}));
  return std::unique_ptr<Path>(
      new Path(std::move(options), std::move(chosen), std::move(block_file), std::move(growth_note)));
}

Path::Path(PathOptions options, tiers::ChosenEngine chosen, BlockFile file, std::string growth_note)
    : options_(std::move(options)),
      engine_(std::move(chosen.engine)),
      file_(std::move(file)),
      choice_(std::move(chosen.reason)),
      growth_note_(std::move(growth_note)),
      engine_notes_(engine_->notes()) {}

Path::~Path() {
  (void)stop_driver();  // the owner of the buffers called it before and got its result
}

/// No request may be in flight when the file closes, except those past their deadline.
void Path::close_engine() noexcept {
  at_rest_ = engine_->close(file_.overdue_count() > 0 ? options_.clock->now() : forever);
}

void Path::attach(HostSpan buffers) {
  engine_->attach(tiers::FileHandle::none, buffers);
  engine_notes_ = engine_->notes();
}

std::string Path::notes() const {
  const tiers::File::Properties& file = file_.properties();
  std::string notes;
  for (const std::string& line :
       {choice_, file.direct_note.empty() ? "" : "buffered I/O: " + file.direct_note,
        file.reserve_note.empty() ? "" : "space not reserved: " + file.reserve_note, growth_note_,
        engine_notes_}) {
    append_note(notes, line);
  }
  return notes;
}

Result<void> Path::start_driver(std::function<void()> notify) {
  notify_ = std::move(notify);
  const auto run = [this] {
    ::pthread_setname_np(::pthread_self(), "penstock-path");
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (stopping_ && commands_.empty() && !file_.busy()) break;
      }
      if (turn(forever)) notify_();
    }
    close_engine();  // the ring belongs to this thread
  };
  PENSTOCK_TRY_ASSIGN(
      driver_, start_thread("Path::start_driver", "the driver of " + options_.directory.string(), run));
  return ok();
}

bool Path::stop_driver() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  engine_->wake();
  if (driver_.joinable()) {
    driver_.join();
  } else if (!closed_) {
    close_engine();
  }
  closed_ = true;
  return at_rest_;
}

bool Path::drive() {
  return turn(TimePoint::min());
}

bool Path::turn(TimePoint deadline) {
  finished_.clear();
  {
    const std::lock_guard lock(mutex_);
    while (!commands_.empty()) {
      const Command& command = commands_.front();
      auto started = file_.start(command.operation, command.offset, command.buffer, command.tag);
      if (!started && started.error().code() == ErrorCode::would_block) break;
      if (!started) finished_.push_back({command.tag, command.operation, started});
      commands_.pop_front();
    }
    if (stopping_ && commands_.empty() && !file_.busy()) deadline = TimePoint::min();
  }
  if (!finished_.empty()) deadline = TimePoint::min();
  file_.poll(deadline);
  while (auto one = file_.take_finished()) finished_.push_back(std::move(*one));

  const std::lock_guard lock(mutex_);
  counters_ = file_.counters();
  saturated_ = file_.saturated();
  std::move(finished_.begin(), finished_.end(), std::back_inserter(outcomes_));
  return !finished_.empty();
}

void Path::post(const Command& command) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    // The driver takes all posted transfers at once: an earlier post has woken it. When its queue is full it waits for
    // a completion, which wakes it.
    wake = commands_.empty() && !saturated_;
    commands_.push_back(command);
  }
  if (wake) engine_->wake();
}

void Path::take_outcomes(std::vector<BlockFile::Finished>& outcomes) {
  const std::lock_guard lock(mutex_);
  std::move(outcomes_.begin(), outcomes_.end(), std::back_inserter(outcomes));
  outcomes_.clear();
}

TimePoint Path::driver_cpu_time() const {
  clockid_t clock{};
  timespec used{};
  auto& driver = const_cast<std::thread&>(driver_);
  if (!driver_.joinable() || ::pthread_getcpuclockid(driver.native_handle(), &clock) != 0 ||
      ::clock_gettime(clock, &used) != 0) {
    return TimePoint::zero();
  }
  return std::chrono::seconds(used.tv_sec) + TimePoint(used.tv_nsec);
}

tiers::FileCounters Path::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace penstock::swap
