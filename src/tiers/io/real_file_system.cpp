#include "tiers/io/direct_io.hpp"
#include "tiers/io/file_errors.hpp"
#include "tiers/io/interrupted.hpp"

#include "base/owned_fd.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>

namespace penstock::tiers {

namespace {

int descriptor_of(const File::Properties& file) {
  return static_cast<int>(file.handle);
}

/// RLIMIT_FSIZE: beyond it the kernel sends SIGXFSZ, which ends the process.
Result<void> check_length(const char* operation, const std::string& file, ByteCount size) {
  rlimit longest{};
  if (::getrlimit(RLIMIT_FSIZE, &longest) != 0 || size.value() <= longest.rlim_cur) return ok();
  return Error(ErrorCode::no_space, operation)
      .reason("RLIMIT_FSIZE allows no file of that length")
      .object(file)
      .wanted(size)
      .got(ByteCount(longest.rlim_cur))
      .advice("raise the limit on file sizes (ulimit -f)");
}

ByteCount available(const struct statfs& status) {
  // A tmpfs without a size limit.
  if (status.f_blocks == 0) return ByteCount(std::numeric_limits<off_t>::max());
  return ByteCount(status.f_bavail * static_cast<std::uint64_t>(status.f_bsize));
}

Result<ByteCount> free_space_of(int fd) {
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0) return Error::from_errno("FileSystem::free_space", errno);
  return available(status);
}

/// The process id in a lock file; none if it cannot be read.
std::optional<int> holder_of(int lock_file) {
  std::array<char, 16> text{};
  const ssize_t length = ::pread(lock_file, text.data(), text.size(), 0);
  int holder = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + std::max<ssize_t>(length, 0), holder);
  return parsed.ec == std::errc() && holder > 0 ? std::optional(holder) : std::nullopt;
}

/// Writes our process id for the messages of other processes. Errors, such as a full disk, do not matter.
void write_holder(int lock_file) {
  const std::string text = std::to_string(::getpid()) + "\n";
  (void)!::ftruncate(lock_file, 0);
  (void)!::pwrite(lock_file, text.data(), text.size(), 0);
}

/// The name for a system call. The kernel would read a name with a null character up to that, and use another file:
/// such a name becomes the empty one, which no file has.
const char* kernel_name(const std::filesystem::path& path) {
  return path.native().find('\0') == std::string::npos ? path.c_str() : "";
}

/// With mode 0600 where it creates the file. Returns -1 and sets errno on failure.
int open_file(const std::filesystem::path& path, int flags) {
  return repeat_interrupted([&] { return ::open(kernel_name(path), flags | O_CLOEXEC, 0600); });
}

