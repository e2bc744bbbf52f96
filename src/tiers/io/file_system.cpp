#include <penstock/base/check.hpp>
#include <penstock/base/owned_fd.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

namespace penstock::tiers {

File::~File() {
  if (file_system_ != nullptr) file_system_->close(properties_.handle);
}

Error FileSystem::refused(const std::filesystem::path& directory, ByteCount size, int errno_value,
                          const Result<ByteCount>& free) {
  Error error =
      Error::from_errno("FileSystem::create_scratch", errno_value).object(directory.string()).wanted(size);
  if (free) error = std::move(error).got(to_string(*free) + " free");
  return std::move(error).advice("free space on that file system or name another directory");
}

Error FileSystem::no_direct_io(const std::filesystem::path& directory, const std::string& why) {
  return Error::unsupported("FileSystem::create_scratch")
      .reason("no direct I/O on this file system: " + why)
      .object(directory.string())
      .advice("choose a directory on ext4 or XFS, or allow buffered I/O");
}

Result<void> File::extend(ByteCount size) {
  return file_system_->extend(properties_, size);
}

namespace {

// What a 4Kn drive needs; never less, so that a layout survives a move to one.
constexpr std::uint64_t alignment_min = 4096;

/// The file system's own answer, or alignment_min where it gives none; zero means no direct I/O.
std::uint64_t reported_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN)) {
    if (status.stx_dio_mem_align == 0 || status.stx_dio_offset_align == 0) return 0;
    return std::max<std::uint64_t>({alignment_min, status.stx_dio_mem_align, status.stx_dio_offset_align});
  }
#endif
  return alignment_min;
}

/// An empty string when a direct read of one block works, else why it does not.
std::string probe_direct_read(int fd, std::uint64_t alignment) {
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(alignment, alignment),
                                                          &std::free);
  if (!block) return "no memory for the probe";
  ssize_t got = 0;
  do got = ::pread(fd, block.get(), alignment, 0);
  while (got < 0 && errno == EINTR);
  return got >= 0 ? std::string() : std::string("a direct read fails: ") + std::strerror(errno);
}

