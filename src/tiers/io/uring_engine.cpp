#include "tiers/io/uring_engine.hpp"

#if !PENSTOCK_HAS_LIBURING

namespace penstock::tiers {

Result<std::unique_ptr<IoEngine>> create_uring_engine(const UringOptions&) {
  return Error::unsupported("create_uring_engine").reason("this build has no liburing");
}

}  // namespace penstock::tiers

#else

#include "base/notes.hpp"
#include "tiers/io/engine_errors.hpp"
#include "tiers/io/refusals.hpp"
#include "tiers/io/uring_ring.hpp"
#include "tiers/io/wake_event.hpp"

#include <liburing.h>
#include <poll.h>
#include <sys/uio.h>
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
// How long close() waits for completions of a ring that has failed: most are posted without a system call.
constexpr TimePoint failed_close_max = std::chrono::milliseconds(100);

class UringEngine final : public IoEngine {
 public:
  explicit UringEngine(const UringOptions& options)
      : options_(options), refusals_(options.refusal_time_max) {}
  ~UringEngine() override { (void)UringEngine::close(forever); }

  Result<void> open() {
    // Besides the requests: the poll that wake() completes, and one cancellation.
    const int result = open_ring(kernel_, options_.depth + 2);
    if (result != 0) {
      return setup_error("UringEngine::open", "io_uring", -result,
                         "allow io_uring in the container's seccomp profile and kernel.io_uring_disabled");
    }
    note(kernel_.note);
    open_ = true;
    return event_.open("UringEngine::open");
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
      if (unreaped_.empty() && !completions.empty()) wait_for_some(deadline);
    }
    const std::size_t count = std::min(completions.size(), unreaped_.size());
    for (std::size_t i = 0; i < count; ++i) {
      completions[i] = unreaped_.front();
      unreaped_.pop_front();
    }
    in_flight_ -= static_cast<std::uint32_t>(count);
    return count;
  }

  void wake() noexcept override { event_.signal(); }

  void attach(FileHandle file, HostSpan buffers) noexcept override {
    if (!open_) return;
    // Does not enable the ring, because the thread that does so owns it, and that must be the driver. A disabled ring
    // accepts registrations from any thread.
    if (file != FileHandle::none && options_.register_files) register_file(file);
    if (!buffers.empty() && options_.register_buffers) register_slabs(buffers);
  }

  bool detach() noexcept override {
    if (!open_ || slabs_.empty()) return true;
    end_wake_poll();
    int result = -EINTR;
    for (int attempt = 0; result == -EINTR && attempt < 10; ++attempt)
      result = ::io_uring_unregister_buffers(&ring_);
    if (result != 0) {
      buffers_note_ = std::string("buffers stay registered: ") + std::strerror(-result);
      return false;
    }
    slabs_.clear();
    return true;
  }

  bool close(TimePoint deadline) noexcept override {
    if (!open_) return with_kernel() == 0;
    closing_ = true;
    enable();
    collect();
    if (io_uring_sqe* sqe = with_kernel() > 0 && broken_ == 0 ? ::io_uring_get_sqe(&ring_) : nullptr) {
      ::io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
      sqe->user_data = cancel_tag;
    }
    // io_uring_queue_exit does not wait for requests in flight. Without this wait, the kernel could still write into
    // their buffers.
    const bool completed = wait_for_all(deadline);
    open_ = false;
    if (!completed) return false;  // leaks the ring: the kernel still uses it
    end_wake_poll();
    // io_uring_queue_exit does not wait for registrations to end either: memory could stay locked, and the space of an
    // unlinked file allocated, after this call.
    if (!slabs_.empty()) ::io_uring_unregister_buffers(&ring_);
    if (!files_.empty()) ::io_uring_unregister_files(&ring_);
    ::io_uring_queue_exit(&ring_);
    return true;
  }

  IoLimits limits() const noexcept override { return {.request_max = request_max, .depth = options_.depth}; }
  std::uint32_t in_flight() const noexcept override { return in_flight_; }
  const char* name() const noexcept override { return "io_uring"; }
  std::string notes() const override {
    std::string notes = notes_;
    append_note(notes, buffers_note_);
    return notes;
  }
  std::string failure() const override { return failure_; }

 private:
  void note(const std::string& line) { append_note(notes_, line); }

  /// Requests that have not completed yet.
  [[nodiscard]] std::size_t with_kernel() const noexcept { return in_flight_ - unreaped_.size(); }

  void enable() noexcept {
    if (enabled_) return;
    enabled_ = true;
    const int result = kernel_.disabled ? enable_ring(ring_) : 0;
    if (result != 0) stop_using_ring("io_uring_register", result);
  }

  /// Submits the prepared requests. Repeats the call, because the kernel stops at each invalid request.
  void send() noexcept {
    while (broken_ == 0 && ::io_uring_sq_ready(&ring_) > 0) {
      const int result = ::io_uring_submit(&ring_);
      check_entry(result);
      if (result <= 0) return;
    }
  }

  /// Handles the result of a call of io_uring_enter. Requests that the kernel has not accepted stay prepared, and the
  /// next call submits them.
  void check_entry(int result) noexcept {
    if (result >= 0 || result == -ETIME) return refusals_.reset();
    // A signal ends a wait. It does not keep requests from being submitted; a filter that answers EINTR does.
    if (result == -EINTR && ::io_uring_sq_ready(&ring_) == 0 && !closing_) return;
    const bool transient = result == -EAGAIN || result == -EBUSY || result == -EINTR || result == -ENOMEM;
    if (refusals_.exceeded() || !transient) stop_using_ring("io_uring_enter", result);
  }

  /// Nothing can be submitted any more. What the kernel has accepted may never be reported, and its buffers stay in
  /// use.
  void stop_using_ring(const char* call, int result) noexcept {
    broken_ = result;
    failure_ = std::string(call) + " " + refusals_.describe() + ": " + std::strerror(-result);
    complete_prepared(result);
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

  /// A poll, not a read: it lends no memory to the kernel.
  void arm_wake() noexcept {
    if (wake_armed_ || closing_ || !event_.usable()) return;
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return;
    ::io_uring_prep_poll_add(sqe, event_.descriptor(), POLLIN);
    sqe->user_data = wake_tag;
    wake_armed_ = true;
  }

  /// Waits for a completion, a wake(), the deadline or the failure of the ring. A signal ends wait() too.
  void wait_for_some(TimePoint deadline) noexcept {
    const int broken_before = broken_;
    while (unreaped_.empty() && !event_.take() && deadline != TimePoint::min()) {
      wait(deadline);
      collect();
      if (broken_ != broken_before || (deadline != forever && Clock::steady().now() >= deadline)) break;
    }
    (void)event_.take();  // the caller looks at its commands anyway when this call returns
  }

  /// Waits until no request is with the kernel. False at the deadline, which is near when the ring has failed.
  bool wait_for_all(TimePoint deadline) noexcept {
    TimePoint until = deadline;
    while (with_kernel() > 0) {
      wait(until);
      collect();
      if (broken_ != 0 && until == deadline) {
        until = std::min(deadline, Clock::steady().now() + failed_close_max);
      }
      if (with_kernel() > 0 && until != forever && Clock::steady().now() >= until) return false;
    }
    return true;
  }

  /// Before Linux 5.13, buffers are registered and unregistered only when no request is left.
  void end_wake_poll() noexcept {
    if (!wake_armed_) return;
    event_.signal();
    const TimePoint until = Clock::steady().now() + failed_close_max;
    while (wake_armed_ && broken_ == 0 && Clock::steady().now() < until) {
      wait(until);
      collect();
    }
  }

  /// Submits and waits for a completion, at most until `deadline` or WakeEvent::wait_max.
  void wait(TimePoint deadline) noexcept {
    const TimePoint now = Clock::steady().now();
    // Completions of a failed ring are posted while this thread makes any system call.
    if (broken_ != 0)
      return event_.wait(with_kernel() == 0 ? deadline : std::min(deadline, now + Refusals::pause));
    arm_wake();
    io_uring_cqe* cqe = nullptr;
    const timespec left = time_left(deadline);
    __kernel_timespec timeout{.tv_sec = left.tv_sec, .tv_nsec = left.tv_nsec};
    const int result = ::io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr);
    check_entry(result);
    // The kernel did not wait, and may not have seen a wake().
    if (result < 0 && result != -ETIME) {
      event_.wait(result == -EINTR ? now : std::min(deadline, now + Refusals::pause));
    }
  }

  /// Takes the posted completions. With DEFER_TASKRUN the kernel posts them during a system call, which liburing makes
  /// if the ring's flags show pending ones.
  void collect() noexcept {
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
      if (cqe->user_data == wake_tag) {
        wake_armed_ = false;
        event_.drain();
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
    end_wake_poll();
    std::vector<iovec> vectors;
    for (ByteCount at; at < buffers.size(); at += slab_max) {
      const HostSpan slab = buffers.subspan(at, std::min(slab_max, buffers.size() - at));
      slabs_.push_back(slab);
      vectors.push_back({slab.data(), slab.size().value()});
    }
    const int result =
        ::io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()));
    buffers_note_.clear();
    if (result == 0) return;
    slabs_.clear();
    buffers_note_ = std::string("buffers not registered: ") + std::strerror(-result) +
                    (result == -ENOMEM ? " (RLIMIT_MEMLOCK)" : "");
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
  UringRing kernel_;
  io_uring& ring_ = kernel_.ring;
  WakeEvent event_;
  std::uint32_t in_flight_ = 0;  // accepted, not reaped
  Refusals refusals_;
  int broken_ = 0;       // a negative errno once the kernel accepts no more requests
  std::string failure_;  // the same for messages
  bool open_ = false, enabled_ = false, closing_ = false, wake_armed_ = false;
  std::vector<FileHandle> files_;
  std::vector<HostSpan> slabs_;
  std::pmr::unsynchronized_pool_resource nodes_;
  std::pmr::deque<IoCompletion> unreaped_{&nodes_};
  std::string notes_, buffers_note_;  // the latter of the last registration of buffers
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
