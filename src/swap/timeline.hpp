#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>

#include <unistd.h>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::swap {

/// What one rank moves, updates and waits for, and when, in a file that Perfetto opens: a JSON array of complete events
/// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). A file whose process was killed
/// lacks only the array's end, which Perfetto does not need. The rank is a process in it, with rows for each track. A
/// second process, whose number is 1,000,000 higher, has rows for each tensor.
///
/// Safe from any thread. Only flush(), end() and the destructor call the system.
class Timeline {
 public:
  /// Begins the file anew; where it cannot be written, what is there stays. `process`: its number in the file.
  /// `size_max`: about so many bytes. Errors: those of opening and writing it; already_exists, for another file than a
  /// timeline; in_use, where another timeline is being written there.
  [[nodiscard]] static Result<std::unique_ptr<Timeline>> create(const std::filesystem::path& file,
                                                                std::uint32_t process = 0,
                                                                ByteCount size_max = 256_MiB);
  /// Whether create() would replace no other file than a timeline. Changes nothing. Errors: already_exists; those of
  /// opening the file.
  [[nodiscard]] static Result<void> check(const std::filesystem::path& file);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Something that took from `begin` to now. Of one track, those at the same time are in rows of their own.
  void add(std::string_view track, std::string_view name, TimePoint begin, ByteCount bytes = {}) {
    add(track, name, begin, Clock::steady().now(), bytes);
  }
  void add(std::string_view track, std::string_view name, TimePoint begin, TimePoint end,
           ByteCount bytes = {});
  /// The same of a tensor, or a tile of a state: it is in the tensor's row too.
  void add_of_tensor(std::string_view track, std::string_view tensor, TimePoint begin, ByteCount bytes = {});
  /// Nothing is added any more.
  [[nodiscard]] bool has_ended() const { return has_ended_.load(std::memory_order_relaxed); }
  /// That something is missing from here on, and why; for take_message(), unless that has another message.
  void add_message(const std::string& message);
  /// Writes what was added, if that is much or `age` old. Called now and then, without a lock.
  void flush(std::chrono::seconds age = std::chrono::seconds(1));
  /// Why nothing is written any more, or add_message()'s, once; else empty.
  [[nodiscard]] std::string take_message();
  /// Writes the rest and closes the file, as the destructor does. Returns why it is not whole, unless take_message()
  /// has.
  [[nodiscard]] std::string end();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  Timeline(std::filesystem::path path, File file, std::uint32_t process, ByteCount size_max);

  struct Row {
    std::uint32_t number;
    TimePoint end;
  };
  struct Process {
    std::string number;
    std::map<std::string, std::vector<Row>, std::less<>> rows = {};  // by track
  };
  struct Event {
    std::string_view track, name, category;
    TimePoint begin, end;
    ByteCount bytes;
  };
  // With the lock held.
  void add(Process& process, const Event& event);
  /// A row whose last event has ended by the begin of this one.
  [[nodiscard]] std::uint32_t row_of(Process& process, const Event& event);
  void append(const std::string& event);
  void end_because(const std::string& reason);
  void unlock(int descriptor) const;
  /// An event that describes a row, or a process.
  void describe(const char* what, const Process& process, std::uint32_t row, const std::string& name);
  /// Whole events. Of those that cannot be written none stays in the file, which then has its end.
  void write(const std::string& text);
  [[nodiscard]] int begin();
  void close();
  [[nodiscard]] bool has_no_link() const;

  const std::filesystem::path path_;
  const std::uint64_t size_max_;
  const pid_t owner_ = ::getpid();
  std::mutex file_mutex_;  // taken before `mutex_`
  File file_;
  TimePoint written_at_ = Clock::steady().now();
  std::uint64_t written_ = 0;  // bytes
  bool has_links_ = false;     // some file systems count none

  std::mutex mutex_;
  Process tracks_, tensors_;
  std::uint32_t row_count_ = 0;
  std::string pending_ = "[";
  std::uint64_t size_ = 0;
  bool ended_ = false;
  std::atomic<bool> has_ended_{false};  // the same, without the lock
  std::string message_;
};

}  // namespace penstock::swap
