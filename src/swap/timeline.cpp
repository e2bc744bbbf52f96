#include "swap/timeline.hpp"

#include "base/file_kind.hpp"
#include "base/regular_file.hpp"
#include "base/utf8.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

namespace penstock::swap {

namespace {

constexpr std::size_t much = 64 << 10;
constexpr std::uint32_t first_of_tensors = 1'000'000;  // the number of a process

std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char c : to_utf8(text)) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      json += c;
    } else {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      json += code.data();
    }
  }
  return json + '"';
}

constexpr std::string_view beginning = "[\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": ";
constexpr FileKind timeline_kind{.name = "a timeline", .beginnings = std::span(&beginning, 1)};

constexpr const char* is_timeline_file = "it is timeline_file, penstock.timeline_file of a configuration";

/// One that is no regular file has the advice of open_regular_file().
Error cannot_create(Error cause) {
  const ErrorCode code = cause.code();
  cause = std::move(cause).note(is_timeline_file);
  if (code == ErrorCode::invalid_argument) return cause;
  return std::move(cause).advice(code == ErrorCode::no_space
                                     ? "free space, or name a file on another file system"
                                     : "name a file that can be written, in a directory that exists");
}
Error cannot_create(const std::filesystem::path& file, int cause) {
  return cannot_create(Error::from_errno("Runtime::create", cause).object(file.string()));
}

std::string cannot_be_written(int cause) {
  return std::string("it cannot be written (") + std::strerror(cause) + ")";
}

std::string microseconds(TimePoint time) {
  std::array<char, 64> digits{};
  const double count = std::chrono::duration<double, std::micro>(time).count();
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), count, std::chars_format::fixed, 3);
  return {digits.data(), end.ptr};
}

}  // namespace

Result<void> Timeline::check(const std::filesystem::path& file) {
  const auto there = open_regular_file("Runtime::create", file, O_RDONLY);
  if (!there) return there.error().code() == ErrorCode::not_found ? ok() : Result<void>(there.error());
  return check_kind("Runtime::create", file, there->get(), timeline_kind);
}

Result<std::unique_ptr<Timeline>> Timeline::create(const std::filesystem::path& file, std::uint32_t process,
                                                   ByteCount size_max) {
  // Not truncated before it is known that no other timeline is written there.
  auto descriptor = open_regular_file("Runtime::create", file, O_RDWR | O_CREAT);
  if (!descriptor) return cannot_create(descriptor.error());
  if (::flock(descriptor->get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error(ErrorCode::in_use, "Runtime::create")
        .object(file.string())
        .reason(
            "another runtime writes its timeline there, in this process, or in another one or its children")
        .note(is_timeline_file)
        .advice("give each run, and each runtime of a process, a timeline_file of its own");
  }
  if (auto checked = check_kind("Runtime::create", file, descriptor->get(), timeline_kind); !checked)
    return std::move(checked).error().note(is_timeline_file);
  File opened(::fdopen(descriptor->get(), "w"));
  if (opened == nullptr) return cannot_create(file, errno);
  std::ignore = descriptor->release();
  std::unique_ptr<Timeline> timeline(new Timeline(file, std::move(opened), process, size_max));
  if (const int cause = timeline->begin(); cause != 0) return cannot_create(file, cause);
  return timeline;
}

/// Writes over the begin of what is there, of which the rest goes only then. Returns the errno.
int Timeline::begin() {
  const std::string text = std::exchange(pending_, {});
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0) {
    const int cause = errno == 0 ? EIO : errno;
    file_.reset();
    return cause;
  }
  written_ = text.size();
  has_links_ = !has_no_link();
  if (::ftruncate(::fileno(file_.get()), static_cast<off_t>(written_)) != 0) {
    const int cause = errno;
    file_.reset();
    return cause;
  }
  return 0;
}

Timeline::Timeline(std::filesystem::path path, File file, std::uint32_t process, ByteCount size_max)
    : path_(std::move(path)),
      size_max_(size_max.value()),
      file_(std::move(file)),
      tracks_{std::to_string(process)},
      tensors_{std::to_string(std::uint64_t{process} + first_of_tensors)} {
  describe("process_name", tracks_, 0, "rank " + tracks_.number);
}

Timeline::~Timeline() {
  (void)end();
}

std::string Timeline::end() {
  const std::lock_guard file_lock(file_mutex_);
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(ended_, true)) pending_ += "\n]\n";
    has_ended_ = true;
    text = std::exchange(pending_, {});
  }
  if (!text.empty()) write(text);
  close();
  const std::lock_guard lock(mutex_);
  return std::exchange(message_, {});
}

/// Some file systems say only then that they have no room.
void Timeline::close() {
  if (file_ == nullptr) return;
  unlock(::fileno(file_.get()));
  errno = 0;
  if (std::fclose(file_.release()) == 0) return;
  const int cause = errno == 0 ? EIO : errno;
  const std::lock_guard lock(mutex_);
  end_because(cannot_be_written(cause));
}

/// A child of this process that has the file open, too, would hold the lock, and must not end it.
void Timeline::unlock(int descriptor) const {
  if (::getpid() == owner_) (void)::flock(descriptor, LOCK_UN);
}

