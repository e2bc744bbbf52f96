#include "tiers/io/aio_engine.hpp"

#if !PENSTOCK_HAS_LIBAIO

namespace penstock::tiers {

Result<std::unique_ptr<IoEngine>> create_aio_engine(const AioOptions&) {
  return Error::unsupported("create_aio_engine").reason("this build has no libaio");
}

}  // namespace penstock::tiers

#else

#include "base/owned_fd.hpp"

#include <libaio.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
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
  explicit AioEngine(const AioOptions& options) : options_(options), slots_(options.depth) {
    for (std::uint32_t slot = options.depth; slot > 0; --slot) free_slots_.push_back(slot - 1);
  }
  ~AioEngine() override { (void)AioEngine::close(forever); }

  Result<void> open() {
    const int result = ::io_setup(static_cast<int>(options_.depth), &context_);
    if (result != 0) {
      return Error::unsupported("AioEngine::open")
          .reason(std::string("Linux AIO is refused here: ") + std::strerror(-result))
          .advice(result == -EAGAIN ? "raise fs.aio-max-nr"
                                    : "allow io_setup in the container's seccomp profile");
    }
    open_ = true;
    event_ = OwnedFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event_.is_open()) return Error::from_errno("AioEngine::open", errno).object("eventfd");
    return ok();
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
    collect(TimePoint::min());
    // A wake() before this call counts too, and so does close().
    while (unreaped_.empty() && open_ && !woken_.exchange(false)) {
      if (deadline == TimePoint::min() || !collect(deadline)) break;
    }
    const std::size_t count = std::min(completions.size(), unreaped_.size());
    for (std::size_t i = 0; i < count; ++i) {
      completions[i] = unreaped_.front();
      unreaped_.pop_front();
    }
    in_flight_ -= static_cast<std::uint32_t>(count);
    return count;
  }

  void wake() noexcept override {
    woken_.store(true);
    const std::uint64_t one = 1;
    // Fails only when the counter is full; then a wake is pending already.
    (void)!::write(event_.get(), &one, sizeof one);
  }

  void attach(FileHandle, HostSpan) noexcept override {}

  bool close(TimePoint deadline) noexcept override {
    if (!open_) return in_flight_ == unreaped_.size();
    closing_ = true;
    // The kernel cannot cancel file requests: wait for those in flight.
    while (in_flight_ > unreaped_.size()) {
      const bool in_time = collect(deadline) && deadline != TimePoint::min();
      if (in_time || in_flight_ == unreaped_.size()) continue;
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

 private:
  struct Slot {
    iocb control;
    std::uint64_t tag = 0;
  };

  /// False when the kernel has no room now and a request in flight will free some.
  bool start(const IoRequest& request) noexcept {
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
    ::io_set_eventfd(control, event_.get());
    control->data = &slot;
    iocb* list = control;
    int result = 0;
    do result = ::io_submit(context_, 1, &list);
    while (result == -EINTR);
    if (result == 1) {
      free_slots_.pop_back();
      return true;
    }
    if (result == -EAGAIN && in_flight_ > unreaped_.size()) return false;
    // A refused request completes with the kernel's error; BlockFile handles it as any failed request.
    unreaped_.push_back({request.tag, result == 0 ? -EAGAIN : result});
    return true;
  }

  /// Takes completions; if there are none, waits for the event until `deadline`. False at the deadline.
  bool collect(TimePoint deadline) noexcept {
    if (take_events() || deadline == TimePoint::min()) return true;
    timespec left{};
    if (deadline != forever) {
      const auto until = std::max(deadline - Clock::steady().now(), TimePoint::zero());
      if (until == TimePoint::zero()) return false;
      left = {.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(until).count(),
              .tv_nsec = (until % std::chrono::seconds(1)).count()};
    }
    pollfd event{.fd = event_.get(), .events = POLLIN, .revents = 0};
    if (::ppoll(&event, 1, deadline == forever ? nullptr : &left, nullptr) > 0) {
      std::uint64_t signals = 0;
      (void)!::read(event_.get(), &signals, sizeof signals);
    }
    (void)take_events();
    return true;
  }

  bool take_events() noexcept {
    if (!open_) return false;
    std::array<io_event, 64> events;
    bool some = false;
    while (true) {
      timespec none{};
      const int count = ::io_getevents(context_, 0, static_cast<long>(events.size()), events.data(), &none);
      for (int i = 0; i < count; ++i) {
        auto& slot = *static_cast<Slot*>(events[static_cast<std::size_t>(i)].data);
        unreaped_.push_back({slot.tag, static_cast<std::int64_t>(events[static_cast<std::size_t>(i)].res)});
        free_slots_.push_back(static_cast<std::uint32_t>(&slot - slots_.data()));
      }
      some |= count > 0;
      if (count < static_cast<int>(events.size()) && count != -EINTR) return some;
    }
  }

  const AioOptions options_;
  io_context_t context_ = nullptr;
  OwnedFd event_;  // signalled by the kernel for each completion, and by wake()
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::uint32_t in_flight_ = 0;  // accepted, not reaped
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::deque<IoCompletion> unreaped_{&nodes_};
  std::atomic<bool> woken_{false};
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
