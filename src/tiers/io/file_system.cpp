#include <penstock/tiers/io/file_system.hpp>

#include "tiers/io/file_errors.hpp"

#include <unistd.h>

namespace penstock::tiers {

File::~File() {
  if (file_system_ != nullptr) file_system_->close(properties_.handle);
}

namespace {
Error not_open(const char* operation) {
  return Error::invalid_argument(operation).object("file").reason("a default or moved-from File is not open");
}
}  // namespace

Result<ByteCount> File::size() const {
  if (file_system_ == nullptr) return not_open("File::size");
  return file_system_->size(properties_);
}

Result<void> File::extend(ByteCount size) {
  if (file_system_ == nullptr) return not_open("File::extend");
  return file_system_->extend(properties_, size);
}

Result<void> File::read(FileOffset offset, HostSpan into) const {
  if (file_system_ == nullptr) return not_open("File::read");
  return file_system_->read(properties_, offset, into);
}

Result<void> File::write(FileOffset offset, ConstHostSpan bytes) {
  if (file_system_ == nullptr) return not_open("File::write");
  return file_system_->write(properties_, offset, bytes);
}

Result<void> File::clone(const File& source, FileOffset from, FileOffset to, ByteCount length) {
  if (file_system_ == nullptr || source.file_system_ == nullptr) return not_open("File::clone");
  if (file_system_ != source.file_system_)
    return no_clone(properties_.name, "the files are of two file systems");
  return file_system_->clone(source.properties_, from, properties_, to, length);
}

Result<File> FileSystem::open_to_read(const std::filesystem::path& path, DirectIo direct) {
  return open(path, direct);
}

Result<bool> FileSystem::is_named(FileHandle, const std::filesystem::path&) {
  return true;
}

Result<void> FileSystem::clone(const File::Properties&, FileOffset, const File::Properties& file, FileOffset,
                               ByteCount) {
  return no_clone(file.name, "its file system has none");
}

Result<void> File::sync() {
  if (file_system_ == nullptr) return not_open("File::sync");
  return file_system_->sync(properties_);
}

DirectoryLock::DirectoryLock(File lock_file) : lock_file_(std::move(lock_file)), owner_(::getpid()) {}

DirectoryLock::~DirectoryLock() {
  if (lock_file_.file_system_ != nullptr && owner_ == ::getpid()) {
    lock_file_.file_system_->unlock(lock_file_.handle());
  }
}

}  // namespace penstock::tiers