class RealFileSystem final : public FileSystem {
 public:
  Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                              DirectIo direct) override {
    PENSTOCK_TRY_ASSIGN(auto opened, open_unnamed(directory));
    OwnedFd fd = std::move(opened);
    PENSTOCK_TRY_ASSIGN(auto reserve_note, reserve(fd.get(), directory, size));

    File::Properties properties{.handle = FileHandle::none,
                                .name = "scratch file in " + directory.string(),
                                .direct = false,
                                .alignment = Alignment(alignment_min),
                                .direct_note = {},
                                .reserve_note = std::move(reserve_note)};
    if (direct != DirectIo::off) {
      properties.direct_note = enable_direct(fd.get(), properties.alignment);
      properties.direct = properties.direct_note.empty();
    }
    if (direct == DirectIo::required && !properties.direct) {
      return no_direct_io(directory, properties.direct_note);
    }
    properties.handle = FileHandle(fd.release());
    return File(*this, std::move(properties));
  }

  Result<ByteCount> free_space(const std::filesystem::path& directory) override {
    struct statfs status {};
    if (::statfs(directory.c_str(), &status) != 0) {
      return Error::from_errno("FileSystem::free_space", errno).object(directory.string());
    }
    // A tmpfs without a size.
    if (status.f_blocks == 0) return ByteCount(std::numeric_limits<off_t>::max());
    return ByteCount(status.f_bavail * static_cast<std::uint64_t>(status.f_bsize));
  }

  std::string type_name(const std::filesystem::path& directory) override {
    struct statfs status {};
    if (::statfs(directory.c_str(), &status) != 0) return "unknown";
    const auto magic = static_cast<std::uint32_t>(status.f_type);
    switch (magic) {
      case EXT4_SUPER_MAGIC: return "ext4";
      case TMPFS_MAGIC: return "tmpfs";
      case OVERLAYFS_SUPER_MAGIC: return "overlay";
      case BTRFS_SUPER_MAGIC: return "btrfs";
      case 0x58465342: return "xfs";
      case NFS_SUPER_MAGIC: return "nfs";
      default: break;
    }
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "0x%x", magic);
    return text.data();
  }

 private:
  void close(FileHandle handle) noexcept override {
    if (handle != FileHandle::none) ::close(static_cast<int>(handle));
  }

  Result<void> extend(const File::Properties& file, ByteCount size) override {
    PENSTOCK_TRY(check_length("File::extend", file.name, size));
    if (::ftruncate(static_cast<int>(file.handle), static_cast<off_t>(size.value())) == 0) return ok();
    return Error::from_errno("File::extend", errno).object(file.name).wanted(size);
  }

  /// Beyond this limit the kernel would not just refuse but end the process, by SIGXFSZ.
  static Result<void> check_length(const char* operation, const std::string& file, ByteCount size) {
    rlimit longest{};
    if (::getrlimit(RLIMIT_FSIZE, &longest) != 0 || size.value() <= longest.rlim_cur) return ok();
    return Error(ErrorCode::no_space, operation)
        .reason("RLIMIT_FSIZE allows no file of that length")
        .object(file)
        .wanted(size)
        .got(ByteCount(longest.rlim_cur))
        .advice("raise the limit on file sizes (ulimit -f)");
  }

  static Result<OwnedFd> open_unnamed(const std::filesystem::path& directory) {
    OwnedFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (fd.is_open()) return fd;
    if (errno != EOPNOTSUPP && errno != EISDIR) {
      return Error::from_errno("FileSystem::create_scratch", errno)
          .object(directory.string())
          .advice("name a directory that exists and that this user may write to");
    }
    std::string name = (directory / "penstock-XXXXXX").string();
    fd = OwnedFd(::mkostemp(name.data(), O_CLOEXEC));  // 0600, and never follows a link
    if (!fd.is_open())
      return Error::from_errno("FileSystem::create_scratch", errno).object(directory.string());
    if (::unlink(name.c_str()) != 0)
      return Error::from_errno("FileSystem::create_scratch", errno).object(name);
    return fd;
  }

  /// Returns why nothing is reserved, although there is room; an empty string when all of it is.
  Result<std::string> reserve(int fd, const std::filesystem::path& directory, ByteCount size) {
    PENSTOCK_TRY(check_length("FileSystem::create_scratch", directory.string(), size));
    // What cannot fit is not tried: until it is refused, fallocate takes what is left from everybody else.
    const auto free = free_space(directory);
    if (free && *free < size) return refused(directory, size, ENOSPC, free);
    int result = 0;
    do result = ::fallocate(fd, 0, 0, static_cast<off_t>(size.value()));
    while (result != 0 && errno == EINTR);
    if (result == 0) return std::string();
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
      result = ::ftruncate(fd, static_cast<off_t>(size.value()));
      if (result == 0) return std::string("the file system has no fallocate");
    }
    const int cause = errno;
    return refused(directory, size, cause, free_space(directory));
  }

  /// Switches the page cache off; returns why that is not possible, or nothing.
  static std::string enable_direct(int fd, Alignment& alignment) {
    const std::uint64_t reported = reported_alignment(fd);
    if (reported == 0) return "the file system reports that it has none";
    const int flags = ::fcntl(fd, F_GETFL);
    if (::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
      return std::string("O_DIRECT is refused: ") + std::strerror(errno);
    }
    std::string failure = probe_direct_read(fd, reported);
    if (failure.empty()) {
      alignment = Alignment(reported);
    } else {
      PENSTOCK_CHECK(::fcntl(fd, F_SETFL, flags) == 0);
    }
    return failure;
  }
};

}  // namespace

FileSystem& real_file_system() {
  static RealFileSystem file_system;
  return file_system;
}

}  // namespace penstock::tiers
