#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>

#include <unistd.h>
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
/// lacks only the array's end, which Perfetto does not need.
///
/// Safe from any thread. Only flush(), end() and the destructor call the system.
class Timeline {
 public:
  /// Begins the file anew; where it cannot be written, what is there stays. `process`: its number in the file.
  /// `size_max`: about so many bytes. Errors: those of opening and writing it; in_use, where another timeline is being
  /// written there.
  [[nodiscard]] static Result<std::unique_ptr<Timeline>> create(const std::filesystem::path& file,
                                                                std::uint32_t process = 0,
                                                                ByteCount size_max = 256_MiB);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// Something that took from `begin` to now. Of one track, those at the same time are in rows of their own.
  void add(std::string_view track, std::string_view name, TimePoint begin, ByteCount bytes = {}) {
    add(track, name, begin, Clock::steady().now(), bytes);
  }
  void add(std::string_view track, std::string_view name, TimePoint begin, TimePoint end,
           ByteCount bytes = {});
  /// Writes what was added, if that is much or `age` old. Called now and then, without a lock.
  void flush(std::chrono::seconds age = std::chrono::seconds(1));
  /// Why nothing is written any more, once; else empty.
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

  /// A row whose last event has ended by `begin`. With the lock held.
  [[nodiscard]] std::uint32_t row_of(std::string_view track, TimePoint begin, TimePoint end);
  void append(const std::string& event);
  void unlock(int descriptor) const;
  /// An event that describes a row, or the process.
  void describe(const char* what, std::uint32_t row, const std::string& arguments);
  /// Whole events. Of those that cannot be written none stays in the file, which then has its end.
  void write(const std::string& text);
  [[nodiscard]] int begin();
  void close();
  [[nodiscard]] std::string cannot_be_written(int cause) const;

  const std::filesystem::path path_;
  const std::string process_;  // its number
  const std::uint64_t size_max_;
  const pid_t owner_ = ::getpid();
  std::mutex file_mutex_;  // taken before `mutex_`
  File file_;
  TimePoint written_at_ = Clock::steady().now();
  std::uint64_t written_ = 0;  // bytes

  std::mutex mutex_;
  struct Row {
    std::uint32_t number;
    TimePoint end;
  };
  std::map<std::string, std::vector<Row>, std::less<>> rows_;  // by track
  std::uint32_t row_count_ = 0;
  std::string pending_ = "[";
  std::uint64_t size_ = 0;
  bool ended_ = false;
  std::string message_;
};

}  // namespace penstock::swap
