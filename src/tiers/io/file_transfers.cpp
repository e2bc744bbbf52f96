#include <penstock/tiers/io/file_transfers.hpp>

#include "base/start_thread.hpp"
#include "tiers/io/bounded_call.hpp"
#include "tiers/io/engine_errors.hpp"
#include "tiers/io/range_mover.hpp"
#include "tiers/io/running_time.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace penstock::tiers {

namespace {

constexpr std::uint32_t threads_max = 256, depth_max = 4096;
constexpr std::size_t noted_errors_max = 8;
constexpr Alignment page(4096);

/// What one thread moves of a transfer.
struct Part {
  IoOperation operation = IoOperation::read;
  std::filesystem::path file;
  FileOffset offset;
  HostSpan bytes;
  std::uint64_t transfer = 0;
};

const char* name_of(IoOperation operation) {
  return operation == IoOperation::read ? "FileTransfers::start_read" : "FileTransfers::start_write";
}

Error out_of_range(const char* option, const std::string& wanted, std::uint64_t got) {
  return Error::invalid_argument("FileTransfers::create").object(option).wanted(wanted).got(got);
}

Result<void> check(const FileTransfers::Options& options) {
  if (options.request_max.is_zero() || !is_aligned(options.request_max, page) || options.request_max > 1_GiB)
    return out_of_range("request_max", "a multiple of 4096, at most 1 GiB", options.request_max.value());
  if (options.depth == 0 || options.depth > depth_max)
    return out_of_range("depth", "1 to " + std::to_string(depth_max), options.depth);
  if (options.threads == 0 || options.threads > threads_max)
    return out_of_range("threads", "1 to " + std::to_string(threads_max), options.threads);
  if (options.deadline > TimePoint::zero() && options.files != nullptr) return ok();
  return Error::invalid_argument("FileTransfers::create")
      .object(options.files == nullptr ? "files" : "deadline")
      .wanted(options.files == nullptr ? "a file system" : "more than 0");
}

/// Errors: not_found, permission, invalid_argument, truncated.
Result<void> check_readable(FileSystem& files, const std::filesystem::path& name, FileOffset end) {
  PENSTOCK_TRY_ASSIGN(const File file, files.open_to_read(name, DirectIo::off));
  PENSTOCK_TRY_ASSIGN(const ByteCount size, file.size());
  if (FileOffset(0) + size >= end) return ok();
  return Error(ErrorCode::truncated, name_of(IoOperation::read))
      .reason("the file ends before the bytes that were asked for")
      .object(name.string())
      .wanted(end - FileOffset(0))
      .got(size)
      .advice("read less, or write the file again");
}

/// Errors: not_found, permission, invalid_argument, no_space.
Result<void> make_writable(FileSystem& files, const std::filesystem::path& name, FileOffset end) {
  auto file = files.open(name, DirectIo::off);
  bool is_new = false;
  if (!file && file.error().code() == ErrorCode::not_found) {
    file = files.create(name, 0_B, DirectIo::off);
    is_new = file.has_value();
    // Another process has made it meanwhile.
    if (!file && file.error().code() == ErrorCode::already_exists) file = files.open(name, DirectIo::off);
  }
  if (!file) return file.error();
  auto extended = file->extend(end - FileOffset(0));
  if (!extended && is_new) (void)files.remove(name);
  return extended;
}

}  // namespace

/// Shared by the caller and the threads.
struct FileTransfers::State {
  explicit State(Options given) : options(std::move(given)) {}

  void run(std::size_t number);
  void post(IoOperation operation, const std::filesystem::path& file, FileOffset offset, HostSpan bytes);
  /// With the lock held. Whether a thread has been in one call of its drive for longer than the deadline.
  [[nodiscard]] bool is_stuck();

  struct Thread {
    explicit Thread(const Options& options)
        : mover(options), running(Clock::steady(), running_time_step(options.deadline)) {}
    RangeMover mover;
    std::thread thread;
    // With the lock held.
    std::optional<Part> part;
    RunningTime running;         // of the caller that waits
    std::uint64_t progress = 0;  // when it was last another one
    TimePoint progressed{};
  };

  const Options options;
  std::deque<Thread> threads;
  mutable std::mutex mutex;  // of what follows, and of the notes of idle threads
  std::condition_variable changed;
  std::deque<Part> queue;
  std::size_t unfinished = 0, started = 0;
  std::vector<std::pair<std::uint64_t, Error>> errors;  // by transfer
  std::set<std::string> notes;
  std::optional<Error> stuck;
  bool ends = false;
};

void FileTransfers::State::run(std::size_t number) {
  Thread& own = threads[number];
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return ends || !queue.empty(); });
    if (queue.empty()) return;
    own.part = std::move(queue.front());
    queue.pop_front();
    const Part part = *own.part;
    lock.unlock();
    const auto moved = own.mover.move(part.operation, part.file, part.offset, part.bytes);
    lock.lock();
    own.part.reset();
    notes.insert(own.mover.notes().begin(), own.mover.notes().end());
    if (!moved) errors.emplace_back(part.transfer, moved.error());
    --unfinished;
    changed.notify_all();
  }
}

