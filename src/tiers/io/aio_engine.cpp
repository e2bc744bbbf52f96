#include "tiers/io/aio_engine.hpp"

#if !PENSTOCK_HAS_LIBAIO

namespace penstock::tiers {

Result<std::unique_ptr<IoEngine>> create_aio_engine(const AioOptions&) {
  return Error::unsupported("create_aio_engine").reason("this build has no libaio");
}

}  // namespace penstock::tiers

#else

#include "tiers/io/engine_errors.hpp"
#include "tiers/io/interrupted.hpp"
#include "tiers/io/refusals.hpp"
#include "tiers/io/wake_event.hpp"

#include <libaio.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory_resource>
#include <vector>

namespace penstock::tiers {

namespace {

constexpr ByteCount request_max = 1_GiB;

class AioEngine final : public IoEngine {
 public:
  explicit AioEngine(const AioOptions& options)
      : options_(options), refusals_(options.refusal_time_max), slots_(options.depth) {
    for (std::uint32_t slot = options.depth; slot > 0; --slot) free_slots_.push_back(slot - 1);
  }
  ~AioEngine() override { (void)AioEngine::close(forever); }

  Result<void> open() {
    const int result =
        repeat_interrupted_code([this] { return ::io_setup(static_cast<int>(options_.depth), &context_); });
    if (result != 0) {
      const char* const advice = "allow io_setup in the container's seccomp profile";
      const Error error = setup_error("AioEngine::open", "Linux AIO", -result, advice);
      return result == -EAGAIN ? Error(error).advice("raise fs.aio-max-nr") : error;
    }
    open_ = true;
    return event_.open("AioEngine::open");
  }

  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    std::size_t accepted = 0;
    // One request a system call: see UringEngine::submit.
    while (accepted < requests.size() && !closing_ && in_flight_ < options_.depth) {
      if (!start(requests[accepted])) break;
      ++in_flight_;
      ++accepted;
    }
    return accepted;
  }

  std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override {
    if (completions.empty()) return 0;
    take_events();
    if (unreaped_.empty() && open_) wait_for_some(deadline);
    const std::size_t count = std::min(completions.size(), unreaped_.size());
    for (std::size_t i = 0; i < count; ++i) {
      completions[i] = unreaped_.front();
      unreaped_.pop_front();
    }
    in_flight_ -= static_cast<std::uint32_t>(count);
    return count;
  }

  void wake() noexcept override { event_.signal(); }

  void attach(FileHandle, HostSpan) noexcept override {}
  bool detach() noexcept override { return true; }

  bool close(TimePoint deadline) noexcept override {
    if (!open_) return in_flight_ == unreaped_.size();
    closing_ = true;
    // The kernel cannot cancel file requests: wait for those in flight.
    take_events();
    while (in_flight_ > unreaped_.size()) {
      wait(deadline);
      take_events();
      const bool late = deadline != forever && Clock::steady().now() >= deadline;
      if (in_flight_ == unreaped_.size() || (!late && failure_.empty())) continue;
      open_ = false;  // io_destroy would wait
      return false;
    }
    ::io_destroy(context_);
    open_ = false;
    return true;
  }

  IoLimits limits() const noexcept override { return {.request_max = request_max, .depth = options_.depth}; }
  std::uint32_t in_flight() const noexcept override { return in_flight_; }
  const char* name() const noexcept override { return "libaio"; }
  std::string notes() const override { return {}; }
  std::string failure() const override { return failure_; }

 private:
  struct Slot {
    iocb control;
    std::uint64_t tag = 0;
  };

  /// False when the kernel has no room now and a request in flight will free some.
  bool start(const IoRequest& request) noexcept {
    if (broken_ != 0) {
      unreaped_.push_back({request.tag, broken_});
      return true;
    }
    const std::uint32_t index = free_slots_.back();
    Slot& slot = slots_[index];
    slot.tag = request.tag;
    const int fd = static_cast<int>(request.file);
    const auto offset = static_cast<long long>(request.offset.value());
    const std::uint64_t length = std::min(request.buffer.size(), request_max).value();
    iocb* const control = &slot.control;
    switch (request.operation) {
      case IoOperation::read: ::io_prep_pread(control, fd, request.buffer.data(), length, offset); break;
      case IoOperation::write: ::io_prep_pwrite(control, fd, request.buffer.data(), length, offset); break;
      case IoOperation::flush: ::io_prep_fdsync(control, fd); break;
    }
    ::io_set_eventfd(control, event_.descriptor());
    control->data = &slot;
    iocb* list = control;
    const int result = repeat_interrupted_code([&] { return ::io_submit(context_, 1, &list); });
    if (result == 1) {
      free_slots_.pop_back();
      return true;
    }
    if (result == -EAGAIN && in_flight_ > unreaped_.size()) return false;
    // A refused request completes with the kernel's error; BlockFile handles it as any failed request.
    unreaped_.push_back({request.tag, result == 0 ? -EAGAIN : result});
    return true;
  }

  /// Waits for a completion, a wake(), the deadline or the failure of the engine.
  void wait_for_some(TimePoint deadline) noexcept {
    const bool failed_before = !failure_.empty();
    while (unreaped_.empty() && !event_.take() && deadline != TimePoint::min()) {
      wait(deadline);
      take_events();
      if (failed_before != !failure_.empty()) break;
      if (deadline != forever && Clock::steady().now() >= deadline) break;
    }
    (void)event_.take();  // see UringEngine::wait_for_some
  }

  void wait(TimePoint deadline) noexcept {
    // Events that io_getevents has refused to return do not signal again.
    event_.wait(refused_ ? std::min(deadline, Clock::steady().now() + Refusals::pause) : deadline);
  }

  void take_events() noexcept {
    std::array<io_event, 64> events;
    for (int count = static_cast<int>(events.size()); open_ && count == static_cast<int>(events.size());) {
      count = repeat_interrupted_code([&] {
        timespec none{};
        return ::io_getevents(context_, 0, static_cast<long>(events.size()), events.data(), &none);
      });
      check_events(count);
      for (int i = 0; i < count; ++i) {
        const io_event& event = events[static_cast<std::size_t>(i)];
        auto& slot = *static_cast<Slot*>(event.data);
        unreaped_.push_back({slot.tag, static_cast<std::int64_t>(event.res)});
        free_slots_.push_back(static_cast<std::uint32_t>(&slot - slots_.data()));
      }
    }
  }

  void check_events(int result) noexcept {
    refused_ = result < 0;
    if (!refused_) {
      refusals_.reset();
    } else if (refusals_.exceeded() && failure_.empty()) {
      broken_ = result;
      failure_ = "io_getevents " + refusals_.describe() + ": " + std::strerror(-result);
    }
  }

  const AioOptions options_;
  io_context_t context_ = nullptr;
  WakeEvent event_;  // signalled by the kernel too, for each completion
  Refusals refusals_;
  bool refused_ = false;  // the last call of io_getevents failed
  int broken_ = 0;        // a negative errno once the engine has failed
  std::string failure_;   // the same for messages
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t in_flight_ = 0;  // accepted, not reaped
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::deque<IoCompletion> unreaped_{&nodes_};
  bool open_ = false, closing_ = false;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> create_aio_engine(const AioOptions& options) {
  if (options.depth == 0 || options.depth > 4096) {
    return Error::invalid_argument("create_aio_engine")
        .object("depth")
        .wanted("1 to 4096")
        .got(options.depth);
  }
  auto engine = std::make_unique<AioEngine>(options);
  PENSTOCK_TRY(engine->open());
  return engine;
}

}  // namespace penstock::tiers

#endif