class RealFileSystem final : public FileSystem {
 public:
  Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                              DirectIo direct) override {
    auto fd = open_unnamed(directory);
    // Some file systems have no room for an inode then.
    if (!fd && fd.error().code() == ErrorCode::no_space)
      return reserve_error("FileSystem::create_scratch", directory, size, ENOSPC, free_space(directory));
    if (!fd) return fd.error();
    return make("FileSystem::create_scratch", std::move(*fd), directory,
                "scratch file in " + directory.string(), size, direct);
  }

  Result<File> create(const std::filesystem::path& path, ByteCount size, DirectIo direct) override {
    // O_EXCL follows no link.
    OwnedFd fd(open_file(path, O_RDWR | O_CREAT | O_EXCL));
    if (!fd.is_open()) return file_error("FileSystem::create", path.string(), errno);
    auto file = make("FileSystem::create", std::move(fd), path, path.string(), size, direct);
    if (!file) return remove_name(path, file.error());
    return file;
  }

  Result<File> open(const std::filesystem::path& path, DirectIo direct) override {
    return open_existing("FileSystem::open", path, O_RDWR, direct);
  }

  // A FIFO that nothing writes to would be waited for.
  Result<File> open_to_read(const std::filesystem::path& path, DirectIo direct) override {
    return open_existing("FileSystem::open_to_read", path, O_RDONLY | O_NONBLOCK, direct);
  }

  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (::rename(kernel_name(from), kernel_name(to)) == 0) return ok();
    return file_error("FileSystem::rename", renamed(from, to), errno);
  }

  Result<void> remove(const std::filesystem::path& path) override {
    if (::unlink(kernel_name(path)) == 0) return ok();
    return file_error("FileSystem::remove", path.string(), errno);
  }

  Result<void> create_directory(const std::filesystem::path& path) override {
    if (::mkdir(kernel_name(path), 0700) == 0) return ok();
    return file_error("FileSystem::create_directory", path.string(), errno);
  }

  Result<void> remove_directory(const std::filesystem::path& path) override {
    if (::rmdir(kernel_name(path)) == 0) return ok();
    return file_error("FileSystem::remove_directory", path.string(), errno);
  }

  Result<std::vector<std::string>> list(const std::filesystem::path& directory) override {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator at(kernel_name(directory), error), end; !error && at != end;
         at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    if (error) return file_error("FileSystem::list", directory.string(), error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> sync_directory(const std::filesystem::path& directory) override {
    constexpr const char* operation = "FileSystem::sync_directory";
    const OwnedFd fd(open_file(directory, O_RDONLY | O_DIRECTORY));
    if (!fd.is_open()) return file_error(operation, directory.string(), errno);
    if (::fsync(fd.get()) == 0) return ok();
    return sync_error(operation, directory.string(), errno);
  }

  // flock() on a separate file. A POSIX lock (F_SETLK) ends when the process closes any descriptor of the file, and
  // does not exclude a second caller in the process. F_OFD_SETLK would be equivalent; flock also works with the flock
  // command. A directory itself cannot be locked on NFS.
  Result<DirectoryLock> lock(const std::filesystem::path& directory) override {
    const std::filesystem::path path = directory / DirectoryLock::file_name;
    OwnedFd fd(open_file(directory.empty() ? directory : path, O_RDWR | O_CREAT | O_NOFOLLOW));
    if (!fd.is_open()) return file_error("FileSystem::lock", path.string(), errno);
    const int result = repeat_interrupted([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); });
    if (result != 0 && errno == EWOULDBLOCK) return locked_error(directory, holder_of(fd.get()));
    if (result != 0) return file_error("FileSystem::lock", path.string(), errno);
    write_holder(fd.get());
    return DirectoryLock(File(*this, {.handle = FileHandle(fd.release()), .name = path.string()}));
  }

  Result<ByteCount> free_space(const std::filesystem::path& directory) override {
    struct statfs status {};
    if (::statfs(kernel_name(directory), &status) != 0) {
      return file_error("FileSystem::free_space", directory.string(), errno);
    }
    return available(status);
  }

  Result<bool> is_named(FileHandle file, const std::filesystem::path& path) override {
    struct stat open {
    }, named{};
    if (::fstat(static_cast<int>(file), &open) != 0)
      return file_error("FileSystem::is_named", path.string(), errno);
    if (::stat(kernel_name(path), &named) == 0)
      return open.st_dev == named.st_dev && open.st_ino == named.st_ino;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return file_error("FileSystem::is_named", path.string(), errno);
  }

  std::string type_name(const std::filesystem::path& directory) override {
    struct statfs status {};
    if (::statfs(kernel_name(directory), &status) != 0) return "unknown";
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
  // A forked child shares the open file description, to which the lock belongs: closing our descriptor alone would not
  // end the lock.
  void unlock(FileHandle handle) noexcept override { ::flock(static_cast<int>(handle), LOCK_UN); }

  void close(FileHandle handle) noexcept override {
    if (handle != FileHandle::none) ::close(static_cast<int>(handle));
  }

  Result<ByteCount> size(const File::Properties& file) override {
    struct stat status {};
    if (::fstat(descriptor_of(file), &status) != 0) return file_error("File::size", file.name, errno);
    return ByteCount(static_cast<std::uint64_t>(status.st_size));
  }

  Result<void> clone(const File::Properties& source, FileOffset from, const File::Properties& file,
                     FileOffset to, ByteCount length) override {
    const file_clone_range range{.src_fd = descriptor_of(source),
                                 .src_offset = from.value(),
                                 .src_length = length.value(),
                                 .dest_offset = to.value()};
    if (length.is_zero()) return ok();  // to the kernel, 0 is everything up to the end
    if (::ioctl(descriptor_of(file), FICLONERANGE, &range) == 0) return ok();
    const int cause = errno;
    if (cause == EOPNOTSUPP || cause == EXDEV || cause == EINVAL || cause == ENOTTY || cause == ENOSYS)
      return no_clone(file.name, std::strerror(cause));
    return file_error("File::clone", file.name, cause);
  }

  Result<void> extend(const File::Properties& file, ByteCount wanted) override {
    PENSTOCK_TRY(check_length("File::extend", file.name, wanted));
    const auto now = size(file);
    if (!now) return now.error();
    if (*now >= wanted) return ok();
    const auto length = static_cast<off_t>(wanted.value());
    if (repeat_interrupted([&] { return ::ftruncate(descriptor_of(file), length); }) == 0) return ok();
    return extend_error(file.name, wanted, errno);
  }

  Result<void> read(const File::Properties& file, FileOffset offset, HostSpan into) override {
    for (ByteCount done; done < into.size();) {
      const ByteCount left = into.size() - done;
      const ssize_t got = repeat_interrupted([&] {
        return ::pread(descriptor_of(file), into.data() + done.value(), left.value(),
                       static_cast<off_t>((offset + done).value()));
      });
      if (got < 0) return transfer_error("File::read", file.name, offset + done, left, errno);
      if (got == 0) return file_too_short(file.name, offset, into.size(), done);
      if (got > static_cast<ssize_t>(left.value())) {
        return moved_too_much("File::read", ByteCount(static_cast<std::uint64_t>(got)))
            .object(file.name)
            .at(offset + done)
            .wanted(left);
      }
      done += ByteCount(static_cast<std::uint64_t>(got));
    }
    return ok();
  }

  Result<void> write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) override {
    PENSTOCK_TRY(check_length("File::write", file.name, ByteCount(offset.value()) + bytes.size()));
    for (ByteCount done; done < bytes.size();) {
      const ByteCount left = bytes.size() - done;
      const ssize_t put = repeat_interrupted([&] {
        return ::pwrite(descriptor_of(file), bytes.data() + done.value(), left.value(),
                        static_cast<off_t>((offset + done).value()));
      });
      if (put <= 0) {
        return transfer_error("File::write", file.name, offset + done, left, put < 0 ? errno : ENOSPC);
      }
      if (put > static_cast<ssize_t>(left.value())) {
        return moved_too_much("File::write", ByteCount(static_cast<std::uint64_t>(put)))
            .object(file.name)
            .at(offset + done)
            .wanted(left);
      }
      done += ByteCount(static_cast<std::uint64_t>(put));
    }
    return ok();
  }

  Result<void> sync(const File::Properties& file) override {
    // Flushes the length too, if it has changed.
    if (repeat_interrupted([&] { return ::fdatasync(descriptor_of(file)); }) == 0) return ok();
    return sync_error("File::sync", file.name, errno);
  }

  static Result<OwnedFd> open_unnamed(const std::filesystem::path& directory) {
    constexpr const char* operation = "FileSystem::create_scratch";
    OwnedFd fd(open_file(directory, O_TMPFILE | O_RDWR));
    if (fd.is_open()) return fd;
    if (errno != EOPNOTSUPP && errno != EISDIR) return not_created(operation, directory, errno);
    std::string name = (directory / "penstock-XXXXXX").string();
    fd = OwnedFd(::mkostemp(name.data(), O_CLOEXEC));  // 0600, and never follows a link
    if (!fd.is_open()) return not_created(operation, directory, errno);
    if (::unlink(name.c_str()) == 0) return fd;
    Error error = file_error(operation, name, errno)
                      .reason("a scratch file must have no name, and its name cannot be removed")
                      .advice("name a directory on another file system");
    fd = OwnedFd();  // some file systems do not remove the name of a file that is open
    return remove_name(name, std::move(error));
  }

  /// procfs answers ENOENT in a directory that exists.
  static Error not_created(const char* operation, const std::filesystem::path& directory, int errno_value) {
    struct stat status {};
    if (errno_value != ENOENT || ::stat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
      return file_error(operation, directory.string(), errno_value);
    }
    return Error::unsupported(operation)
        .reason("this file system creates no files")
        .object(directory.string())
        .advice("name a directory on a drive");
  }

  /// Removes a file after `error`, which notes the name where it stays.
  static Error remove_name(const std::filesystem::path& path, Error error) {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return error;
    return std::move(error).note("file    " + path.string() + " remains: " + std::strerror(errno));
  }

  /// Creates a file of `size` bytes. Errors name `path`.
  Result<File> make(const char* operation, OwnedFd fd, const std::filesystem::path& path, std::string name,
                    ByteCount size, DirectIo direct) {
    auto note = reserve(operation, fd.get(), path, size);
    if (!note) return note.error();
    return describe(operation, std::move(fd), path, std::move(name), std::move(*note), direct);
  }

  Result<File> open_existing(const char* operation, const std::filesystem::path& path, int flags,
                             DirectIo direct) {
    OwnedFd fd(open_file(path, flags | O_NOFOLLOW));
    if (!fd.is_open()) return file_error(operation, path.string(), errno);
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return file_error(operation, path.string(), errno);
    if (!S_ISREG(status.st_mode))
      return Error::invalid_argument(operation).reason("not a regular file").object(path.string());
    const auto allocated = status.st_blocks * 512;
    const bool holes = allocated < status.st_size;
    return describe(operation, std::move(fd), path, path.string(), holes ? "the file has holes" : "", direct,
                    ByteCount(static_cast<std::uint64_t>(allocated)));
  }

  Result<File> describe(const char* operation, OwnedFd fd, const std::filesystem::path& path,
                        std::string name, std::string reserve_note, DirectIo direct,
                        ByteCount allocated = {}) {
    File::Properties properties{.name = std::move(name),
                                .alignment = file_alignment,
                                .reserve_note = std::move(reserve_note),
                                .allocated = allocated};
    if (direct != DirectIo::off) {
      auto note = enable_direct_io(fd.get());
      if (!note) return Error(note.error()).object(properties.name);
      properties.direct_note = std::move(*note);
      properties.direct = properties.direct_note.empty();
    }
    if (direct == DirectIo::required && !properties.direct) {
      return no_direct_io(operation, path, properties.direct_note);
    }
    properties.handle = FileHandle(fd.release());
    return File(*this, std::move(properties));
  }

  /// Returns an empty string if all bytes are reserved, else the reason why the file system cannot reserve them.
  Result<std::string> reserve(const char* operation, int fd, const std::filesystem::path& path,
                              ByteCount size) {
    if (size.is_zero()) return std::string();
    if (auto allowed = check_length(operation, path.string(), size); !allowed) return allowed.error();
    // Checks first: an fallocate that fails takes all free space until it returns.
    const auto free = free_space_of(fd);
    if (free && *free < size) return reserve_error(operation, path, size, ENOSPC, free);
    const auto length = static_cast<off_t>(size.value());
    if (repeat_interrupted([&] { return ::fallocate(fd, 0, 0, length); }) == 0) return std::string();
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
      if (repeat_interrupted([&] { return ::ftruncate(fd, length); }) == 0)
        return std::string("the file system has no fallocate");
    }
    const int cause = errno;
    return reserve_error(operation, path, size, cause, free_space_of(fd));
  }
};

}  // namespace

FileSystem& real_file_system() {
  // Never destroyed: threads that the kernel does not return may close files while the process ends.
  static auto& file_system = *new RealFileSystem;
  return file_system;
}

}  // namespace penstock::tiers
