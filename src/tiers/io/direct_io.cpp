#include "tiers/io/direct_io.hpp"

#include "tiers/io/interrupted.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace penstock::tiers {

namespace {

/// The alignment that the file system reports, or file_alignment if it reports none; zero: no direct I/O.
std::uint64_t reported_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN)) {
    if (status.stx_dio_mem_align == 0 || status.stx_dio_offset_align == 0) return 0;
    return std::max<std::uint64_t>(
        {file_alignment.bytes(), status.stx_dio_mem_align, status.stx_dio_offset_align});
  }
#endif
  return file_alignment.bytes();
}

/// Returns an empty string unless the file system refuses a direct read of one block. Another error is the drive's, and
/// none of direct I/O: the transfers report it.
std::string probe_direct_read(int fd) {
  constexpr std::size_t alignment = file_alignment.bytes();
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(alignment, alignment),
                                                          &std::free);
  if (!block) return "no memory for the probe";
  const ssize_t got = repeat_interrupted([&] { return ::pread(fd, block.get(), alignment, 0); });
  if (got >= 0 || (errno != EINVAL && errno != EOPNOTSUPP)) return {};
  return std::string("a direct read fails: ") + std::strerror(errno);
}

}  // namespace

Result<std::string> enable_direct_io(int fd) {
  const std::uint64_t reported = reported_alignment(fd);
  if (reported == 0) return std::string("the file system reports that it has none");
  if (reported > file_alignment.bytes()) {
    return "the file system has it at multiples of " + to_string(ByteCount(reported)) +
           " only, and transfers are multiples of " + to_string(ByteCount(file_alignment.bytes()));
  }
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
    return std::string("O_DIRECT is refused: ") + std::strerror(errno);
  }
  std::string failure = probe_direct_read(fd);
  if (!failure.empty() && ::fcntl(fd, F_SETFL, flags) != 0) {
    return Error::from_errno("enable_direct_io", errno).reason("the file cannot be made buffered again");
  }
  return failure;
}

}  // namespace penstock::tiers
