#include <penstock/tiers/uring_engine.hpp>

#if !PENSTOCK_HAS_LIBURING

namespace penstock::tiers {

Result<std::unique_ptr<IoEngine>> create_uring_engine(const UringOptions&) {
  return Error::unsupported("create_uring_engine").reason("this build has no liburing");
}

}  // namespace penstock::tiers

#else

#include <penstock/base/check.hpp>
#include <penstock/base/owned_fd.hpp>

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace penstock::tiers {

namespace {

// liburing keeps ~0 for its own timeouts.
constexpr std::uint64_t wake_tag = ~0ull - 2;
constexpr std::uint64_t cancel_tag = ~0ull - 1;
// The kernel refuses a longer registered buffer.
constexpr ByteCount slab_max = 1_GiB;

class UringEngine final : public IoEngine {
 public:
  explicit UringEngine(const UringOptions& options) : options_(options) {}
  ~UringEngine() override { UringEngine::close(); }

  Result<void> open() {
    wake_fd_ = OwnedFd(::eventfd(0, EFD_CLOEXEC));
    if (!wake_fd_.is_open()) return Error::from_errno("UringEngine::open", errno).object("eventfd");

    // Beside the requests: the read that wake() completes, and one cancel.
    const unsigned entries = options_.depth + 2;
    int result = -EINVAL;
    for (const unsigned flags :
         {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_R_DISABLED,
          static_cast<unsigned>(IORING_SETUP_COOP_TASKRUN), 0u}) {
      io_uring_params parameters{};
      parameters.flags = flags | IORING_SETUP_CLAMP;
      result = ::io_uring_queue_init_params(entries, &ring_, &parameters);
      if (result == 0) {
        disabled_ = (flags & IORING_SETUP_R_DISABLED) != 0;
        if (flags == 0 || !disabled_) note("no single-issuer ring on this kernel");
        break;
      }
      if (result != -EINVAL) break;
    }
    if (result != 0) {
      return Error::from_errno("UringEngine::open", -result).reason("io_uring refused").object("queue_init");
    }
    open_ = true;
    return ok();
  }

  /// Sends a NOP through a ring of its own: a filter may refuse submission alone. The engine's ring cannot
  /// be used for it, because the first thread to enter becomes its owner.
  static Result<void> probe() {
    io_uring ring{};
    int result = ::io_uring_queue_init(2, &ring, 0);
    if (result == 0) {
      ::io_uring_prep_nop(::io_uring_get_sqe(&ring));
      result = ::io_uring_submit_and_wait(&ring, 1);
      result = result == 1 ? 0 : result;
      ::io_uring_queue_exit(&ring);
    }
    if (result == 0) return ok();
    return Error::from_errno("UringEngine::probe", -result)
        .reason("io_uring is refused here")
        .advice("allow io_uring in the container's seccomp profile and kernel.io_uring_disabled");
  }

  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    if (closing_) return 0;
    enable();
    std::size_t accepted = 0;
    for (const IoRequest& request : requests) {
      if (in_flight_ == options_.depth) break;
      io_uring_sqe* sqe = next_sqe();
      if (sqe == nullptr) break;
      prepare(*sqe, request);
      ++in_flight_;
      ++accepted;
    }
    if (accepted > 0) enter_without_waiting();
    return accepted;
  }

  std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override {
    if (open_) enable();
    std::size_t count = drain(completions);
    if (!open_ || count > 0 || completions.empty()) return count;
    if (woken_) {
      woken_ = false;
      return 0;
    }
    if (deadline != TimePoint::min()) wait(deadline);
    count = drain(completions);
    woken_ = false;
    return count;
  }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    // Fails only when the counter is full, and then a wake is pending anyway.
    (void)!::write(wake_fd_.get(), &one, sizeof one);
  }

  void attach(FileHandle file, HostSpan buffers) noexcept override {
    if (!open_) return;
    // Not enabled here: a disabled ring registers for any thread, and the driver is to own it.
    if (file != FileHandle::none && options_.register_files) register_file(file);
    if (!buffers.empty() && options_.register_buffers) register_slabs(buffers);
  }

  void close() noexcept override {
    if (!open_) return;
    closing_ = true;
    enable();
    if (io_uring_sqe* sqe = in_flight_ > 0 ? next_sqe() : nullptr) {
      ::io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
      sqe->user_data = cancel_tag;
    }
    // io_uring_queue_exit does not wait: the kernel would go on writing into the buffers after it.
    // The same holds for the read that wake() completes, into a member of this object.
    std::array<IoCompletion, 32> batch;
    if (wake_armed_) wake();
    while (in_flight_ > 0 || wake_armed_) {
      const std::size_t count = drain(batch);
      unreaped_.insert(unreaped_.end(), batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(count));
      if (count == 0 && (in_flight_ > 0 || wake_armed_)) wait(forever);
    }
    if (!slabs_.empty()) ::io_uring_unregister_buffers(&ring_);
    ::io_uring_queue_exit(&ring_);
    open_ = false;
  }

  IoLimits limits() const noexcept override { return {.request_max = 1_GiB, .depth = options_.depth}; }
  std::uint32_t in_flight() const noexcept override { return in_flight_; }
  const char* name() const noexcept override { return "io_uring"; }
  std::string notes() const override { return notes_; }

 private:
  void note(const std::string& line) { notes_ += (notes_.empty() ? "" : "; ") + line; }

  /// The first thread that uses a single-issuer ring owns it: the ring is made disabled by the thread that
  /// creates the engine and enabled here, by the driver.
  void enable() noexcept {
    if (enabled_) return;
    enabled_ = true;
    // By system call: Debian 12's liburing declares io_uring_enable_rings and does not export it.
    if (disabled_) {
      PENSTOCK_CHECK(
          ::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) == 0);
    }
  }

  io_uring_sqe* next_sqe() noexcept {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {
      enter_without_waiting();
      sqe = ::io_uring_get_sqe(&ring_);
    }
    return sqe;
  }

  void enter_without_waiting() noexcept {
    // EAGAIN and EBUSY leave the entries in the ring's own queue: the next enter sends them.
    int result = 0;
    do result = ::io_uring_submit(&ring_);
    while (result == -EINTR);
  }

  void prepare(io_uring_sqe& sqe, const IoRequest& request) noexcept {
    const auto [index, fixed_file] = file_index(request.file);
    const auto length = static_cast<unsigned>(request.buffer.size().value());
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
    io_uring_sqe* sqe = next_sqe();
    if (sqe == nullptr) return;
    ::io_uring_prep_read(sqe, wake_fd_.get(), &wake_value_, sizeof wake_value_, 0);
    sqe->user_data = wake_tag;
    wake_armed_ = true;
  }

  void wait(TimePoint deadline) noexcept {
    arm_wake();
    io_uring_cqe* cqe = nullptr;
    if (deadline == forever) {
      // EINTR loses nothing; the caller sees no completion and comes again.
      ::io_uring_submit_and_wait(&ring_, 1);
      return;
    }
    const auto left = std::max(deadline - Clock::steady().now(), TimePoint::zero());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    __kernel_timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
    ::io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &timeout, nullptr);
  }

  std::size_t drain(std::span<IoCompletion> completions) noexcept {
    std::size_t count = 0;
    while (count < completions.size() && !unreaped_.empty()) {
      completions[count++] = unreaped_.back();
      unreaped_.pop_back();
    }
    if (!open_) return count;
    // With DEFER_TASKRUN completions appear only when the kernel is entered.
    if (in_flight_ > 0) (void)::io_uring_get_events(&ring_);
    io_uring_cqe* cqe = nullptr;
    while (count < completions.size() && ::io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
      if (cqe->user_data == wake_tag) {
        wake_armed_ = false;
        woken_ = true;
      } else if (cqe->user_data != cancel_tag) {
        completions[count++] = {.tag = cqe->user_data, .result = cqe->res};
        --in_flight_;
      }
      ::io_uring_cqe_seen(&ring_, cqe);
    }
    return count;
  }

  void register_file(FileHandle file) noexcept {
    const int descriptor = static_cast<int>(file);
    int result = 0;
    if (files_.empty()) {
      std::array<int, files_max> table;
      table.fill(-1);
      result = ::io_uring_register_files(&ring_, table.data(), files_max);
    }
    if (result == 0 && files_.size() < files_max) {
      int copy = descriptor;
      result = ::io_uring_register_files_update(&ring_, static_cast<unsigned>(files_.size()), &copy, 1);
      if (result == 1) {
        files_.push_back(file);
        return;
      }
    }
    note(std::string("files not registered: ") + std::strerror(-result));
  }

  void register_slabs(HostSpan buffers) noexcept {
    if (!slabs_.empty()) return;  // one arena a path
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

  static constexpr unsigned files_max = 64;

  UringOptions options_;
  io_uring ring_{};
  OwnedFd wake_fd_;
  std::uint64_t wake_value_ = 0;
  std::uint32_t in_flight_ = 0;
  bool open_ = false, disabled_ = false, enabled_ = false, closing_ = false;
  bool wake_armed_ = false, woken_ = false;
  std::vector<FileHandle> files_;
  std::vector<HostSpan> slabs_;
  std::vector<IoCompletion> unreaped_;
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
  PENSTOCK_TRY(UringEngine::probe());
  auto engine = std::make_unique<UringEngine>(options);
  PENSTOCK_TRY(engine->open());
  return engine;
}

}  // namespace penstock::tiers

#endif
