#include "tiers/io/uring_engine.hpp"

#if !PENSTOCK_HAS_LIBURING

namespace penstock::tiers {

Result<std::unique_ptr<IoEngine>> create_uring_engine(const UringOptions&) {
  return Error::unsupported("create_uring_engine").reason("this build has no liburing");
}

}  // namespace penstock::tiers

#else

#include "base/notes.hpp"

#include <penstock/base/check.hpp>
#include "base/owned_fd.hpp"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <iterator>
#include <memory_resource>
#include <utility>
#include <vector>

namespace penstock::tiers {

namespace {

// liburing reserves the tag ~0 for its own timeouts.
constexpr std::uint64_t wake_tag = ~0ull - 2;
constexpr std::uint64_t cancel_tag = ~0ull - 1;
// Far below the limit of the kernel's 32-bit length.
constexpr ByteCount request_max = 1_GiB;
// The kernel refuses a longer registered buffer.
constexpr ByteCount slab_max = 1_GiB;
// A request fails after this many consecutive EAGAIN or EBUSY.
constexpr std::uint32_t refusals_max = 1000;

/// Set-up flags, best first. The ring starts disabled: the thread that enables a single-issuer ring owns it, and that
/// must be the driver, not the thread that creates the engine.
constexpr std::array<unsigned, 3> setup_flags = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                                     IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED,
                                                 IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};

int init_ring(io_uring& ring, unsigned entries, unsigned flags) noexcept {
  io_uring_params parameters{};
  parameters.flags = flags | IORING_SETUP_CLAMP;
  return ::io_uring_queue_init_params(entries, &ring, &parameters);
}

/// Makes the system call itself: Debian 12's liburing declares io_uring_enable_rings and does not export it.
int enable_ring(const io_uring& ring) noexcept {
  const long result =
      ::syscall(__NR_io_uring_register, ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  return result == 0 ? 0 : -errno;
}

__kernel_timespec time_left(TimePoint deadline) noexcept {
  const auto left = std::max(deadline - Clock::steady().now(), TimePoint::zero());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  return {.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
}

/// Reads from an eventfd through a temporary ring. Returns 0 or a negative errno. Successful set-up is not sufficient:
/// a seccomp filter may still refuse to enable the ring or to submit, and an old kernel may not support the read.
int probe_ring(unsigned flags) noexcept {
  const OwnedFd event(::eventfd(1, EFD_CLOEXEC));
  if (!event.is_open()) return -errno;
  io_uring ring{};
  int result = init_ring(ring, 2, flags);
  if (result != 0) return result;

  if ((flags & IORING_SETUP_R_DISABLED) != 0) result = enable_ring(ring);
  std::uint64_t value = 0;
  if (result == 0) {
    ::io_uring_prep_read(::io_uring_get_sqe(&ring), event.get(), &value, sizeof value, 0);
    result = ::io_uring_submit(&ring);
  }
  if (result == 1) {
    io_uring_cqe* cqe = nullptr;
    do result = ::io_uring_wait_cqe(&ring, &cqe);
    while (result == -EINTR);
    if (result == 0) result = cqe->res == sizeof value ? 0 : std::min(cqe->res, -1);
  }
  ::io_uring_queue_exit(&ring);
  return result;
}

class UringEngine final : public IoEngine {
 public:
  explicit UringEngine(const UringOptions& options) : options_(options) {}
  ~UringEngine() override { (void)UringEngine::close(forever); }

  Result<void> open() {
    int result = 0;
    for (const unsigned flags : setup_flags) {
      const int refused = std::exchange(result, probe_ring(flags));
      if (result != 0) continue;
      disabled_ = (flags & IORING_SETUP_R_DISABLED) != 0;
      if (!disabled_) note(std::string("no single-issuer ring: ") + std::strerror(-refused));
      // Besides the requests: the read that wake() completes, and one cancellation.
      result = init_ring(ring_, options_.depth + 2, flags);
      break;
    }
    if (result != 0) {
      return Error::unsupported("UringEngine::open")
          .reason(std::string("io_uring is refused here: ") + std::strerror(-result))
          .advice("allow io_uring in the container's seccomp profile and kernel.io_uring_disabled");
    }
    open_ = true;
    wake_fd_ = OwnedFd(::eventfd(0, EFD_CLOEXEC));
    if (!wake_fd_.is_open()) return Error::from_errno("UringEngine::open", errno).object("eventfd");
    return ok();
  }

  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    if (closing_) return 0;
    enable();
    std::size_t accepted = 0;
    for (const IoRequest& request : requests) {
      if (in_flight_ == options_.depth) break;
      if (broken_ != 0) {
        unreaped_.push_back({request.tag, broken_});
      } else if (io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_)) {
        prepare(*sqe, request);
      } else {
        break;
      }
      ++in_flight_;
      ++accepted;
      // One request a system call: the kernel merges adjacent requests of one call, and the drive then gets a few long
      // requests instead of a deep queue.
      send();
    }
    return accepted;
  }

  std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override {
    if (open_) {
      enable();
      send();  // requests that an earlier call could not send
      collect();
      if (unreaped_.empty() && !completions.empty()) {
        // A signal ends the wait too: wait again.
        while (unreaped_.empty() && !woken_ && deadline != TimePoint::min()) {
          wait(deadline);
          collect();
          if (deadline != forever && Clock::steady().now() >= deadline) break;
        }
        woken_ = false;
      }
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
    const std::uint64_t one = 1;
    // Fails only when the counter is full; then a wake is pending already.
    (void)!::write(wake_fd_.get(), &one, sizeof one);
  }

  void attach(FileHandle file, HostSpan buffers) noexcept override {
    if (!open_) return;
    // Does not enable the ring, because the thread that does so owns it, and that must be the driver. A disabled ring
    // accepts registrations from any thread.
    if (file != FileHandle::none && options_.register_files) register_file(file);
    if (!buffers.empty() && options_.register_buffers) register_slabs(buffers);
  }

  bool close(TimePoint deadline) noexcept override {
    if (!open_) return with_kernel() == 0;
    closing_ = true;
    enable();
    collect();
    if (io_uring_sqe* sqe = with_kernel() > 0 ? ::io_uring_get_sqe(&ring_) : nullptr) {
      ::io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
      sqe->user_data = cancel_tag;
    }
    // io_uring_queue_exit does not wait for requests in flight. Without this wait, the kernel could still write into
    // their buffers, and into wake_value_, the buffer of the read that wake() completes.
    if (wake_armed_) wake();
    while (with_kernel() > 0 || wake_armed_) {
      wait(deadline);
      collect();
      if (with_kernel() > 0 && !wake_armed_ && deadline != forever && Clock::steady().now() >= deadline) {
        open_ = false;  // leaks the ring: the kernel still uses it
        return false;
      }
    }
    // io_uring_queue_exit does not wait for registrations to end either: memory could stay locked, and the space of an
    // unlinked file allocated, after this call.
    if (!slabs_.empty()) ::io_uring_unregister_buffers(&ring_);
    if (!files_.empty()) ::io_uring_unregister_files(&ring_);
    ::io_uring_queue_exit(&ring_);
    open_ = false;
    return true;
  }

  IoLimits limits() const noexcept override { return {.request_max = request_max, .depth = options_.depth}; }
  std::uint32_t in_flight() const noexcept override { return in_flight_; }
  const char* name() const noexcept override { return "io_uring"; }
  std::string notes() const override { return notes_; }

 private:
  void note(const std::string& line) { append_note(notes_, line); }

  /// Requests that have not completed yet.
  [[nodiscard]] std::size_t with_kernel() const noexcept { return in_flight_ - unreaped_.size(); }

  void enable() noexcept {
    if (enabled_) return;
    enabled_ = true;
    if (disabled_) broken_ = enable_ring(ring_);
  }

  /// Submits the prepared requests. Repeats the call, because the kernel stops at each invalid request.
  void send() noexcept {
    while (broken_ == 0 && ::io_uring_sq_ready(&ring_) > 0) {
      const int result = ::io_uring_submit(&ring_);
      check_submission(result);
      if (result <= 0 && result != -EINTR) return;
    }
  }

  /// Handles the result of a call of io_uring_enter.
  void check_submission(int result) noexcept {
    if (result >= 0) {
      refusals_ = 0;
      return;
    }
    if (result == -EINTR || result == -ETIME) return;
    PENSTOCK_CHECK(result != -EEXIST);  // the ring belongs to another thread
    if (result == -EAGAIN || result == -EBUSY) {
      // The kernel has no memory for a request: it stays prepared, and the next call submits it.
      if (++refusals_ < refusals_max) return;
      refusals_ = 0;
    } else {
      broken_ = result;
    }
    complete_prepared(result);
    // If the ring is broken, requests that the kernel holds never complete, and their buffers can never be freed.
    PENSTOCK_CHECK(broken_ == 0 || with_kernel() == 0);
  }

  /// Removes the prepared requests that the kernel has not accepted from the ring, and completes them with `result`.
  void complete_prepared(int result) noexcept {
    io_uring_sq& queue = ring_.sq;
    const unsigned head = *queue.khead;
    for (unsigned at = head; at != queue.sqe_tail; ++at) {
      const std::uint64_t tag = queue.sqes[at & queue.ring_mask].user_data;
      if (tag == wake_tag) {
        wake_armed_ = false;
      } else if (tag != cancel_tag) {
        unreaped_.push_back({tag, result});
      }
    }
    queue.sqe_head = queue.sqe_tail = head;
    io_uring_smp_store_release(queue.ktail, head);
  }

  void prepare(io_uring_sqe& sqe, const IoRequest& request) noexcept {
    const auto [index, fixed_file] = file_index(request.file);
    const auto length = static_cast<unsigned>(std::min(request.buffer.size(), request_max).value());
    const int slab = slab_index(request.buffer);
    switch (request.operation) {
      case IoOperation::read:
        if (slab >= 0) {
          ::io_uring_prep_read_fixed(&sqe, index, request.buffer.data(), length, request.offset.value(),
                                     slab);
        } else {
          ::io_uring_prep_read(&sqe, index, request.buffer.data(), length, request.offset.value());
        }
        break;
      case IoOperation::write:
        if (slab >= 0) {
          ::io_uring_prep_write_fixed(&sqe, index, request.buffer.data(), length, request.offset.value(),
                                      slab);
        } else {
          ::io_uring_prep_write(&sqe, index, request.buffer.data(), length, request.offset.value());
        }
        break;
      case IoOperation::flush: ::io_uring_prep_fsync(&sqe, index, IORING_FSYNC_DATASYNC); break;
    }
    if (fixed_file) sqe.flags |= IOSQE_FIXED_FILE;
    sqe.user_data = request.tag;
  }

  void arm_wake() noexcept {
    if (wake_armed_ || closing_) return;
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return;
    ::io_uring_prep_read(sqe, wake_fd_.get(), &wake_value_, sizeof wake_value_, 0);
    sqe->user_data = wake_tag;
    wake_armed_ = true;
  }

  void wait(TimePoint deadline) noexcept {
    if (broken_ != 0) return wait_for_wake(deadline);
    arm_wake();
    if (deadline == forever) return check_submission(::io_uring_submit_and_wait(&ring_, 1));
    io_uring_cqe* cqe = nullptr;
    __kernel_timespec timeout = time_left(deadline);
    check_submission(::io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr));
  }

  /// Waits for wake() alone, when the ring is broken or not enabled.
  void wait_for_wake(TimePoint deadline) noexcept {
    const __kernel_timespec left = time_left(deadline);
    const timespec timeout{.tv_sec = left.tv_sec, .tv_nsec = left.tv_nsec};
    pollfd event{.fd = wake_fd_.get(), .events = POLLIN, .revents = 0};
    if (::ppoll(&event, 1, deadline == forever ? nullptr : &timeout, nullptr) == 1) {
      (void)!::read(wake_fd_.get(), &wake_value_, sizeof wake_value_);
      woken_ = true;
    }
  }

  /// Takes the posted completions. With DEFER_TASKRUN the kernel posts them during a system call, which liburing makes
  /// if the ring's flags show pending ones.
  void collect() noexcept {
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
      if (cqe->user_data == wake_tag) {
        wake_armed_ = false;
        woken_ = true;
      } else if (cqe->user_data != cancel_tag) {
        unreaped_.push_back({.tag = cqe->user_data, .result = cqe->res});
      }
      ::io_uring_cqe_seen(&ring_, cqe);
    }
  }