std::uint32_t Timeline::row_of(Process& process, const Event& event) {
  auto found = process.rows.find(event.track);
  if (found == process.rows.end())
    found = process.rows.emplace(std::string(event.track), std::vector<Row>()).first;
  std::vector<Row>& rows = found->second;
  const auto free =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.end <= event.begin; });
  if (free != rows.end()) {
    free->end = event.end;
    return free->number;
  }
  rows.push_back({row_count_++, event.end});
  std::string name(event.track);
  if (rows.size() > 1) name += ' ' + std::to_string(rows.size());
  describe("thread_name", process, rows.back().number, name);
  return rows.back().number;
}

void Timeline::describe(const char* what, const Process& process, std::uint32_t row,
                        const std::string& name) {
  append("{\"name\": \"" + std::string(what) + "\", \"ph\": \"M\", \"pid\": " + process.number +
         ", \"tid\": " + std::to_string(row) + ", \"args\": {\"name\": " + json_string(name) + "}}");
}

void Timeline::append(const std::string& event) {
  pending_ += size_ == 0 ? "\n" : ",\n";
  pending_ += event;
  size_ += event.size() + 2;
}

void Timeline::add(std::string_view track, std::string_view name, TimePoint begin, TimePoint end,
                   ByteCount bytes) {
  const std::lock_guard lock(mutex_);
  add(tracks_, {.track = track, .name = name, .category = track, .begin = begin, .end = end, .bytes = bytes});
}

void Timeline::add_of_tensor(std::string_view track, std::string_view tensor, TimePoint begin,
                             ByteCount bytes) {
  const TimePoint end = Clock::steady().now();
  const std::lock_guard lock(mutex_);
  add(tracks_,
      {.track = track, .name = tensor, .category = track, .begin = begin, .end = end, .bytes = bytes});
  if (tensors_.rows.empty() && !ended_)
    describe("process_name", tensors_, 0, "tensors of rank " + tracks_.number);
  add(tensors_,
      {.track = tensor, .name = track, .category = "tensor", .begin = begin, .end = end, .bytes = bytes});
}

void Timeline::add(Process& process, const Event& added) {
  if (ended_) return;
  const std::uint32_t row = row_of(process, added);
  std::string event = "{\"name\": " + json_string(added.name) + ", \"cat\": " + json_string(added.category) +
                      ", \"ph\": \"X\", \"ts\": " + microseconds(added.begin) +
                      ", \"dur\": " + microseconds(added.end - added.begin) + ", \"pid\": " + process.number +
                      ", \"tid\": " + std::to_string(row);
  if (!added.bytes.is_zero()) event += ", \"args\": {\"bytes\": " + std::to_string(added.bytes.value()) + "}";
  append(event + "}");
  if (size_ < size_max_) return;
  end_because("it has " + to_string(ByteCount(size_)));
  pending_ += "\n]\n";
}

void Timeline::flush(std::chrono::seconds age) {
  const std::lock_guard file_lock(file_mutex_);
  if (file_ == nullptr) return;
  const TimePoint now = Clock::steady().now();
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (pending_.empty() || (pending_.size() < much && now - written_at_ < age)) return;
    text = std::exchange(pending_, {});
  }
  written_at_ = now;
  write(text);
}

void Timeline::write(const std::string& text) {
  if (file_ == nullptr) return;
  errno = 0;
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() && std::fflush(file_.get()) == 0;
  if (is_written) {
    written_ += text.size();
    if (!has_links_ || !has_no_link()) return;
    unlock(::fileno(file_.get()));
    file_.reset();
    const std::lock_guard lock(mutex_);
    end_because("its file was removed");
    return;
  }
  const int cause = errno == 0 ? EIO : errno;
  const std::string end = written_ == 0 ? "[\n]\n" : "\n]\n";  // there may be room for that
  const int descriptor = ::dup(::fileno(file_.get()));
  file_.reset();  // writes again what is in its buffer
  if (descriptor >= 0) {
    if (::ftruncate(descriptor, static_cast<off_t>(written_)) == 0)
      (void)!::pwrite(descriptor, end.data(), end.size(), static_cast<off_t>(written_));
    unlock(descriptor);
    ::close(descriptor);
  }
  const std::lock_guard lock(mutex_);
  end_because(cannot_be_written(cause));
}

/// Removed, or replaced by another: what is written has no name by which it could be opened.
bool Timeline::has_no_link() const {
  struct stat status {};
  return ::fstat(::fileno(file_.get()), &status) == 0 && status.st_nlink == 0;
}

void Timeline::end_because(const std::string& reason) {
  ended_ = true;
  has_ended_ = true;
  message_ = path_.string() + ": the timeline has ended, because " + reason;
}

void Timeline::add_message(const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (message_.empty()) message_ = path_.string() + ": " + message;
}

std::string Timeline::take_message() {
  const std::lock_guard lock(mutex_);
  std::string message = std::exchange(message_, {});
  if (!message.empty()) message += "; the run goes on";
  return message;
}

}  // namespace penstock::swap
