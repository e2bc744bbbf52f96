#include "tiers/io/file_errors.hpp"

#include "tiers/io/interrupted.hpp"

#include <unistd.h>
#include <cerrno>

namespace penstock::tiers {

const char* advice_for(int errno_value) {
  switch (errno_value) {
    case EACCES:
    case EPERM: return "give this user the permissions for it, or name another directory";
    case EROFS: return "name a directory on a file system that is not mounted read-only";
    case EEXIST: return "remove it, or choose another name";
    case ENOENT: return "check the name; directories must exist";
    case ENOTDIR: return "name a directory: a part of this path is a file";
    case EISDIR: return "move the directory of this name away, or choose another name";
    case ENAMETOOLONG: return "choose a shorter name";
    case EFAULT: return "pass memory of this process, all of which may be read or written";
    case EMFILE: return "raise the limit on open files of this process (ulimit -n)";
    case ENFILE: return "raise the limit on open files of the machine (fs.file-max)";
    case ENOMEM:
    case EAGAIN: return "free memory, or raise the limits on it (memory.max, ulimit -l)";
    case ENOSPC:
    case EDQUOT: return "free space on that file system or name another directory";
    case EFBIG: return "raise the limit on file sizes (ulimit -f), or use another file system";
    case EIO:
    case ENXIO:
    case ENODEV:
    case ENOTCONN:
    case ESTALE:
    case ETIMEDOUT:
      return "check the kernel log (dmesg) and the drive (penstock doctor --path DIR), or name another "
             "directory";
    default: return "";
  }
}

Error explain(Error error, int errno_value) {
  switch (errno_value) {
    case ELOOP:
      return std::move(error)
          .reason("a symbolic link, which is not followed")
          .advice("replace it by what it points to");
    case EXDEV: return std::move(error).reason("a file can be renamed within one file system only");
    case EINTR:
      return std::move(error).reason("interrupted by signals " + std::to_string(interruptions_max) +
                                     " times in a row");
    default: return std::move(error).advice(advice_for(errno_value));
  }
}

Error file_error(const char* operation, const std::string& object, int errno_value) {
  return explain(Error::from_errno(operation, errno_value).object(object), errno_value);
}

Error reserve_error(const char* operation, const std::filesystem::path& path, ByteCount size, int errno_value,
                    const Result<ByteCount>& free) {
  Error error = file_error(operation, path.string(), errno_value);
  if (errno_value != ENOSPC && errno_value != EDQUOT && errno_value != EFBIG) return error;
  error = std::move(error).wanted(size);
  if (free) error = std::move(error).got(to_string(*free) + " free");
  return error;
}

Error no_direct_io(const char* operation, const std::filesystem::path& path, const std::string& why) {
  return Error::unsupported(operation)
      .reason("no direct I/O on this file system: " + why)
      .object(path.string())
      .advice("choose a directory on ext4 or XFS, or allow buffered I/O");
}

Error extend_error(const std::string& file, ByteCount size, int errno_value) {
  return file_error("File::extend", file, errno_value).wanted(size);
}

Error transfer_error(const char* operation, const std::string& file, FileOffset offset, ByteCount length,
                     int errno_value) {
  return file_error(operation, file, errno_value).at(offset).wanted(length);
}

Error file_too_short(const std::string& file, FileOffset offset, ByteCount length, ByteCount got) {
  return Error(ErrorCode::truncated, "File::read")
      .reason("the file ends before the bytes that were asked for")
      .object(file)
      .at(offset)
      .wanted(length)
      .got(got)
      .advice("something has cut the file: bring the whole file back, or write it again");
}

Error moved_too_much(const char* operation, ByteCount moved) {
  return Error(ErrorCode::io, operation)
      .reason("the file system reports more bytes than were requested")
      .got(moved)
      .advice("check the kernel log (dmesg), or name a directory on another file system");
}

Error sync_error(const char* operation, const std::string& object, int errno_value) {
  return Error::from_errno(operation, errno_value)
      .reason("not made durable: what changed since it was last synced may be lost")
      .object(object)
      .advice("check the drive and the kernel log; a later sync that succeeds proves nothing");
}

Error locked_error(const std::filesystem::path& directory, std::optional<int> holder) {
  return Error(ErrorCode::in_use, "FileSystem::lock")
      .reason("the directory is locked by " +
              (holder ? "process " + std::to_string(*holder) : std::string("another process")) +
              (holder == ::getpid() ? ", which is this one" : ""))
      .object(directory.string())
      .advice("wait until that process ends, or name another directory");
}

Error no_clone(const std::string& file, const std::string& why) {
  return Error::unsupported("File::clone")
      .reason("no reflink: " + why)
      .object(file)
      .advice("write the bytes instead; XFS made with reflink=1 and btrfs have reflinks");
}

std::string renamed(const std::filesystem::path& from, const std::filesystem::path& to) {
  return from.string() + " to " + to.string();
}

}  // namespace penstock::tiers