  void register_file(FileHandle file) noexcept {
    int result = 0;
    if (files_.empty()) {
      std::array<int, files_max> table;
      table.fill(-1);
      result = ::io_uring_register_files(&ring_, table.data(), files_max);
    }
    // A descriptor number that was registered before may name another file now.
    const auto slot = std::find(files_.begin(), files_.end(), file) - files_.begin();
    if (result == 0 && slot < files_max) {
      const int descriptor = static_cast<int>(file);
      result = ::io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &descriptor, 1);
      if (result == 1) {
        if (slot == std::ssize(files_)) files_.push_back(file);
        return;
      }
    }
    note(std::string("files not registered: ") + (result == 0 ? "too many" : std::strerror(-result)));
  }

  void register_slabs(HostSpan buffers) noexcept {
    if (!slabs_.empty()) return;  // one arena for each path
    std::vector<iovec> vectors;
    for (ByteCount at; at < buffers.size(); at += slab_max) {
      const HostSpan slab = buffers.subspan(at, std::min(slab_max, buffers.size() - at));
      slabs_.push_back(slab);
      vectors.push_back({slab.data(), slab.size().value()});
    }
    const int result =
        ::io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()));
    if (result != 0) {
      slabs_.clear();
      note(std::string("buffers not registered: ") + std::strerror(-result) +
           (result == -ENOMEM ? " (RLIMIT_MEMLOCK)" : ""));
    }
  }

  struct FileIndex {
    int index;
    bool fixed;
  };
  FileIndex file_index(FileHandle file) const noexcept {
    const auto found = std::find(files_.begin(), files_.end(), file);
    if (found == files_.end()) return {static_cast<int>(file), false};
    return {static_cast<int>(found - files_.begin()), true};
  }

  int slab_index(HostSpan buffer) const noexcept {
    for (std::size_t i = 0; i < slabs_.size(); ++i) {
      const HostSpan& slab = slabs_[i];
      if (buffer.data() >= slab.data() &&
          buffer.data() + buffer.size().value() <= slab.data() + slab.size().value()) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  static constexpr unsigned files_max = 8;  // a path has one file

  UringOptions options_;
  io_uring ring_{};
  OwnedFd wake_fd_;
  std::uint64_t wake_value_ = 0;
  std::uint32_t in_flight_ = 0;  // accepted, not reaped
  std::uint32_t refusals_ = 0;   // consecutive
  int broken_ = 0;               // a negative errno once the kernel accepts no more requests
  bool open_ = false, disabled_ = false, enabled_ = false, closing_ = false;
  bool wake_armed_ = false, woken_ = false;
  std::vector<FileHandle> files_;
  std::vector<HostSpan> slabs_;
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::deque<IoCompletion> unreaped_{&nodes_};
  std::string notes_;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> create_uring_engine(const UringOptions& options) {
  if (options.depth == 0 || options.depth > 4096) {
    return Error::invalid_argument("create_uring_engine")
        .object("depth")
        .wanted("1 to 4096")
        .got(options.depth);
  }
  auto engine = std::make_unique<UringEngine>(options);
  PENSTOCK_TRY(engine->open());
  return engine;
}

}  // namespace penstock::tiers

#endif
