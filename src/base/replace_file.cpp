#include "base/replace_file.hpp"

#include "base/regular_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

namespace penstock {

namespace {

constexpr int links_max = 40;  // as the kernel follows

/// What is written before it takes the place of `file`.
struct Unfinished {
  std::filesystem::path file, name;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream{nullptr, &std::fclose};
};

/// A file that is written for long, as a timeline, has a lock. Replaced, what is written later would be lost.
Result<void> check_there(const char* operation, const std::filesystem::path& file, const FileKind& kind) {
  const auto there = open_regular_file(operation, file, O_RDONLY);
  if (!there) return there.error().code() == ErrorCode::not_found ? ok() : Result<void>(there.error());
  if (::flock(there->get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
    return check_kind(operation, file, there->get(), kind);
  return Error(ErrorCode::in_use, operation)
      .object(file.string())
      .reason("another has a lock on it, as a run has on its timeline")
      .advice("name another file");
}

Result<Unfinished> begin_beside(const char* operation, const std::filesystem::path& file,
                                const FileKind& kind) {
  if (!file.has_filename()) {
    return Error::invalid_argument(operation).object("file").reason("it names no file").got(file.string());
  }
  std::error_code error;
  Unfinished unfinished{.file = without_links(file, error)};
  if (error) return Error::from_errno(operation, error.value()).object(file.string());
  PENSTOCK_TRY(check_regular(operation, file));
  PENSTOCK_TRY(check_there(operation, file, kind));
  const auto there = std::filesystem::status(unfinished.file, error);
  if (there.type() == std::filesystem::file_type::none)
    return Error::from_errno(operation, error.value()).object(file.string());
  static std::atomic<std::uint64_t> count = 0;
  do {  // a process of this number may have been killed, and have left one
    unfinished.name = unfinished.file;
    unfinished.name += '.' + std::to_string(::getpid()) + '.' + std::to_string(count++) + ".new";
    errno = 0;
    unfinished.stream.reset(std::fopen(unfinished.name.c_str(), "wxe"));
  } while (unfinished.stream == nullptr && errno == EEXIST);
  if (const int cause = errno; unfinished.stream == nullptr) {
    auto refused = Error::from_errno(operation, cause).object(file.string());
    return cause == ENOENT ? std::move(refused).advice("make its directory, or name another file") : refused;
  }
  if (std::filesystem::exists(there))
    std::filesystem::permissions(unfinished.name, there.permissions(), error);
  return unfinished;
}

}  // namespace

Result<void> replace_file(const char* operation, const std::filesystem::path& file, std::string_view contents,
                          const FileKind& kind) {
  PENSTOCK_TRY_ASSIGN(Unfinished unfinished, begin_beside(operation, file, kind));
  errno = 0;
  const bool is_whole =
      std::fwrite(contents.data(), 1, contents.size(), unfinished.stream.get()) == contents.size();
  const bool is_written = std::fclose(unfinished.stream.release()) == 0 && is_whole;
  std::error_code error(is_written ? 0 : errno == 0 ? EIO : errno, std::system_category());
  if (!error) std::filesystem::rename(unfinished.name, unfinished.file, error);
  if (!error) return ok();
  std::error_code ignored;
  std::filesystem::remove(unfinished.name, ignored);
  return Error::from_errno(operation, error.value()).object(file.string());
}

Result<void> check_replaceable(const char* operation, const std::filesystem::path& file,
                               const FileKind& kind) {
  PENSTOCK_TRY_ASSIGN(const Unfinished unfinished, begin_beside(operation, file, kind));
  std::error_code ignored;
  std::filesystem::remove(unfinished.name, ignored);
  return ok();
}

std::filesystem::path without_links(const std::filesystem::path& file, std::error_code& error) {
  std::filesystem::path name = std::filesystem::absolute(file, error);
  for (int links = 0; !error; ++links) {
    const auto type = std::filesystem::symlink_status(name, error).type();
    if (type == std::filesystem::file_type::not_found) error.clear();
    if (error || type != std::filesystem::file_type::symlink) break;
    if (links == links_max) {
      error.assign(ELOOP, std::system_category());
      break;
    }
    name = name.parent_path() / std::filesystem::read_symlink(name, error);
  }
  return name;
}

}  // namespace penstock