void FileTransfers::State::post(IoOperation operation, const std::filesystem::path& file, FileOffset offset,
                                HostSpan bytes) {
  const ByteCount share = std::max(
      options.request_max, round_up(ByteCount(ceil_divide(bytes.size().value(), options.threads)), page));
  const std::lock_guard lock(mutex);
  for (ByteCount at; at < bytes.size(); at += share) {
    queue.push_back(
        {operation, file, offset + at, bytes.subspan(at, std::min(share, bytes.size() - at)), started});
    ++unfinished;
  }
  ++started;
  changed.notify_all();
}

bool FileTransfers::State::is_stuck() {
  const TimePoint most = options.deadline < forever / 2 ? 2 * options.deadline : forever;
  for (Thread& thread : threads) {
    (void)thread.running.update();
    const std::uint64_t progress = thread.mover.progress();
    if (!thread.part || progress != thread.progress) {
      thread.progress = progress;
      thread.progressed = thread.running.elapsed();
      continue;
    }
    // The mover ends a request that has no answer by itself: this is a call that does not return.
    if (thread.running.elapsed() - thread.progressed < most) continue;
    stuck =
        call_overdue("FileTransfers::wait", most).object(thread.part->file.string()).at(thread.part->offset);
    return true;
  }
  return false;
}

Result<std::unique_ptr<FileTransfers>> FileTransfers::create(Options options) {
  PENSTOCK_TRY(check(options));
  const auto state = std::make_shared<State>(std::move(options));
  for (std::uint32_t i = 0; i < state->options.threads; ++i) state->threads.emplace_back(state->options);
  std::unique_ptr<FileTransfers> made(new FileTransfers(state));
  for (std::size_t i = 0; i < state->threads.size(); ++i) {
    PENSTOCK_TRY_ASSIGN(
        state->threads[i].thread,
        start_thread("FileTransfers::create", "a thread of transfers", [state, i] { state->run(i); }));
  }
  return made;
}

FileTransfers::~FileTransfers() {
  (void)wait();
  std::unique_lock lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
  std::vector<bool> is_busy;
  for (const State::Thread& one : state_->threads) is_busy.push_back(one.part.has_value());
  lock.unlock();
  for (std::size_t i = 0; i < state_->threads.size(); ++i) {
    std::thread& thread = state_->threads[i].thread;
    if (thread.joinable()) is_busy[i] ? thread.detach() : thread.join();
  }
}

Result<void> FileTransfers::start_read(const std::filesystem::path& file, FileOffset offset, HostSpan into) {
  return start(IoOperation::read, file, offset, into);
}

Result<void> FileTransfers::start_write(const std::filesystem::path& file, FileOffset offset,
                                        ConstHostSpan bytes) {
  // A write only reads its buffer.
  return start(IoOperation::write, file, offset,
               HostSpan(const_cast<std::byte*>(bytes.data()), bytes.size()));
}

Result<void> FileTransfers::start(IoOperation operation, const std::filesystem::path& file, FileOffset offset,
                                  HostSpan bytes) {
  const char* const name = name_of(operation);
  if (file.empty())
    return Error::invalid_argument(name).object("file").reason("it is empty").wanted("a path");
  if (bytes.data() == nullptr && !bytes.empty())
    return Error::invalid_argument(name).object("the buffer").reason("it is null").got(bytes.size());
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  if (offset.value() > most || bytes.size().value() > most - offset.value()) {
    return Error::invalid_argument(name)
        .object(file.string())
        .reason("files end at 2^63 bytes")
        .at(offset)
        .got(bytes.size());
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stuck) {
      return Error(ErrorCode::failed_state, name)
          .object(file.string())
          .reason("a drive has not answered")
          .note("cause   " + state_->stuck->message())
          .advice("use another FileTransfers for files on other drives");
    }
  }
  const FileOffset end = offset + bytes.size();
  PENSTOCK_TRY(bounded_call<void>(name, file.string(), state_->options.deadline,
                                  [files = state_->options.files, operation, file, end] {
                                    return operation == IoOperation::read ? check_readable(*files, file, end)
                                                                          : make_writable(*files, file, end);
                                  }));
  state_->post(operation, file, offset, bytes);
  return ok();
}

Result<std::size_t> FileTransfers::wait() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const TimePoint step = running_time_step(state.options.deadline);
  for (State::Thread& thread : state.threads) thread.progressed = thread.running.elapsed();
  while (state.unfinished > 0 && !state.stuck) {
    if (state.changed.wait_for(lock, step) == std::cv_status::timeout) (void)state.is_stuck();
  }
  const std::size_t ended = std::exchange(state.started, 0);
  auto errors = std::exchange(state.errors, {});
  if (state.stuck) {
    state.queue.clear();
    return *state.stuck;
  }
  if (errors.empty()) return ended;
  std::stable_sort(errors.begin(), errors.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // The caller keeps the buffers then: it must not be a note.
  const auto overdue = std::ranges::find_if(
      errors, [](const auto& one) { return one.second.code() == ErrorCode::deadline_exceeded; });
  if (overdue != errors.end()) std::rotate(errors.begin(), overdue, overdue + 1);
  Error first = errors.front().second;
  for (std::size_t i = 1; i < std::min(errors.size(), noted_errors_max); ++i)
    first = std::move(first).note("also    " + errors[i].second.message());
  return first;
}

std::size_t FileTransfers::started() const {
  const std::lock_guard lock(state_->mutex);
  return state_->started;
}

std::vector<std::string> FileTransfers::notes() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->notes.begin(), state_->notes.end()};
}

}  // namespace penstock::tiers
